package fleet

import (
	"encoding/base64"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// A cursor is the key of the last row: the node's id, then its name. It grants
// nothing: the next page is read in the caller's own scope.
func writeCursor(name string, id tenants.NodeID) string {
	return base64.RawURLEncoding.EncodeToString(append(id[:], name...))
}

func readCursor(c string) (name string, id tenants.NodeID, err error) {
	b, err := base64.RawURLEncoding.DecodeString(c)
	if err != nil || len(b) < len(id) || len(b) > len(id)+255 {
		return "", id, fault.Bad("cursor", "not a cursor of this list").Do("use next_cursor as it was given, or start without a cursor")
	}
	copy(id[:], b)
	name = string(b[len(id):])
	if checkRef(name) != nil {
		return "", id, fault.Bad("cursor", "not a cursor of this list").Do("use next_cursor as it was given, or start without a cursor")
	}
	return name, id, nil
}

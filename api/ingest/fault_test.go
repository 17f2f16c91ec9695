package ingest

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/telltale-dev/telltale/tenants/fault"
)

func TestEveryKindHasACode(t *testing.T) {
	seen := map[codes.Code]fault.Kind{}
	for _, k := range fault.Kinds() {
		c, ok := statusCodes[k]
		if !ok || c == codes.OK || c == codes.Unknown {
			t.Errorf("%s has the code %s", k, c)
		}
		if other, twice := seen[c]; twice {
			t.Errorf("%s and %s share the code %s", k, other, c)
		}
		seen[c] = k
	}
}

package events

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// position is the key of an event: a page begins below it.
type position struct {
	ts time.Time
	id ID
}

// after reports whether a list comes to p after q.
func (p position) after(q position) bool {
	return p.ts.Before(q.ts) || p.ts.Equal(q.ts) && bytes.Compare(p.id[:], q.id[:]) < 0
}

// bare is where a page begins that goes on at p, which may be an event that the
// caller must not know of: below last, the last one that it knows, if that
// reaches p's moment, else at that moment, without an id. Where so many events
// bear one moment that this leads nowhere, a few bits of the id tell them apart.
func (p position) bare(last position) position {
	for _, known := range []int{0, 8} {
		at := position{ts: p.ts}
		for i := range at.id {
			at.id[i] = 0xff
		}
		copy(at.id[:known], p.id[:])
		if at.after(last) {
			return at
		}
	}
	return last
}

// cursor is where a page begins, within the span of its first page. sum binds
// it to its tenant and filter. The span is its own: a caller who names a moving
// end, such as one hour ago, names another moment with every page. It grants
// nothing: the next page is read in the caller's own scope.
type cursor struct {
	position
	from, to time.Time
	sum      [12]byte
}

// filterSum names a tenant and everything that filters its list but the span.
func filterSum(tenant tenants.TenantID, q ListQuery) [12]byte {
	q.Limit, q.Cursor, q.From, q.To = 0, "", time.Time{}, time.Time{}
	b, _ := json.Marshal(q) // text, times and sorted maps always marshal
	sum := sha256.Sum256(append(tenant[:], b...))
	return [12]byte(sum[:12])
}

const cursorLen = 12 + 3*8 + 16

func (c cursor) write() string {
	b := append(make([]byte, 0, cursorLen), c.sum[:]...)
	for _, t := range []time.Time{c.from, c.to, c.ts} {
		b = binary.BigEndian.AppendUint64(b, uint64(t.UnixMicro()))
	}
	return base64.RawURLEncoding.EncodeToString(append(b, c.id[:]...))
}

func readCursor(text string, sum [12]byte) (c cursor, err error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) != cursorLen || [12]byte(b[:12]) != sum {
		return c, fault.Bad("cursor", "not a cursor of this list: it belongs to one tenant and one filter").
			Do("use next_cursor as it was given with the same filter, or start without a cursor")
	}
	c.sum = sum
	for i, t := range []*time.Time{&c.from, &c.to, &c.ts} {
		*t = time.UnixMicro(int64(binary.BigEndian.Uint64(b[12+8*i:]))).UTC()
	}
	copy(c.id[:], b[12+3*8:])
	return c, nil
}

package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
)

// chainVersion leads every hashed text, so that another form of it can follow.
const chainVersion = "telltale audit 1"

type digest = [sha256.Size]byte

// writer puts values one after another so that no two lists of values give the
// same bytes: each has a fixed length or is led by its length.
type writer struct{ b []byte }

func (w *writer) text(list ...string) {
	for _, s := range list {
		w.b = binary.BigEndian.AppendUint32(w.b, uint32(len(s)))
		w.b = append(w.b, s...)
	}
}

func (w *writer) number(list ...int64) {
	for _, n := range list {
		w.b = binary.BigEndian.AppendUint64(w.b, uint64(n))
	}
}

func (w *writer) moment(t time.Time) { w.number(t.UnixMicro()) }

// digest is the hash of a row's canonical form: every column but its seal.
func (r row) digest() digest {
	w := writer{make([]byte, 0, 512)}
	w.text(chainVersion, "row")
	w.b = append(w.b, r.tenant[:]...)
	w.moment(r.at)
	w.b = append(w.b, r.id[:]...)
	w.text(r.kind, r.principal, r.name, r.client, r.surface, r.action, r.arguments, r.outcome, r.reason)
	w.number(r.bytes, r.durationUS)
	w.text(r.reference, r.from)
	w.number(int64(r.count))
	w.text(r.replica)
	w.number(r.seq)
	return sha256.Sum256(w.b)
}

// seal is one link of a tenant's chain, as the table has it.
type seal struct {
	no          int64
	prev, hash  digest
	rows        int
	first, last time.Time
	digests     []byte // of the rows, in their order
	sealedAt    time.Time
	sealedBy    string
}

// sum is what the seal's hash must be.
func (l seal) sum(tenant tenants.TenantID) digest {
	w := writer{make([]byte, 0, 256+len(l.digests))}
	w.text(chainVersion, "seal")
	w.b = append(w.b, tenant[:]...)
	w.b = append(w.b, l.prev[:]...)
	w.number(l.no, int64(l.rows))
	w.moment(l.first)
	w.moment(l.last)
	w.moment(l.sealedAt)
	w.text(l.sealedBy)
	w.b = append(w.b, l.digests...)
	return sha256.Sum256(w.b)
}

// digestAt is the digest that the seal recorded of its row at a position from 1.
func (l seal) digestAt(pos int) digest { return digest(l.digests[(pos-1)*sha256.Size:]) }

// scanRow reads sqlColumns, and further columns into more.
func scanRow(from pgx.CollectableRow, more ...any) (r row, err error) {
	err = from.Scan(append([]any{(*[16]byte)(&r.tenant), &r.at, (*[16]byte)(&r.id), &r.kind, &r.principal, &r.name, &r.client, &r.surface, &r.action, &r.arguments,
		&r.outcome, &r.reason, &r.bytes, &r.durationUS, &r.reference, &r.from, &r.count, &r.replica, &r.seq}, more...)...)
	r.at = r.at.UTC()
	return r, err
}

func scanSeal(from pgx.CollectableRow) (l seal, err error) {
	var prev, hash []byte
	err = from.Scan(&l.no, &prev, &hash, &l.rows, &l.first, &l.last, &l.digests, &l.sealedAt, &l.sealedBy)
	copy(l.prev[:], prev)
	copy(l.hash[:], hash)
	return l, err
}

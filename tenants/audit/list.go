package audit

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// List answers one page of the audit, the youngest first. It needs
// telltale:admin. A caller that is limited to some nodes sees its own entries
// alone: those of others may name nodes that do not exist for it. What other
// replicas noted within the last second may be missing.
func (s *Service) List(ctx context.Context, scope tenants.Scope, q Query) (Page, error) {
	if err := scope.Require(tenants.Admin); err != nil {
		return Page{}, err
	}
	from, err := s.checkQuery(scope, q)
	if err != nil {
		return Page{}, err
	}
	limit, clamped := tenants.ClampRows(q.Limit)
	p := Page{Entries: []Row{}}
	if clamped {
		p.Notes = append(p.Notes, fmt.Sprintf("limit was clamped to %d", limit))
	}
	since := q.Since
	if since.IsZero() {
		since = s.now().Add(-s.cfg.Retention - week)
	}
	args := []any{scope.Tenant, since, from.at, [16]byte(from.id), limit + 1}
	sql := sqlList
	filter := func(condition, value string) {
		if value != "" {
			args = append(args, value)
			sql += fmt.Sprintf("%s$%d", condition, len(args))
		}
	}
	filter(sqlListPrincipal, q.Principal)
	filter(sqlListAction, q.Action)
	filter(sqlListOutcome, string(q.Outcome))
	filter(sqlListReference, q.Reference)
	if !scope.Nodes.All() {
		filter(sqlListKind, string(scope.Principal.Kind))
		filter(sqlListPrincipal, scope.Principal.ID)
		p.Notes = append(p.Notes, "your credential is limited to some nodes, so that you see your own entries alone")
	}
	var last position
	rows, err := tenantdb.Query(ctx, s.db, scope.Tenant, sql+sqlListEnd, args, func(from pgx.CollectableRow) (Row, error) {
		var no int64
		r, err := scanRow(from, &no)
		out := r.shown()
		out.Seal = no
		return out, err
	})
	if err != nil {
		return Page{}, tenantdb.Fault(err)
	}
	if len(rows) > limit {
		rows = rows[:limit]
		end := rows[limit-1]
		last = position{end.At, uuid.MustParse(end.ID)}
		p.Truncated = &tenants.Truncated{Returned: limit, NextCursor: last.write(scope, q),
			Hint: "ask again with the cursor, or narrow by principal, action, outcome or time"}
	}
	p.Entries = rows
	return p, nil
}

func (s *Service) checkQuery(scope tenants.Scope, q Query) (position, error) {
	for _, f := range []struct{ name, text string }{{"principal", q.Principal}, {"action", q.Action}, {"reference", q.Reference}} {
		if len(f.text) > maxID {
			return position{}, fault.Bad(f.name, "at most %d bytes", maxID)
		}
	}
	switch q.Outcome {
	case "", OK, Refused, Failed, Started:
	default:
		return position{}, fault.Bad("outcome", "want ok, refused, failed or started")
	}
	if q.Cursor != "" {
		return readPosition(q.Cursor, scope, q)
	}
	until := q.Until
	if until.IsZero() {
		until = s.now().Add(day) // a replica's clock may be ahead
	}
	if !q.Since.IsZero() && !q.Since.Before(until) {
		return position{}, fault.Bad("since", "since lies before until")
	}
	return position{at: until.UTC()}, nil // below every row of that moment
}

// position is the key of a row: a page begins below it.
type position struct {
	at time.Time
	id uuid.UUID
}

const cursorLen = 12 + 8 + 16

// write makes a cursor, which is bound to its tenant and filter. It grants
// nothing: the next page is read in the caller's own scope.
func (p position) write(scope tenants.Scope, q Query) string {
	b := binary.BigEndian.AppendUint64(filterSum(scope, q), uint64(p.at.UnixMicro()))
	return base64.RawURLEncoding.EncodeToString(append(b, p.id[:]...))
}

func readPosition(text string, scope tenants.Scope, q Query) (position, error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) != cursorLen || string(b[:12]) != string(filterSum(scope, q)) {
		return position{}, fault.Bad("cursor", "not a cursor of this list: it belongs to one tenant and one filter").
			Do("use next_cursor as it was given with the same filter, or start without a cursor")
	}
	return position{time.UnixMicro(int64(binary.BigEndian.Uint64(b[12:]))).UTC(), uuid.UUID(b[20:])}, nil
}

// filterSum names a tenant and what filters its list. The bounds of time may
// move from page to page, such as one hour ago.
func filterSum(scope tenants.Scope, q Query) []byte {
	b, _ := json.Marshal([]string{q.Principal, q.Action, string(q.Outcome), q.Reference}) // text always marshals
	sum := sha256.Sum256(append(scope.Tenant[:], b...))
	return sum[:12]
}

// shown is a row as a list shows it.
func (r row) shown() Row {
	return Row{
		ID: r.id.String(), At: r.at, Principal: Caller{tenants.PrincipalKind(r.kind), r.principal, r.name, r.client},
		Surface: r.surface, Action: r.action, Arguments: r.arguments, Outcome: Outcome(r.outcome), Reason: r.reason,
		Bytes: r.bytes, DurationMS: float64(r.durationUS) / 1000, Reference: r.reference, From: r.from, Count: int(r.count),
	}
}

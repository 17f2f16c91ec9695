package fleet

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// SessionID identifies one stream of one node.
type SessionID uuid.UUID

func (s SessionID) String() string { return uuid.UUID(s).String() }

// SessionFacts is what an agent says of itself when its stream opens. All text
// is untrusted; it is cleaned and cut to tenants' label bounds.
type SessionFacts struct {
	Remote       string // peer address, from the connection
	MachineID    string
	BootID       string
	AgentVersion string
	Kernel       string
	OS           string
	Arch         string
	CertNotAfter time.Time // of the certificate in use; zero: unknown
}

// Opened is the answer to a new stream.
type Opened struct {
	ID        SessionID
	Duplicate bool     // the same identity is live elsewhere, or returned after another boot
	Off       []string // modules switched off from the server
}

// SessionOpened records a new stream of the node that scope is. It is called
// once for each stream, before its first report.
func (s *Service) SessionOpened(ctx context.Context, scope tenants.Scope, f SessionFacts) (Opened, error) {
	node, err := nodeOf(scope)
	if err != nil {
		return Opened{}, err
	}
	f.clean()
	o := Opened{ID: SessionID(uuid.Must(uuid.NewV7()))}
	now := s.now()
	t, n := [16]byte(scope.Tenant), [16]byte(node)
	err = s.db.InTenants(ctx, []tenants.TenantID{scope.Tenant}, func(ctx context.Context, tx pgx.Tx) error {
		former, err := formerStreams(ctx, tx, node, t, n)
		if err != nil {
			return err
		}
		var duplicate *time.Time
		if o.Duplicate = returned(former, f, now); o.Duplicate {
			duplicate = &now
		}
		var expires *time.Time
		if !f.CertNotAfter.IsZero() {
			expires = &f.CertNotAfter
		}
		b := &pgx.Batch{}
		b.Queue(sqlNotCurrent, t, n)
		b.Queue(sqlLoseSessions, t, n, now.Add(-OfflineAfter))
		b.Queue(sqlOpenSession, t, n, [16]byte(o.ID), s.replica, f.Remote, f.MachineID, f.BootID, f.AgentVersion, f.Kernel, f.OS, f.Arch, expires, now, duplicate)
		b.Queue(sqlKeepSessions, t, n)
		b.Queue(sqlOffModules, t, n).Query(func(rows pgx.Rows) (err error) {
			o.Off, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return Opened{}, tenantdb.Fault(err)
	}
	return o, nil
}

func (f *SessionFacts) clean() {
	for _, p := range []*string{&f.Remote, &f.MachineID, &f.BootID, &f.AgentVersion, &f.Kernel, &f.OS, &f.Arch} {
		*p, _ = inspector.CleanLabel(*p)
	}
}

// stream is what is kept of an earlier stream of the same node.
type stream struct {
	machine, boot string
	connected     time.Time
	seen          time.Time
}

// formerStreams waits for the node's turn and reads its streams, newest first.
func formerStreams(ctx context.Context, tx pgx.Tx, node tenants.NodeID, t, n [16]byte) (former []stream, err error) {
	b := &pgx.Batch{}
	b.Queue(sqlTurn, node.String())
	b.Queue(sqlFormer, t, n).Query(func(rows pgx.Rows) (err error) {
		former, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (f stream, err error) {
			err = r.Scan(&f.machine, &f.boot, &f.connected, &f.seen)
			return f, err
		})
		return err
	})
	return former, tx.SendBatch(ctx, b).Close()
}

// returned reports whether a stream comes back from a boot or machine after
// another one took its place: A, B, A. A machine that reboots never returns to
// an earlier boot, so two machines share the identity and push each other out.
// former is newest first.
func returned(former []stream, f SessionFacts, now time.Time) bool {
	other := false
	for _, o := range former {
		if o.seen.Before(now.Add(-2 * OfflineAfter)) {
			return false
		}
		if o.machine != f.MachineID || o.boot != f.BootID {
			other = true
		} else if other {
			return true
		}
	}
	return false
}

// SessionClosed records the end of a stream. reason is a snake_case word, for
// example "eof", "replaced", "drain". Closing twice is no error.
func (s *Service) SessionClosed(ctx context.Context, scope tenants.Scope, id SessionID, reason string) error {
	node, err := nodeOf(scope)
	if err != nil {
		return err
	}
	reason, _ = inspector.CleanLabel(reason)
	t, n := [16]byte(scope.Tenant), [16]byte(node)
	err = s.db.InTenants(ctx, []tenants.TenantID{scope.Tenant}, func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(sqlTurn, node.String())
		b.Queue(sqlCloseSession, t, n, [16]byte(id), s.now(), reason)
		b.Queue(sqlNotCurrent, t, n)
		b.Queue(sqlPromote, t, n)
		return tx.SendBatch(ctx, b).Close()
	})
	s.mu.Lock()
	delete(s.seen, sessionKey{scope.Tenant, node, id})
	s.mu.Unlock()
	return tenantdb.Fault(err)
}

// nodeOf returns the node that a scope is.
func nodeOf(scope tenants.Scope) (tenants.NodeID, error) {
	id, err := tenants.ParseNodeID(scope.Principal.ID)
	if err != nil || scope.Tenant.IsZero() || scope.Principal.Kind != tenants.NodePrincipal {
		return tenants.NodeID{}, fault.New(fault.Denied, "not_a_node", "only an enrolled node reports").Do("use the node's client certificate")
	}
	return id, nil
}

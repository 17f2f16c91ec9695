package fleet

import (
	"context"
	"slices"
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
	StartedNS    int64     // start of the agent by its own clock, Unix nanoseconds; 0: unknown
	CertNotAfter time.Time // of the certificate in use; zero: unknown
	ConfigDigest string    // of the agent's configuration, in hexadecimal; empty: unknown
}

// life is one run of one agent on one boot of one machine. An identity has one
// life at a time; two that are alive at once share it, which they must not.
type life struct {
	machine, boot string
	started       int64
}

func (f SessionFacts) life() life { return life{f.MachineID, f.BootID, f.StartedNS} }

// Opened is the answer to a new stream.
type Opened struct {
	ID SessionID
	// Duplicate: this life of the identity returned after another one took its
	// place, so both are alive.
	Duplicate bool
	// Rival: another life of the identity has an open stream, here or on
	// another replica, and was heard of lately. The stream is recorded as
	// waiting: ask Rivals what becomes of the other one, then SessionAdmitted
	// lets it in.
	Rival bool
	// Changed: the stream before this one was of another life.
	Changed bool
	Off     []string // modules switched off from the server
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
		former, err := s.formerStreams(ctx, tx, scope.Tenant, node)
		if err != nil {
			return err
		}
		me := f.life()
		o.Rival = slices.ContainsFunc(former, func(x stream) bool {
			return x.open && x.life != me && x.seen.After(now.Add(-tenants.NodeStaleAfter))
		})
		o.Changed = len(former) > 0 && former[0].life != me
		var duplicate *time.Time
		if o.Duplicate = returned(former, me, now); o.Duplicate {
			duplicate = &now
		}
		var expires *time.Time
		if !f.CertNotAfter.IsZero() {
			expires = &f.CertNotAfter
		}
		b := &pgx.Batch{}
		b.Queue(sqlNotCurrent, t, n)
		b.Queue(sqlLoseSessions, t, n, now.Add(-OfflineAfter))
		b.Queue(sqlOpenSession, t, n, [16]byte(o.ID), s.replica, f.Remote, f.MachineID, f.BootID, f.AgentVersion, f.Kernel, f.OS, f.Arch, expires, now, duplicate, f.StartedNS, o.Rival, f.ConfigDigest)
		if len(former) > 0 && !o.Duplicate { // two lives that push each other out are no change
			queueChanges(b, t, n, now, f.changed(former[0].former))
		}
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
	for _, p := range []*string{&f.Remote, &f.MachineID, &f.BootID, &f.AgentVersion, &f.Kernel, &f.OS, &f.Arch, &f.ConfigDigest} {
		*p, _ = inspector.CleanLabel(*p)
	}
}

// stream is what is kept of an earlier stream of the same node.
type stream struct {
	id SessionID
	former
	seen time.Time
	open bool // and let in
}

// formerStreams waits for the node's turn and reads its streams, newest first.
func (s *Service) formerStreams(ctx context.Context, tx pgx.Tx, tenant tenants.TenantID, node tenants.NodeID) (former []stream, err error) {
	b := &pgx.Batch{}
	b.Queue(sqlTurn, node.String())
	b.Queue(sqlFormer, [16]byte(tenant), [16]byte(node)).Query(func(rows pgx.Rows) (err error) {
		former, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (f stream, err error) {
			err = r.Scan((*[16]byte)(&f.id), &f.machine, &f.boot, &f.started, &f.seen, &f.open, &f.version, &f.kernel, &f.config)
			return f, err
		})
		return err
	})
	err = tx.SendBatch(ctx, b).Close()
	for i := range former {
		former[i].seen = s.heard(sessionKey{tenant, node, former[i].id}, former[i].seen)
	}
	return former, err
}

// heard is the last sign of life of a stream: a sighting of this replica's own
// may not be written yet.
func (s *Service) heard(k sessionKey, written time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g, ok := s.seen[k]; ok && g.at.After(written) {
		return g.at
	}
	return written
}

// returned reports whether a life comes back after another one took its place:
// A, B, A. A machine that reboots never returns to an earlier boot, nor an agent
// to an earlier start, so two of them share the identity and push each other
// out. former is newest first.
func returned(former []stream, me life, now time.Time) bool {
	other := false
	for _, o := range former {
		if o.seen.Before(now.Add(-2 * OfflineAfter)) {
			return false
		}
		if o.life != me {
			other = true
		} else if other {
			return true
		}
	}
	return false
}

// Rivals says what became of the open streams of other lives that a waiting
// stream was held back for.
type Rivals struct {
	Open      bool // one is still open
	Live      bool // and was heard of within tenants.NodeStaleAfter
	Spoke     bool // one was heard of after the waiting stream opened: both are alive
	Elsewhere bool // one is of another machine or boot: more than a new start of the agent
	Far       bool // one is held by another replica, which writes its signs of life every few seconds
}

// Rivals asks for the rivals of a waiting stream of the node that scope is.
func (s *Service) Rivals(ctx context.Context, scope tenants.Scope, id SessionID) (r Rivals, err error) {
	node, err := nodeOf(scope)
	if err != nil {
		return r, err
	}
	err = s.db.InTenants(ctx, []tenants.TenantID{scope.Tenant}, func(ctx context.Context, tx pgx.Tx) error {
		r = Rivals{}
		rows, err := tx.Query(ctx, sqlRivals, [16]byte(scope.Tenant), [16]byte(node), [16]byte(id))
		if err != nil {
			return err
		}
		var other SessionID
		var replica string
		var seen, opened time.Time
		var elsewhere bool
		_, err = pgx.ForEachRow(rows, []any{(*[16]byte)(&other), &replica, &seen, &opened, &elsewhere}, func() error {
			seen = s.heard(sessionKey{scope.Tenant, node, other}, seen)
			r.Open, r.Far, r.Elsewhere = true, r.Far || replica != s.replica, r.Elsewhere || elsewhere
			r.Live = r.Live || seen.After(s.now().Add(-tenants.NodeStaleAfter))
			r.Spoke = r.Spoke || seen.After(opened)
			return nil
		})
		return err
	})
	return r, tenantdb.Fault(err)
}

// SessionAdmitted lets a waiting stream in.
func (s *Service) SessionAdmitted(ctx context.Context, scope tenants.Scope, id SessionID) error {
	node, err := nodeOf(scope)
	if err != nil {
		return err
	}
	err = s.db.InTenants(ctx, []tenants.TenantID{scope.Tenant}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlAdmitSession, [16]byte(scope.Tenant), [16]byte(node), [16]byte(id))
		return err
	})
	return tenantdb.Fault(err)
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

package audit

import (
	"context"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// own is a service on a server of the test's own, with one tenant.
func own(t *testing.T, set map[string]string, cfg Config) (*dbtest.Server, *Service, tenants.Scope) {
	t.Helper()
	srv := dbtest.NewServer(t, set)
	dsn := srv.Database()
	scope := adminOf(tenants.NewTenantID(), "dana")
	if _, err := dbtest.Connect(t, dsn).Exec(t.Context(), `insert into tenant (tenant_id, slug, name, created_at) values ($1, 'acme', 'acme', now())`, scope.Tenant); err != nil {
		t.Fatal(err)
	}
	return srv, New(dbtest.Open(t, tenantdb.Config{DSN: dsn}), cfg, slog.New(slog.DiscardHandler)), scope
}

// While the database is away acts fail closed, notes wait within their bound,
// and what was lost is said when it is back.
func TestDeadDatabase(t *testing.T) {
	srv, s, scope := own(t, nil, Config{Queue: 20})
	if err := s.Write(t.Context(), entry(scope, "before")); err != nil {
		t.Fatal(err)
	}
	srv.Halt()
	began := time.Now()
	err := s.Write(t.Context(), entry(scope, "meanwhile"))
	if f := fault.Of(err); f.Kind != fault.Unavailable || f.Reason != "audit_unavailable" || f.Next == "" {
		t.Errorf("an act: %v", err)
	}
	if took := time.Since(began); took > 2*writeTime {
		t.Errorf("an act waited %s", took)
	}
	for range 50 {
		s.Note(entry(scope, "note"))
		s.Attempt(tenants.Attempt{Tenant: scope.Tenant, Step: tenants.StepRefused, Class: "expired", Surface: "mcp", Reference: "aaaaaaaaaaaaaaaaaaaa"})
	}
	if err := s.flush(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("flush: %v", err)
	}
	if got := s.Stats(); got.Waiting != 20 || got.Dropped != 31 || got.WriteFailed != 1 {
		t.Errorf("%+v", got)
	}
	if a, err := s.ByReference(t.Context(), scope.Tenant, "aaaaaaaaaaaaaaaaaaaa"); err != nil || a.Class != "expired" {
		t.Errorf("an attempt of this replica is known all the same: %+v %v", a, err)
	}
	srv.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for s.flush(ctx) != nil && ctx.Err() == nil {
	}
	p, err := s.List(ctx, scope, Query{Limit: 200})
	if err != nil {
		t.Fatal(err)
	}
	counts, lost := map[string]int{}, 0
	for _, r := range p.Entries {
		counts[r.Action]++
		if r.Action == lostAction {
			lost += r.Count
		}
	}
	if counts["before"] != 1 || counts["meanwhile"] != 0 || counts["note"]+lost-1 != 50 || counts["note"] < 19 {
		t.Errorf("%v, %d lost", counts, lost)
	}
	if list, err := s.Recent(ctx, scope); err != nil || len(list.Attempts) != 50 {
		t.Errorf("%d attempts, want 50: %v", len(list.Attempts), err)
	}
}

// The postmaster is killed under load: every act that was acknowledged is
// there, no row is there twice, and the chain holds.
func TestCrash(t *testing.T) {
	srv, s, scope := own(t, map[string]string{"fsync": "on", "synchronous_commit": "on"}, Config{Settle: time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	acked, killed := 0, 0
	for round := range 3 {
		for n := 0; n < 40 && ctx.Err() == nil; n++ {
			if n >= 20 && killed <= round && kill(srv) {
				killed++
			}
			s.Note(entry(scope, "note"))
			if s.Write(ctx, entry(scope, "act")) == nil {
				acked++
			}
			_ = s.flush(ctx) // what fails is tried again
			_ = s.seal(ctx)
		}
		for s.Write(ctx, entry(scope, "act")) != nil && ctx.Err() == nil {
		}
		acked++
		t.Log("round", round, "acknowledged", acked)
	}
	for s.flush(ctx) != nil && ctx.Err() == nil {
	}
	acts, notes, twice := 0, 0, map[string]bool{}
	for q := (Query{Limit: 200}); ; {
		p, err := s.List(ctx, scope, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range p.Entries {
			if twice[r.ID] {
				t.Errorf("%s is there twice", r.ID)
			}
			twice[r.ID] = true
			switch r.Action {
			case "act":
				acts++
			case "note":
				notes++
			}
		}
		if p.Truncated == nil {
			break
		}
		q.Cursor = p.Truncated.NextCursor
	}
	if killed < 2 {
		t.Errorf("the server was killed %d times only", killed)
	}
	if acts < acked || notes != 120 {
		t.Errorf("%d acts of %d acknowledged, %d notes of 120", acts, acked, notes)
	}
	if v, err := s.Verify(ctx, scope.Tenant); err != nil || v.Broken != nil || v.Rows+v.Unsealed < int64(acked+notes) {
		t.Errorf("%+v %v", v, err)
	}
}

// kill kills the postmaster, unless there is none just now.
func kill(srv *dbtest.Server) bool {
	pid := srv.PID()
	return pid > 0 && syscall.Kill(pid, syscall.SIGKILL) == nil
}

// Run writes by itself within a second, and what is left when it is told to
// stop, folded refusals too.
func TestRun(t *testing.T) {
	w := newWorld(t)
	s := New(w.s.db, Config{Replica: "r3", Settle: time.Millisecond}, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	s.Note(entry(w.admin, "first"))
	deadline, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for w.count(`select count(*) from audit where action = 'first'`) == 0 {
		select {
		case <-tick.C:
		case <-deadline.Done():
			t.Fatal("nothing is written")
		}
	}
	refused := entry(w.admin, "second")
	refused.Outcome, refused.Reason = Refused, "insufficient_scope"
	s.Note(refused)
	for w.count(`select count(*) from audit where action = 'second'`) == 0 {
		select {
		case <-tick.C:
		case <-deadline.Done():
			t.Fatal("the refusal is not written")
		}
	}
	s.Note(refused)
	s.Note(entry(w.admin, "last"))
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := w.count(`select sum(count) from audit`); n != 4 {
		t.Errorf("%d entries, want 4", n)
	}
}

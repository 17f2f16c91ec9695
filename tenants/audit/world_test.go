package audit

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

var start = time.Date(2026, 3, 4, 12, 30, 0, 0, time.UTC) // a Wednesday: partitions are weeks

// world is two replicas on one database and one clock that tests move, two
// tenants, and a superuser's connection to arrange, to check and to tamper
// with. Neither replica runs: tests take each step themselves.
type world struct {
	t       testing.TB
	dsn     string
	s, s2   *Service
	conn    *pgx.Conn
	clock   atomic.Int64
	a, b    tenants.TenantID
	admin   tenants.Scope // of a
	limited tenants.Scope // an administrator of a with some nodes alone
	other   tenants.Scope // administrator of b
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, dsn: dbtest.DSN(t)}
	w.conn = dbtest.Connect(t, w.dsn)
	w.clock.Store(start.UnixNano())
	db := dbtest.Open(t, tenantdb.Config{DSN: w.dsn})
	w.s, w.s2 = w.service(db, "r1"), w.service(db, "r2")
	w.a, w.b = w.tenant("acme"), w.tenant("globex")
	w.admin, w.other = adminOf(w.a, "dana"), adminOf(w.b, "gina")
	w.limited = adminOf(w.a, "lena")
	w.limited.Nodes = tenants.Selector{Labels: map[string]string{"env": "test"}}
	return w
}

func (w *world) service(db *tenantdb.DB, replica string) *Service {
	return New(db, Config{Replica: replica, Now: w.now}, slog.New(slog.DiscardHandler))
}

func (w *world) now() time.Time          { return time.Unix(0, w.clock.Load()).UTC() }
func (w *world) advance(d time.Duration) { w.clock.Add(int64(d)) }

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.conn.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) count(sql string, args ...any) (n int) {
	w.t.Helper()
	if err := w.conn.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (w *world) tenant(slug string) tenants.TenantID {
	id := tenants.NewTenantID()
	w.exec(`insert into tenant (tenant_id, slug, name, created_at) values ($1, $2, $2, $3)`, [16]byte(id), slug, start)
	return id
}

func adminOf(t tenants.TenantID, name string) tenants.Scope {
	return tenants.Scope{Tenant: t, Principal: tenants.Principal{Kind: tenants.OAuthPrincipal, ID: "https://idp.example|" + name + "|cli", Name: name, Client: "cli"}, Granted: tenants.Read | tenants.Admin}
}

// entry is a call of a scope's principal.
func entry(s tenants.Scope, action string) Entry {
	return Entry{Tenant: s.Tenant, Principal: s.Principal, Surface: "mcp", Action: action, Arguments: `{node="n1"}`, Outcome: OK,
		Bytes: 1234, Duration: 12 * time.Millisecond, Reference: "abcdefghij0123456789", From: netip.MustParseAddr("192.0.2.7")}
}

func (w *world) flush(list ...*Service) {
	w.t.Helper()
	for _, s := range list {
		if err := s.flush(context.Background()); err != nil {
			w.t.Fatalf("flush: %v", err)
		}
	}
}

// seal seals all that was written so far.
func (w *world) seal(s *Service) {
	w.t.Helper()
	w.advance(s.cfg.Settle + time.Millisecond)
	if err := s.seal(context.Background()); err != nil {
		w.t.Fatalf("seal: %v", err)
	}
}

// settle waits until every row is old enough to be sealed.
func (w *world) settle(s *Service) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for w.count(`select count(*) from audit where at >= $1`, s.settled()) > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.t.Fatal("the clock stands still")
		}
	}
}

func (w *world) list(scope tenants.Scope, q Query) Page {
	w.t.Helper()
	p, err := w.s.List(context.Background(), scope, q)
	if err != nil {
		w.t.Fatalf("list %+v: %v", q, err)
	}
	return p
}

func (w *world) verify(t tenants.TenantID) Verdict {
	w.t.Helper()
	v, err := w.s.Verify(context.Background(), t)
	if err != nil {
		w.t.Fatalf("verify: %v", err)
	}
	return v
}

func actions(p Page) []string {
	out := []string{}
	for _, r := range p.Entries {
		out = append(out, r.Action)
	}
	return out
}

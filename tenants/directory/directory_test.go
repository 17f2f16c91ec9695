package directory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// world is two tenants with one service over them.
type world struct {
	*Service
	db           *tenantdb.DB
	acme, globex Tenant
}

func newWorld(t *testing.T, cfg Config) *world {
	t.Helper()
	db := dbtest.New(t)
	w := &world{Service: New(db, slog.New(slog.DiscardHandler), cfg), db: db}
	for slug, to := range map[string]*Tenant{"acme": &w.acme, "globex": &w.globex} {
		var err error
		if *to, err = w.CreateTenant(t.Context(), slug, ""); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func admin(tn Tenant) tenants.Scope {
	return tenants.Scope{Tenant: tn.ID, Slug: tn.Slug, Granted: tenants.Admin, Principal: tenants.Principal{Kind: tenants.LocalPrincipal, ID: "test"}}
}

func limited(tn Tenant, labels map[string]string, ids ...tenants.NodeID) tenants.Scope {
	sc := admin(tn)
	sc.Nodes = tenants.Selector{Labels: labels, IDs: ids}
	return sc
}

// enrol makes a node through the front door.
func (w *world) enrol(t *testing.T, tn Tenant, name string, labels map[string]string) tenants.NodeID {
	t.Helper()
	secret, _, err := w.CreateEnrolToken(t.Context(), admin(tn), EnrolTokenSpec{Labels: labels})
	if err != nil {
		t.Fatal(err)
	}
	tenant, node, err := w.RedeemEnrolToken(t.Context(), secret, NodeFacts{Name: name, MachineID: "m-" + name, BootID: "b1", OS: "linux", Arch: "amd64", Kernel: "6.1", AgentVersion: "1"})
	if err != nil || tenant != tn.ID {
		t.Fatalf("enrol %s: tenant %v, %v", name, tenant, err)
	}
	return node
}

func wantFault(t *testing.T, err error, kind fault.Kind, reason string) {
	t.Helper()
	f := fault.Of(err)
	if f == nil || f.Kind != kind || f.Reason != reason {
		t.Fatalf("got %v, want %v %s", err, kind, reason)
	}
	if f.Msg == "" {
		t.Errorf("%s has no message", reason)
	}
}

func TestTenants(t *testing.T) {
	w := newWorld(t, Config{})
	got, err := w.TenantBySlug(t.Context(), "acme")
	if diff := cmp.Diff(w.acme, got, cmp.Transformer("instant", func(at time.Time) int64 { return at.UnixMicro() })); err != nil || diff != "" {
		t.Fatalf("%v\n%s", err, diff)
	}
	for _, slug := range []string{"nope", "", "ACME", "acme'--", strings.Repeat("a", 41), "a\x00b"} {
		_, err := w.TenantBySlug(t.Context(), slug)
		wantFault(t, err, fault.NotFound, "unknown_tenant")
	}
	_, err = w.CreateTenant(t.Context(), "acme", "again")
	wantFault(t, err, fault.Conflict, "slug_taken")
	_, err = w.CreateTenant(t.Context(), "Bad Slug", "")
	wantFault(t, err, fault.Invalid, "invalid_argument")
	_, err = w.CreateTenant(t.Context(), "fine", "two\nlines")
	wantFault(t, err, fault.Invalid, "invalid_argument")
	if _, err := w.CreateTenant(t.Context(), "a", "One letter"); err != nil {
		t.Errorf("the shortest slug: %v", err)
	}
	all, err := w.ListTenants(t.Context())
	var slugs []string
	for _, tn := range all {
		slugs = append(slugs, tn.Slug)
	}
	if diff := cmp.Diff([]string{"a", "acme", "globex"}, slugs); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

// A slug never changes and never comes free, whatever role tries.
func TestSlugsAreForGood(t *testing.T) {
	dsn := dbtest.DSN(t)
	s := New(dbtest.Open(t, tenantdb.Config{DSN: dsn}), slog.New(slog.DiscardHandler), Config{})
	if _, err := s.CreateTenant(t.Context(), "acme", ""); err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"telltale_app", "telltale_ingest", "telltale_jobs"} {
		conn := dbtest.Connect(t, dbtest.As(t, dsn, role))
		for _, sql := range []string{`update tenant set slug = 'other'`, `delete from tenant`, `truncate tenant cascade`} {
			tag, err := conn.Exec(t.Context(), sql)
			if err == nil && tag.RowsAffected() > 0 {
				t.Errorf("%s: %s went through", role, sql)
			}
		}
	}
	if _, err := s.TenantBySlug(t.Context(), "acme"); err != nil {
		t.Error(err)
	}
}

func TestFlags(t *testing.T) {
	w := newWorld(t, Config{})
	read := func(slug string) Tenant {
		t.Helper()
		tn, err := w.TenantBySlug(t.Context(), slug)
		if err != nil {
			t.Fatal(err)
		}
		return tn
	}
	read("acme") // now remembered
	if err := w.SetSuspended(t.Context(), "acme", true); err != nil {
		t.Fatal(err)
	}
	if err := w.SetMCP(t.Context(), "globex", false); err != nil {
		t.Fatal(err)
	}
	if a, g := read("acme"), read("globex"); !a.Suspended || a.MCPDisabled || g.Suspended || !g.MCPDisabled {
		t.Errorf("acme %+v, globex %+v", a, g)
	}
	if err := w.SetSuspended(t.Context(), "acme", false); err != nil || read("acme").Suspended {
		t.Errorf("still suspended: %v", err)
	}
	wantFault(t, w.SetMCP(t.Context(), "nope", true), fault.NotFound, "unknown_tenant")
}

func TestResolveNode(t *testing.T) {
	w := newWorld(t, Config{})
	web := map[string]string{"role": "web", "site": "a"}
	a1 := w.enrol(t, w.acme, "mac", web)
	a2 := w.enrol(t, w.acme, "mac", map[string]string{"role": "db", "site": "a"})
	a3 := w.enrol(t, w.acme, "solo", map[string]string{"role": "db", "site": "b"})
	g1 := w.enrol(t, w.globex, "mac", web)
	gone := w.enrol(t, w.acme, "old", nil)
	again := w.enrol(t, w.acme, "old", nil)
	if err := w.RevokeNode(t.Context(), admin(w.acme), gone); err != nil {
		t.Fatal(err)
	}
	all, site := admin(w.acme), limited(w.acme, map[string]string{"site": "a"})
	for _, c := range []struct {
		what string
		sc   tenants.Scope
		ref  string
		want tenants.NodeID
		bad  fault.Kind
	}{
		{"by id", all, a1.String(), a1, 0},
		{"by unique name", all, "solo", a3, 0},
		{"ambiguous", all, "mac", tenants.NodeID{}, fault.Invalid},
		{"still ambiguous in reach", site, "mac", tenants.NodeID{}, fault.Invalid},
		{"unique within reach", limited(w.acme, map[string]string{"role": "web"}), "mac", a1, 0},
		{"two labels", limited(w.acme, map[string]string{"role": "db", "site": "a"}), "mac", a2, 0},
		{"label value that none has", limited(w.acme, map[string]string{"role": "x"}), "mac", tenants.NodeID{}, fault.NotFound},
		{"unique by id list", limited(w.acme, nil, a2, a3), "mac", a2, 0},
		{"ids and labels together", limited(w.acme, map[string]string{"site": "b"}, a2), "mac", tenants.NodeID{}, fault.NotFound},
		{"out of reach by id", site, a3.String(), tenants.NodeID{}, fault.NotFound},
		{"out of reach by name", site, "solo", tenants.NodeID{}, fault.NotFound},
		{"other tenant's id", all, g1.String(), tenants.NodeID{}, fault.NotFound},
		{"other tenant's node in the selector", limited(w.acme, nil, g1), g1.String(), tenants.NodeID{}, fault.NotFound},
		{"own in the other tenant", admin(w.globex), "mac", g1, 0},
		{"the live one of a revoked pair", all, "old", again, 0},
		{"revoked by id", all, gone.String(), gone, 0},
		{"unknown", all, "nope", tenants.NodeID{}, fault.NotFound},
		{"empty", all, "", tenants.NodeID{}, fault.Invalid},
		{"too long", all, strings.Repeat("x", 300), tenants.NodeID{}, fault.Invalid},
		{"zero byte", all, "a\x00", tenants.NodeID{}, fault.NotFound},
		{"not UTF-8", all, "\xff", tenants.NodeID{}, fault.NotFound},
		{"like pattern", all, "sol%", tenants.NodeID{}, fault.NotFound},
	} {
		got, name, err := w.ResolveNode(t.Context(), c.sc, c.ref)
		if c.bad != 0 {
			if !fault.Is(err, c.bad) || got != (tenants.NodeID{}) || name != "" {
				t.Errorf("%s: got %v %q, %v; want %v", c.what, got, name, err, c.bad)
			}
			continue
		}
		if err != nil || got != c.want || name == "" {
			t.Errorf("%s: got %v %q, %v; want %v", c.what, got, name, err, c.want)
		}
	}

	_, _, err := w.ResolveNode(t.Context(), all, "mac")
	amb, ok := errors.AsType[*Ambiguous](err)
	want := []tenants.NodeRef{{Node: a1.String(), Name: "mac"}, {Node: a2.String(), Name: "mac"}}
	if !ok || !cmp.Equal(want, amb.Candidates) || amb.More {
		t.Fatalf("candidates: %v", err)
	}
	if msg := fault.Of(err).Msg; !strings.Contains(msg, a1.String()) || !strings.Contains(msg, a2.String()) || strings.Contains(msg, g1.String()) {
		t.Errorf("message %q does not list exactly the candidates", msg)
	}
	wantFault(t, err, fault.Invalid, "ambiguous_node")
}

func TestManyCandidatesAreBounded(t *testing.T) {
	w := newWorld(t, Config{})
	for range 13 {
		w.enrol(t, w.acme, "mac", nil)
	}
	_, _, err := w.ResolveNode(t.Context(), admin(w.acme), "mac")
	amb, ok := errors.AsType[*Ambiguous](err)
	if !ok || len(amb.Candidates) != maxCandidates || !amb.More {
		t.Fatalf("got %v", err)
	}
}

func TestIdentityAndRevocation(t *testing.T) {
	w := newWorld(t, Config{})
	labels := map[string]string{"role": "web"}
	node := w.enrol(t, w.acme, "n1", labels)
	want := Identity{Tenant: w.acme.ID, Slug: "acme", Node: node, Name: "n1", Labels: labels}
	check := func() {
		t.Helper()
		got, err := w.NodeIdentity(t.Context(), w.acme.ID, node)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Fatalf("%v\n%s", err, diff)
		}
	}
	check()
	_, err := w.NodeIdentity(t.Context(), w.globex.ID, node)
	wantFault(t, err, fault.NotFound, "unknown_node")

	wantFault(t, w.RevokeNode(t.Context(), admin(w.globex), node), fault.NotFound, "unknown_node")
	wantFault(t, w.RevokeNode(t.Context(), limited(w.acme, map[string]string{"role": "db"}), node), fault.NotFound, "unknown_node")
	reader := admin(w.acme)
	reader.Granted = tenants.Read | tenants.Act
	wantFault(t, w.RevokeNode(t.Context(), reader, node), fault.Denied, "insufficient_scope")
	check()
	for range 2 { // twice is once
		if err := w.RevokeNode(t.Context(), limited(w.acme, labels), node); err != nil {
			t.Fatal(err)
		}
	}
	want.Revoked = true
	check()
	if err := w.SetSuspended(t.Context(), "acme", true); err != nil {
		t.Fatal(err)
	}
	want.Suspended = true
	check()
}

// TestGone: what is asked is the state. When it came about, by whose clock,
// does not matter.
func TestGone(t *testing.T) {
	now := time.Now().Truncate(time.Microsecond)
	w := newWorld(t, Config{Now: func() time.Time { return now }})
	a1, a2, g1 := w.enrol(t, w.acme, "a1", nil), w.enrol(t, w.acme, "a2", nil), w.enrol(t, w.globex, "g1", nil)
	both := map[tenants.TenantID][]tenants.NodeID{w.acme.ID: {a1, a2}, w.globex.ID: {g1}}
	acme := map[tenants.TenantID][]tenants.NodeID{w.acme.ID: {a1, a2}}
	less := func(a, b tenants.NodeID) bool { return a.String() < b.String() }
	check := func(live map[tenants.TenantID][]tenants.NodeID, wantNodes []tenants.NodeID, wantClosed []tenants.TenantID) {
		t.Helper()
		nodes, closed, err := w.Gone(t.Context(), live)
		if err != nil || !cmp.Equal(nodes, wantNodes, cmpopts.EquateEmpty(), cmpopts.SortSlices(less)) || !cmp.Equal(closed, wantClosed, cmpopts.EquateEmpty()) {
			t.Errorf("%v, %v, %v; want %v, %v", nodes, closed, err, wantNodes, wantClosed)
		}
	}
	check(both, nil, nil)
	now = now.Add(-24 * time.Hour) // a clock that is behind
	if err := w.RevokeNode(t.Context(), admin(w.acme), a1); err != nil {
		t.Fatal(err)
	}
	now = now.Add(48 * time.Hour) // and one that is ahead
	if err := w.RevokeNode(t.Context(), admin(w.globex), g1); err != nil {
		t.Fatal(err)
	}
	check(both, []tenants.NodeID{a1, g1}, nil)
	check(acme, []tenants.NodeID{a1}, nil)
	check(map[tenants.TenantID][]tenants.NodeID{w.acme.ID: {a2, g1}}, nil, nil) // another tenant's node is none
	if err := w.SetSuspended(t.Context(), "globex", true); err != nil {
		t.Fatal(err)
	}
	check(both, []tenants.NodeID{a1, g1}, []tenants.TenantID{w.globex.ID})
	check(acme, []tenants.NodeID{a1}, nil)
	check(nil, nil, nil)
}

func TestRecordFacts(t *testing.T) {
	w := newWorld(t, Config{})
	node, other := w.enrol(t, w.acme, "n1", nil), w.enrol(t, w.globex, "n1", nil)
	sc := tenants.Scope{Tenant: w.acme.ID, Principal: tenants.Principal{Kind: tenants.NodePrincipal, ID: node.String()}}
	if err := w.RecordFacts(t.Context(), sc, NodeFacts{Name: "renamed", BootID: "b2", Kernel: "6.2\x00\xff", AgentVersion: strings.Repeat("v", 400_000)}); err != nil {
		t.Fatal(err)
	}
	read := func(tn Tenant, id tenants.NodeID) string {
		t.Helper()
		rows, err := tenantdb.Query(t.Context(), w.db, tn.ID, `select name || ' ' || boot_id || ' ' || kernel || ' ' || length(agent_version) from node where tenant_id = $1 and node_id = $2`, []any{tn.ID, id}, scanText)
		if err != nil || len(rows) != 1 {
			t.Fatal(rows, err)
		}
		return rows[0]
	}
	if got, want := read(w.acme, node), "n1 b2 6.2\\u0000\uFFFD\\xff 128"; got != want {
		t.Errorf("facts %q, want %q", got, want)
	}
	if got, want := read(w.globex, other), "n1 b1 6.1 1"; got != want {
		t.Errorf("the other tenant's facts became %q, want %q", got, want)
	}
	wantFault(t, w.RecordFacts(t.Context(), admin(w.acme), NodeFacts{}), fault.Denied, "not_a_node")
}

func TestCAs(t *testing.T) {
	w := newWorld(t, Config{})
	at := time.Now().UTC().Truncate(time.Second)
	rec := func(n int) tenants.CARecord {
		return tenants.CARecord{ID: fmt.Sprintf("00000000-0000-7000-8000-%012d", n), Cert: []byte{byte(n)}, SealedKey: []byte{9}, NotBefore: at, NotAfter: at.Add(time.Hour)}
	}
	store := func(tn Tenant, r tenants.CARecord, after string, want bool) {
		t.Helper()
		if stored, err := w.StoreCA(t.Context(), tn.ID, r, after); err != nil || stored != want {
			t.Fatalf("store %s after %q: %v, %v", r.ID, after, stored, err)
		}
	}
	store(w.acme, rec(1), "", true)
	store(w.acme, rec(2), "", false) // another replica was first
	store(w.acme, rec(3), rec(1).ID, true)
	store(w.acme, rec(4), rec(1).ID, false)
	store(w.globex, rec(5), "", true)
	got, err := w.LoadCAs(t.Context(), w.acme.ID)
	if diff := cmp.Diff([]tenants.CARecord{rec(1), rec(3)}, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if none, err := w.LoadCAs(t.Context(), tenants.NewTenantID()); err != nil || len(none) != 0 {
		t.Errorf("unknown tenant: %v, %v", none, err)
	}

	// Many replicas at once make one.
	third, err := w.CreateTenant(t.Context(), "third", "")
	if err != nil {
		t.Fatal(err)
	}
	won := make(chan bool, 8)
	for n := range cap(won) {
		go func() {
			stored, err := w.StoreCA(context.Background(), third.ID, rec(10+n), "")
			won <- stored && err == nil
		}()
	}
	wins := 0
	for range cap(won) {
		if <-won {
			wins++
		}
	}
	if wins != 1 {
		t.Errorf("%d replicas made a first authority, want 1", wins)
	}
}

// Package conformance_test runs the official conformance suites against the
// real MCP handler: its own authentication, host and origin checks, real
// services on a real database, and the fixtures that the suites ask for as the
// only addition. Start reading at TestSuites.
package conformance_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/mcp"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/directory"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
	"github.com/telltale-dev/telltale/tenants/tasks"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// world is the server under test and a door to it that needs no token.
type world struct {
	server *httptest.Server // as people reach it
	door   *httptest.Server // the same with an operator token added
	fleet  *changingFleet
}

// changingFleet is a fleet whose nodes run all components, or all but the
// last. A suite changes it with a fixture: the real one is looked at every
// three seconds, and the suite waits less.
type changingFleet struct {
	names   []string
	changes atomic.Uint64
}

func (f *changingFleet) Components(context.Context, tenants.TenantID) (list []string, known bool, err error) {
	return f.names[:len(f.names)-int(f.changes.Load()%2)], true, nil
}

func start(t *testing.T) *world {
	t.Helper()
	w := &world{fleet: &changingFleet{}}
	log := slog.New(slog.DiscardHandler)
	db := dbtest.New(t)
	reg := &inspector.Registry{}
	all.Register(reg)
	for _, c := range reg.Components() {
		w.fleet.names = append(w.fleet.names, c.Name)
	}
	dir, acc := directory.New(db, log, directory.Config{}), access.New(db, log, access.Config{})
	nodes := fleet.New(db, reg, fleet.Config{Replica: "r1"}, log)
	windows := metrics.New(db, reg, metrics.Config{}, log)
	found := events.New(db, reg, dir, windows, nil, events.Config{}, log)
	work := tasks.New(db, reg, nodes, nil, tasks.Config{Replica: "r1"}, log)
	must(t, windows.EnsurePartitions(t.Context()))
	record := audit.New(db, audit.Config{Replica: "r1"}, log)
	run(t, found.Run, work.Run, record.Run)

	tenant, err := dir.CreateTenant(t.Context(), "acme", "The acme company")
	must(t, err)
	secret, _, err := acc.CreateToken(t.Context(), auth.Local(tenant, "test", tenants.Admin), access.TokenSpec{Name: "conformance", Scopes: tenants.Read | tenants.Diagnose})
	must(t, err)

	w.door = httptest.NewUnstartedServer(nil)
	site, err := auth.NewSite(auth.SiteConfig{PublicURL: "http://" + w.door.Listener.Addr().String()})
	must(t, err)
	challenger := auth.NewChallenger(site, dir, nil, log)
	gate := auth.NewGate(site, auth.NewVerifier(dir, auth.NewOperatorTokens(acc, nil, auth.OperatorConfig{})), nil, challenger)
	fence := auth.NewFence(site)
	limits := auth.NewLimiter(auth.LimitConfig{Policy: func(context.Context, tenants.TenantID) tenants.Policy { return tenants.Policy{} }})
	h := fence.Hosts(fence.Origins(gate.Bearer(mcp.New(mcp.Config{Challenger: challenger, Tenants: dir, Log: log, Extra: w.register, ListenLook: 20 * time.Millisecond,
		Limits: limits, Auditor: record, ClientAddr: site.ClientAddr,
		Services: mcp.Services{Fleet: nodes, Metrics: windows, Events: found, Tasks: work, Running: w.fleet, Registry: reg}}))))
	mux := http.NewServeMux()
	mux.Handle("/t/{tenant}/mcp", h)
	mux.Handle("/t/{tenant}/mcp/", h)
	w.server = httptest.NewServer(mux)
	t.Cleanup(w.server.Close)
	w.door.Config.Handler = withToken(t, w.server.URL, secret)
	w.door.Start()
	t.Cleanup(w.door.Close)
	return w
}

// withToken passes everything on, Host and Origin as they came, and adds the
// one header that the suites have no option for.
func withToken(t *testing.T, to, secret string) http.Handler {
	target, err := url.Parse(to)
	must(t, err)
	return &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+secret)
		if r.Out.Body != nil { // whole first: an answer faster than the last look at the body would be cut
			body, err := io.ReadAll(r.Out.Body)
			if err != nil {
				body = nil // the client is gone
			}
			r.Out.Body = io.NopCloser(bytes.NewReader(body))
		}
	}}
}

func (w *world) url() string { return w.door.URL + "/t/acme/mcp" }

// run runs parts until the test ends.
func run(t *testing.T, parts ...func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, part := range parts {
		wg.Go(func() { _ = part(ctx) })
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

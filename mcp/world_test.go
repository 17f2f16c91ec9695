package mcp

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

var update = flag.Bool("update", false, "write golden files anew")

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// stub answers from tables; it is for the protocol's edge and for goldens. The
// isolation of tenants is tested with the real services.
type stub struct {
	nodes   []fleet.Node
	summary func(metrics.SummaryQuery) (metrics.Summary, error)
	query   func(metrics.Query) (metrics.Result, error)
}

func ptr[T any](v T) *T { return &v }

func (s stub) Overview(context.Context, tenants.Scope) (fleet.Overview, error) {
	o := fleet.Overview{At: noon, Nodes: len(s.nodes), ByStatus: map[fleet.Status]int{}, FreshnessS: ptr(2.5),
		Coverage: tenants.Coverage{Asked: len(s.nodes), Answered: len(s.nodes), NotCovered: []tenants.NotCovered{}}}
	for _, n := range s.nodes {
		o.ByStatus[n.Status]++
	}
	return o, nil
}

func (s stub) List(_ context.Context, _ tenants.Scope, q fleet.ListQuery) (fleet.Page, error) {
	limit, _ := tenants.ClampRows(q.Limit)
	start := 0
	if q.Cursor != "" {
		if _, err := fmt.Sscanf(q.Cursor, "c%d", &start); err != nil {
			return fleet.Page{}, fault.Bad("cursor", "not a cursor of this list").Do("start again without it")
		}
	}
	end := min(start+limit, len(s.nodes))
	p := fleet.Page{Nodes: s.nodes[start:end]}
	if end < len(s.nodes) {
		p.NextCursor = fmt.Sprintf("c%d", end)
		p.Truncated = &tenants.Truncated{Returned: end - start, Total: ptr(len(s.nodes)), NextCursor: p.NextCursor}
	}
	return p, nil
}

func (s stub) Get(_ context.Context, _ tenants.Scope, ref string) (fleet.NodeDetail, error) {
	for _, n := range s.nodes {
		if n.Node == ref || n.Name == ref {
			return fleet.NodeDetail{Node: n, Headlines: []fleet.HeadlineValue{}, Capabilities: []fleet.Capability{
				{Component: "network", Signal: "retransmits", Level: "full", Source: "bpf", Since: noon},
				{Component: "network", Signal: "drops", Level: "off", Reason: "no BTF\non this kernel", Since: noon},
			}}, nil
		}
	}
	return fleet.NodeDetail{}, fault.Newf(fault.NotFound, "unknown_node", "no node %.80q", ref).Do("list the nodes to see their ids and names")
}

func (s stub) Summary(_ context.Context, _ tenants.Scope, q metrics.SummaryQuery) (metrics.Summary, error) {
	if s.summary != nil {
		return s.summary(q)
	}
	return metrics.Summary{Module: q.Module, Window: tenants.Window{From: noon.Add(-5 * time.Minute), To: noon}, FreshnessS: ptr(3.0),
		Coverage: tenants.Coverage{Asked: 2, Answered: 1, NotCovered: []tenants.NotCovered{{Node: "n2", Name: "db2", Reason: "offline"}}},
		Received: 30, Expected: 60, Samples: 1200, Metrics: []metrics.MetricSummary{
			{Metric: "network.rx_bytes", Kind: "delta", Unit: "bytes", Help: "bytes in", Stats: metrics.Stats{Sum: ptr(uint64(1 << 30)), RatePerS: ptr(3.5e6), Max: ptr(9e6), CoveredS: 300},
				Rows: []metrics.LabelRow{{Labels: map[string]string{"interface": "eth0\u202e"}, Stats: metrics.Stats{RatePerS: ptr(3.4e6), CoveredS: 300}},
					{Labels: map[string]string{"interface": "lo"}, Stats: metrics.Stats{RatePerS: ptr(1e5), CoveredS: 300}}}},
			{Metric: "network.drops", Kind: "delta", Unit: "count", Reason: "off"},
		}}, nil
}

func (s stub) Query(_ context.Context, _ tenants.Scope, q metrics.Query) (metrics.Result, error) {
	if s.query != nil {
		return s.query(q)
	}
	return metrics.Result{Window: tenants.Window{From: noon.Add(-time.Minute), To: noon}, StepS: 10, FreshnessS: ptr(1.0), Coverage: tenants.Coverage{Asked: 1, Answered: 1, NotCovered: []tenants.NotCovered{}},
		Series: []metrics.Series{{Metric: q.Metrics[0], Kind: "delta", Unit: "count", Node: "n1", Name: "db1", Labels: map[string]string{}, Stat: "rate_per_s", Start: noon.Add(-time.Minute),
			Points: []*float64{ptr(1.0), ptr(2.0), nil, ptr(4.123456789), ptr(5.0), ptr(0.0)}}}}, nil
}

func stubNodes(n int) []fleet.Node {
	out := make([]fleet.Node, n)
	for i := range out {
		status := fleet.Online
		if i%10 == 9 {
			status = fleet.Offline
		}
		out[i] = fleet.Node{Node: fmt.Sprintf("0195a000-0000-7000-8000-%012d", i), Name: fmt.Sprintf("node-%03d", i), Status: status, Labels: map[string]string{"role": "web"},
			LastSeen: ptr(noon), FreshnessS: ptr(1.5), AgentVersion: "1.0.0", SkewMS: ptr(int64(12)), EnrolledAt: noon}
	}
	return out
}

func registry() *inspector.Registry {
	r := &inspector.Registry{}
	for _, name := range []string{"network", "storage", "process", "host"} {
		r.Add(inspector.Component{Name: name, Title: name, Metrics: []inspector.Metric{{Name: name + ".events", Kind: inspector.Delta, Unit: inspector.Count, Help: "for tests"}}})
	}
	return r
}

// switches is a tenant with settings.
type switches map[string]tenants.Tenant

func (s switches) TenantBySlug(_ context.Context, slug string) (tenants.Tenant, error) {
	return s[slug], nil
}

// challenger notes what a step-up asked for.
type challenger struct{ need tenants.Scopes }

func (c *challenger) InsufficientScope(w http.ResponseWriter, _ *http.Request, s tenants.Scope, need tenants.Scopes) {
	c.need = need
	w.Header().Set("WWW-Authenticate", `Bearer error="insufficient_scope", scope="`+(s.Granted|need).String()+`"`)
	w.WriteHeader(http.StatusForbidden)
}

// logBuffer is a log that tests read.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type world struct {
	*httptest.Server
	h      *Handler
	log    *logBuffer
	tenant tenants.TenantID // acme
	other  tenants.TenantID // globex
	challenger
}

// start serves a handler over stubs. The bearer lists the caller's scopes, for
// example "read,act"; "~act" after them lists what it could obtain in place of
// everything, "@globex" makes it a caller of the other tenant, and "#db" one who
// sees only the nodes with that role.
func start(t testing.TB, s stub, change func(*Config)) *world {
	t.Helper()
	w := &world{log: &logBuffer{}, tenant: tenants.NewTenantID(), other: tenants.NewTenantID()}
	cfg := Config{Challenger: &w.challenger, Tenants: switches{}, Services: Services{Fleet: s, Metrics: s, Registry: registry()},
		Log: slog.New(slog.NewJSONHandler(w.log, nil)), Version: "1.2.3", Now: func() time.Time { return noon }}
	if change != nil {
		change(&cfg)
	}
	for _, s := range []any{cfg.Services.Tasks, cfg.Services.Events, cfg.Services.Explain} {
		if f, ok := s.(interface {
			own(acme, globex tenants.TenantID)
		}); ok {
			f.own(w.tenant, w.other)
		}
	}
	w.h = New(cfg)
	w.Server = httptest.NewServer(w.signIn(w.h))
	t.Cleanup(w.Close)
	return w
}

func (w *world) signIn(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok {
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		bearer, role, limited := strings.Cut(bearer, "#")
		bearer, slug, foreign := strings.Cut(bearer, "@")
		bearer, obtainable, capped := strings.Cut(bearer, "~")
		scope := tenants.Scope{Tenant: w.tenant, Slug: "acme", Granted: scopesOf(bearer), Obtainable: tenants.EveryScope, Principal: tenants.Principal{Kind: tenants.TokenPrincipal, ID: "t1"}}
		if capped {
			scope.Obtainable = scopesOf(obtainable)
		}
		if foreign {
			scope.Tenant, scope.Slug, scope.Principal.ID = w.other, slug, "t2"
		}
		if limited {
			scope.Nodes.Labels = map[string]string{"role": role}
			scope.Principal.ID += role
		}
		next.ServeHTTP(rw, r.WithContext(auth.WithScope(r.Context(), scope)))
	})
}

func scopesOf(list string) tenants.Scopes {
	words := []string{}
	for s := range strings.SplitSeq(list, ",") {
		words = append(words, "telltale:"+s)
	}
	granted, _ := tenants.ParseScopes(words)
	return granted
}

// reply is one HTTP answer.
type reply struct {
	status int
	header http.Header
	body   string
}

// rpc is the JSON-RPC message of the answer, whatever its framing.
func (r reply) rpc() string {
	if strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream") {
		for l := range strings.SplitSeq(r.body, "\n") {
			if d, ok := strings.CutPrefix(l, "data: "); ok {
				return d
			}
		}
	}
	return strings.TrimSpace(r.body)
}

func (w *world) post(t *testing.T, bearer, query, body string, header ...string) reply {
	t.Helper()
	return send(t, http.MethodPost, w.URL+"/t/acme/mcp"+query, bearer, body, header...)
}

func send(t *testing.T, method, url, bearer, body string, header ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, string(raw)}
}

// bearerTransport adds a token.
type bearerTransport string

func (b bearerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// connect makes a real client; version "" lets it choose.
func connect(t *testing.T, url, bearer, version string) *sdk.ClientSession {
	t.Helper()
	c := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	s, err := c.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: bearerTransport(bearer)}, MaxRetries: -1},
		&sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func textOf(t *testing.T, res *sdk.CallToolResult) string {
	t.Helper()
	if len(res.Content) != 1 {
		t.Fatalf("want one block of content, got %d", len(res.Content))
	}
	tc, ok := res.Content[0].(*sdk.TextContent)
	if !ok {
		t.Fatalf("content is %T", res.Content[0])
	}
	return tc.Text
}

// golden compares with a file of testdata, which -update writes.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s differs (go test ./mcp -update accepts it):\n%s", name, d)
	}
}

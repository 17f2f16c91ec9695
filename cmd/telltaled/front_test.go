package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// frontStores holds one tenant and one token in memory: what the front costs
// without a database.
type frontStores struct {
	tenant tenants.Tenant
	token  tenants.OperatorToken
}

func (f *frontStores) TenantBySlug(_ context.Context, slug string) (tenants.Tenant, error) {
	if slug != f.tenant.Slug {
		return tenants.Tenant{}, fault.New(fault.NotFound, "none", "none")
	}
	return f.tenant, nil
}

func (f *frontStores) TokenByID(_ context.Context, id string) (tenants.OperatorToken, error) {
	if id != f.token.ID {
		return tenants.OperatorToken{}, fault.New(fault.NotFound, "none", "none")
	}
	return f.token, nil
}

// newFront is the real chain before tools, and a request that passes it.
func newFront(tb testing.TB, tools http.Handler) (h http.Handler, request func(body string) string) {
	tb.Helper()
	site, err := auth.NewSite(auth.SiteConfig{PublicURL: "http://127.0.0.1:8400"})
	if err != nil {
		tb.Fatal(err)
	}
	text, secret := tenants.MintSecret(tenants.OperatorSecret)
	stores := &frontStores{tenant: tenants.Tenant{ID: tenants.NewTenantID(), Slug: "acme"}}
	used := time.Now()
	stores.token = tenants.OperatorToken{ID: secret.ID, Hash: secret.Hash, Tenant: stores.tenant.ID, Name: "front", Scopes: tenants.Read, LastUsedAt: &used}
	log := slog.New(slog.DiscardHandler)
	d := door{
		fence: auth.NewFence(site), verifier: auth.NewVerifier(stores, auth.NewOperatorTokens(stores, nil, auth.OperatorConfig{})),
		challenger: auth.NewChallenger(site, stores, nil, log), limiter: auth.NewLimiter(auth.LimitConfig{}),
	}
	d.metadata = auth.NewMetadata(site, stores, nil)
	d.gate = auth.NewGate(site, d.verifier, nil, d.challenger)
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sc, ok := auth.ScopeFrom(r.Context())
		if !ok {
			tb.Error("no scope")
		}
		d.limiter.Take(r.Context(), sc).SetHeaders(w.Header())
		auth.Reference(w)
		tools.ServeHTTP(w, r)
	})
	h = bodyInTime(d.routes(counted, http.NotFoundHandler()), bodyWithin)
	return h, func(body string) string {
		return "POST /t/acme/mcp HTTP/1.1\r\nHost: 127.0.0.1:8400\r\nUser-Agent: front\r\nContent-Length: " + strconv.Itoa(len(body)) +
			"\r\nAccept: application/json, text/event-stream\r\nAccept-Encoding: identity\r\nAuthorization: Bearer " + text +
			"\r\nContent-Type: application/json\r\nMcp-Method: tools/call\r\nMcp-Name: get_node\r\nMcp-Protocol-Version: 2026-07-28\r\n\r\n" + body
	}
}

var frontBody = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_node"}}` + strings.Repeat(" ", 200)

// plainWriter takes an answer as the server's own writer does, without a connection.
type plainWriter struct {
	header http.Header
	status int
}

func (p *plainWriter) Header() http.Header { return p.header }

func (p *plainWriter) WriteHeader(status int) { p.status = status }

func (p *plainWriter) Write(b []byte) (int, error) { return len(b), nil }

func (p *plainWriter) SetReadDeadline(time.Time) error { return nil }

func (p *plainWriter) SetWriteDeadline(time.Time) error { return nil }

// The short way to the tools and the router's lead to the same guards, and
// what is spelt in any other way is left to the router.
func TestWaysToTheTools(t *testing.T) {
	for path, want := range map[string]string{
		"/t/acme/mcp": "acme", "/t/a%63me/mcp": "", "/t/acme/mcp?x=/t/b/mcp": "acme", "/t/acme/mcp/": "", "/t/acme/mcp/x": "", "/t//mcp": "", "/t/mcp": "",
		"/t/acme/api/v1/nodes": "", "/t/ac%2Fme/mcp": "", "/t/acme%2Fmcp": "", "/x/t/acme/mcp": "", "/": "",
	} {
		u, err := url.Parse(path)
		if err != nil {
			t.Fatal(err)
		}
		if slug, ok := toolsOf(u); ok != (want != "") || ok && slug != want {
			t.Errorf("%s: %q, %v", path, slug, ok)
		}
	}
	h, request := newFront(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sc, _ := auth.ScopeFrom(r.Context())
		fmt.Fprint(w, sc.Slug+" "+r.PathValue("tenant"))
	}))
	ask := func(path, without string) *httptest.ResponseRecorder {
		text := strings.Replace(strings.Replace(request(""), " /t/acme/mcp ", " "+path+" ", 1), without, "X-Other: ", 1)
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for _, path := range []string{"/t/acme/mcp", "/t/acme/mcp/"} {
		if w := ask(path, "\x00"); w.Code != 200 || w.Body.String() != "acme acme" {
			t.Errorf("%s: %d %q", path, w.Code, w.Body)
		}
		if w := ask(path, "Authorization: "); w.Code != 401 || fmt.Sprint(w.Header()["Vary"]) != "[Origin Authorization]" {
			t.Errorf("%s without a token: %d %v", path, w.Code, w.Header())
		}
		if w := ask(path, "Host: "); w.Code != 421 {
			t.Errorf("%s without a host: %d", path, w.Code)
		}
	}
	for _, path := range []string{"/t/globex/mcp", "/t/x/mcp/", "/t/%61cme/mcp"} {
		if w := ask(path, "\x00"); w.Code != 401 {
			t.Errorf("%s with acme's token: %d", path, w.Code)
		}
	}
}

// What one authenticated request costs before it reaches a tool.
func BenchmarkFront(b *testing.B) {
	h, request := newFront(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusOK) }))
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(request(""))))
	if err != nil {
		b.Fatal(err)
	}
	r.RemoteAddr = "127.0.0.1:40000"
	w := &plainWriter{header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header)
		h.ServeHTTP(w, r)
		if w.status != http.StatusOK {
			b.Fatal(w.status)
		}
	}
}

// What one request and its answer cost the process over a real connection, the
// asking side included: it writes once and reads until the answer is whole.
func BenchmarkFrontWire(b *testing.B) {
	for _, size := range []int{600, 9_000} {
		for _, framing := range []string{"length", "chunks"} {
			b.Run(fmt.Sprintf("%d/%s", size, framing), func(b *testing.B) { frontWire(b, size, framing == "length") })
		}
	}
}

func frontWire(b *testing.B, size int, length bool) {
	answer := []byte(strings.Repeat("x", size))
	h, request := newFront(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			b.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		if length {
			w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		}
		_, _ = w.Write(answer)
		if !length {
			_ = http.NewResponseController(w).Flush()
		}
	}))
	l, err := listen(b.Context(), "--http", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- httpPart("front", l, h, nil, slog.New(slog.DiscardHandler)).run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil && !errors.Is(err, http.ErrServerClosed) {
			b.Error(err)
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	raw, in := []byte(request(frontBody)), bufio.NewReaderSize(c, 64<<10)
	began := ownTime()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(raw); err != nil {
			b.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != int64(size) || resp.StatusCode != http.StatusOK {
			b.Fatal(resp.Status, n, err)
		}
	}
	b.ReportMetric(float64(ownTime()-began)/float64(b.N), "cpu-ns/op")
}

// ownTime is the processor time of this process.
func ownTime() time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

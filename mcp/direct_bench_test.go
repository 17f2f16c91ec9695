package mcp

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
)

// sink takes an answer and keeps nothing.
type sink struct {
	head   http.Header
	status int
	size   int
}

func (s *sink) Header() http.Header         { return s.head }
func (s *sink) WriteHeader(status int)      { s.status = status }
func (s *sink) Write(p []byte) (int, error) { s.size += len(p); return len(p), nil }

// benchBoth asks one question both ways, in both eras.
func benchBoth(b *testing.B, method, params string, header ...string) {
	for _, way := range []string{"direct", "sdk"} {
		for _, version := range []string{modernVersion, lastLegacy} {
			b.Run(way+"/"+version, func(b *testing.B) {
				s := stub{nodes: stubNodes(20)}
				backend := newBackend()
				cfg := Config{Challenger: &challenger{}, Tenants: switches{}, Services: Services{Fleet: s, Metrics: s, Registry: registry()}, Log: slog.New(slog.NewJSONHandler(io.Discard, nil))}
				withEverything(backend)(&cfg)
				h := New(cfg)
				h.sdkOnly = way == "sdk"
				scope := tenants.Scope{Tenant: tenants.NewTenantID(), Slug: "acme", Granted: tenants.Read | tenants.Diagnose, Principal: tenants.Principal{Kind: tenants.TokenPrincipal, ID: "t1"}}
				backend.own(scope.Tenant, tenants.NewTenantID())
				body := []byte(`{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{` + params + `}}`)
				head := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, versionHeader: {version}}
				if version == modernVersion {
					full, extra := modernMeta(method, params)
					body = []byte(full)
					for i := 0; i+1 < len(extra); i += 2 {
						head.Set(extra[i], extra[i+1])
					}
					for i := 0; i+1 < len(header); i += 2 {
						head.Set(header[i], header[i+1])
					}
				}
				ctx := auth.WithScope(b.Context(), scope)
				b.ReportAllocs()
				for b.Loop() {
					req := httptest.NewRequest(http.MethodPost, "/t/acme/mcp", bytes.NewReader(body)).WithContext(ctx)
					req.Header = head
					w := &sink{head: http.Header{}}
					h.ServeHTTP(w, req)
					if w.status != http.StatusOK || w.size < 1000 {
						b.Fatal(w.status, w.size)
					}
				}
			})
		}
	}
}

func BenchmarkToolsList(b *testing.B) { benchBoth(b, "tools/list", "") }

func BenchmarkReadCall(b *testing.B) {
	benchBoth(b, "tools/call", `"name":"list_nodes","arguments":{"limit":20}`, "Mcp-Name", "list_nodes")
}

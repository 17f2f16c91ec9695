package e2e_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// roundRobin sends each request to the next server, and to the other one when
// that cannot be reached, as a load balancer does.
type roundRobin struct {
	servers []string        // host:port
	wire    *http.Transport // its own: the end of another test's server closes what the shared one holds
	turn    atomic.Uint64
	served  []atomic.Uint64
}

func (r *roundRobin) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	var err error
	if req.Body != nil {
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
	}
	turn := r.turn.Add(1)
	var res *http.Response
	for try := range len(r.servers) {
		i := (int(turn) + try) % len(r.servers)
		out := req.Clone(req.Context())
		out.URL.Host, out.Host = r.servers[i], r.servers[i]
		out.Body = io.NopCloser(bytes.NewReader(body))
		if res, err = r.wire.RoundTrip(out); err == nil {
			r.served[i].Add(1)
			return res, nil
		}
	}
	return nil, err
}

// TestReplicasAreInterchangeable holds one conversation in each era with two
// servers behind a balancer that alternates, while each in turn dies and comes
// back: no call fails, and no server remembers anything of another.
func TestReplicasAreInterchangeable(t *testing.T) {
	t.Parallel()
	a := newServer(t, dbtest.DSN(t))
	a.start()
	b := a.twin()
	b.start()
	acme := a.tenant("acme", "role=web")
	both := &roundRobin{servers: []string{a.http, b.http}, wire: &http.Transport{}, served: make([]atomic.Uint64, 2)}
	defer both.wire.CloseIdleConnections()
	door := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Transport: both, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: a.http}) }})
	defer door.Close()
	address := door.URL + "/t/acme/mcp"

	wire := &http.Transport{}
	defer wire.CloseIdleConnections()
	talks := map[string]*sdk.ClientSession{}
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		c := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil)
		s, err := c.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: address, HTTPClient: &http.Client{Transport: withBearer{wire, acme.Tokens["read"]}}, MaxRetries: -1},
			&sdk.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		talks[version] = s
	}
	speak := func(when string) {
		t.Helper()
		for version, s := range talks {
			for range 4 {
				res, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "list_nodes", Arguments: map[string]any{}})
				if err != nil || res.IsError {
					t.Fatalf("%s, %s: %v %+v", version, when, err, res)
				}
			}
			if _, err := s.ListTools(t.Context(), nil); err != nil {
				t.Fatalf("%s, %s: %v", version, when, err)
			}
		}
	}
	speak("both up")
	for name, s := range map[string]*server{"left": a, "right": b} {
		s.kill()
		speak(name + " dead")
		s.start()
		speak(name + " back")
	}
	if l, r := both.served[0].Load(), both.served[1].Load(); l < 10 || r < 10 {
		t.Errorf("the servers answered %d and %d", l, r)
	}
	// A session that some other server might have known is nobody's business.
	for i, s := range []*server{a, b} {
		got := call(t, http.MethodPost, s.at(acme).MCPURL, acme.Tokens["read"], `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`,
			"Content-Type", "application/json", "Accept", "application/json, text/event-stream", "Mcp-Session-Id", fmt.Sprintf("of-server-%d", 1-i))
		if got.status != http.StatusOK || !strings.Contains(got.body, "list_nodes") || got.header.Get("Mcp-Session-Id") != "" {
			t.Errorf("with an unknown session: %d %.200s", got.status, got.body)
		}
	}
}

// withBearer adds a token to every request.
type withBearer struct {
	wire  http.RoundTripper
	token string
}

func (b withBearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.wire.RoundTrip(r)
}

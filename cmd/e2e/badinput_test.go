package e2e_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// badRequests sends what no honest client sends to MCP and to REST, many times,
// and looks at the status of each answer and at the server's memory.
func badRequests(t *testing.T, s *server) {
	x := s.tenant("grit", "team=grit")
	mint := func(name string) string {
		return s.admin("token", "create", "--tenant", "grit", "--name", name, "--scopes", "read,diagnose,admin")
	}
	good := mint("zero")
	mcp, nodes, tasks := "/t/grit/mcp", "/t/grit/api/v1/nodes", "/t/grit/api/v1/tasks"
	const call1 = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	text := func(s string) func() io.Reader { return func() io.Reader { return strings.NewReader(s) } }
	auth := []string{"Authorization", "Bearer " + good} // its token is another in each round: each has a quota
	with := func(more ...string) []string { return append(append([]string{}, auth...), more...) }
	const tooLong = 1<<20 + 1
	huge := strings.Repeat("A", 10<<20)
	deep := strings.Repeat("[", 100_000)
	list := []struct {
		what       string
		header     []string
		query      string
		mcpBody    func() io.Reader
		taskBody   func() io.Reader
		mcp, rest  int
		repetition int
	}{
		{what: "two Authorization headers", header: with(auth...), mcpBody: text(call1), mcp: 400, rest: 400, repetition: 20},
		{what: "a token in the query", query: "?access_token=" + good, mcpBody: text(call1), mcp: 401, rest: 401, repetition: 20},
		{what: "a token of 60 kB", header: []string{"Authorization", "Bearer tt_" + strings.Repeat("A", 60_000)}, mcpBody: text(call1), mcp: 401, rest: 401, repetition: 20},
		{what: "a token of 10 MB", header: []string{"Authorization", "Bearer " + huge}, mcpBody: text(call1), mcp: 431, rest: 431, repetition: 4},
		{what: "a member twice", header: auth, mcpBody: text(`{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call"}`), taskBody: text(`{"kind":"trace_slow_io","kind":"x","node":"n"}`), mcp: 400, rest: 400, repetition: 20},
		{what: "a batch", header: auth, mcpBody: text("[" + call1 + "," + call1 + "]"), taskBody: text(`[{"kind":"trace_slow_io"}]`), mcp: 400, rest: 400, repetition: 20},
		{what: "1 MiB and a byte", header: auth, mcpBody: text(strings.Repeat(" ", tooLong)), taskBody: text(strings.Repeat(" ", tooLong)), mcp: 413, rest: 413, repetition: 20},
		{what: "1 MiB and a byte, chunked", header: auth, mcpBody: func() io.Reader { return io.LimitReader(zeroes{}, tooLong) }, taskBody: func() io.Reader { return io.LimitReader(zeroes{}, tooLong) }, mcp: 413, rest: 413, repetition: 10},
		{what: "deep nesting", header: auth, mcpBody: text(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"x":` + deep), taskBody: text(`{"kind":"trace_slow_io","node":"n","arguments":{"x":` + deep), mcp: 400, rest: 400, repetition: 20},
		{what: "a foreign Host", header: with("Host", "evil.example"), mcpBody: text(call1), mcp: 421, rest: 421, repetition: 5},
		{what: "a foreign Origin", header: with("Origin", "https://evil.example"), mcpBody: text(call1), mcp: 403, rest: 403, repetition: 5},
		{what: "Origin null", header: with("Origin", "null"), mcpBody: text(call1), mcp: 403, rest: 403, repetition: 5},
	}
	send := func(method, path string, header []string, body io.Reader) answer {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.http+path, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
		for i := 0; i+1 < len(header); i += 2 {
			if header[i] == "Host" {
				req.Host = header[i+1]
				continue
			}
			req.Header.Add(header[i], header[i+1])
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil { // the server may hang up on who sends what it will not read
			return answer{body: err.Error()}
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return answer{resp.StatusCode, resp.Header, string(b)}
	}
	everything := func(token string) {
		for _, c := range list {
			for range c.repetition {
				if t.Failed() {
					break
				}
				header := slices.Clone(c.header)
				for i := range header {
					header[i] = strings.Replace(header[i], good, token, 1)
				}
				a := send(http.MethodPost, mcp+c.query, header, c.mcpBody())
				check(t, c.what+" at MCP", a, c.mcp, good)
				if c.taskBody != nil {
					a = send(http.MethodPost, tasks+c.query, header, c.taskBody())
				} else {
					a = send(http.MethodGet, nodes+c.query, header, nil)
				}
				if c.query != "" && a.status == http.StatusBadRequest { // an unknown parameter, had it been let in
					t.Errorf("%s: it was read: %s", c.what, a.body)
				}
				check(t, c.what+" at REST", a, c.rest, good)
			}
		}
	}
	everything(good) // the first time fills pools and caches
	rssBefore, heapBefore := rss(t, s), s.metric("go_memstats_heap_inuse_bytes")
	for _, name := range []string{"one", "two", "three"} {
		everything(mint(name))
	}
	var over sync.WaitGroup
	over.Go(func() {
		slowLoris(t, s.http, "GET /t/grit/api/v1/nodes HTTP/1.1\r\nHost: "+s.http+"\r\nX-A: ", 200, 431, 400, 408)
	})
	over.Go(func() {
		slowLoris(t, s.http, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{", tasks, s.http, good), 100, 408, 504)
	})
	over.Go(func() {
		slowLoris(t, s.http, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: 100000\r\n\r\n{", mcp, s.http, good), 100, 408)
	})
	served := 0
	for stop := time.Now().Add(3 * time.Second); time.Now().Before(stop); served++ { // others are served meanwhile
		if a := knock(t, x.RESTURL+"/overview", x.Tokens["read"]); a.status != http.StatusOK && a.status != http.StatusTooManyRequests {
			t.Errorf("while it is held: %d %s", a.status, a.body)
		}
		<-time.After(20 * time.Millisecond)
	}
	over.Wait()
	var heap float64
	poll(t, 20*time.Second, "the memory given back", func() bool {
		heap = s.metric("go_memstats_heap_inuse_bytes")
		return heap < heapBefore+16<<20
	})
	rssAfter := rss(t, s)
	t.Logf("served %d meanwhile; RSS %d KiB before and %d KiB after, heap in use %.0f KiB and %.0f KiB", served, rssBefore>>10, rssAfter>>10, heapBefore/1024, heap/1024)
	if rssAfter > rssBefore+48<<20 {
		t.Errorf("the process grew by %d MiB", (rssAfter-rssBefore)>>20)
	}
	crossOrigin(t, s, x)
}

// check looks at what every refusal has, besides its status.
func check(t *testing.T, what string, a answer, want int, secret string) {
	t.Helper()
	if a.status != want && (want != http.StatusRequestHeaderFieldsTooLarge || a.status != 0) {
		t.Errorf("%s: %d, want %d: %.300s", what, a.status, want, a.body)
		return
	}
	if strings.Contains(a.body+fmt.Sprint(a.header), secret) || len(a.body) > 4096 {
		t.Errorf("%s: echoes: %.300s", what, a.body)
	}
	if a.status == http.StatusRequestHeaderFieldsTooLarge || a.status == 0 || a.status == http.StatusMisdirectedRequest {
		return // not answered by the tenant's doors
	}
	vary := strings.Join(a.header.Values("Vary"), ",")
	if !strings.HasPrefix(a.header.Get("Cache-Control"), "no-store") || !strings.Contains(vary, "Authorization") && a.status != http.StatusForbidden && a.status != http.StatusRequestEntityTooLarge {
		t.Errorf("%s: may be cached: %v", what, a.header)
	}
	if a.header.Get("Telltale-Reference") == "" {
		t.Errorf("%s: no reference: %v", what, a.header)
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// slowLoris opens connections, begins a request on each, and goes on a byte at
// a time. The server ends every one of them within its time.
func slowLoris(t *testing.T, addr, begin string, n int, statuses ...int) {
	began := time.Now()
	var ended atomic.Int64
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, begin); err != nil {
				return
			}
			var drip sync.WaitGroup
			stop := make(chan struct{})
			drip.Go(func() {
				tick := time.NewTicker(500 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-stop:
						return
					case <-tick.C:
						if _, err := conn.Write([]byte("a")); err != nil {
							return
						}
					}
				}
			})
			defer drip.Wait()
			defer close(stop)
			_ = conn.SetReadDeadline(began.Add(30 * time.Second))
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			switch ne, timeout := err.(net.Error); {
			case timeout && ne.Timeout():
				t.Errorf("held for 30 s: %q", begin[:20])
				return
			case err == nil:
				resp.Body.Close()
				ok := false
				for _, s := range statuses {
					ok = ok || resp.StatusCode == s
				}
				if !ok && resp.StatusCode != http.StatusTooManyRequests {
					t.Errorf("%q… is answered %s", begin[:20], resp.Status)
				}
			}
			ended.Add(1)
		})
	}
	all.Wait()
	if took := time.Since(began); ended.Load() != int64(n) || took > 25*time.Second {
		t.Errorf("%d of %d slow connections ended within %s", ended.Load(), n, took)
	}
}

// crossOrigin asks as a browser's script would.
func crossOrigin(t *testing.T, s *server, x tenant) {
	own := "http://" + s.http
	for _, url := range []string{x.MCPURL, x.RESTURL + "/nodes"} {
		ask := func(origin string) answer {
			return call(t, http.MethodOptions, url, "", "", "Origin", origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,content-type,mcp-protocol-version")
		}
		if a := ask("https://evil.example"); a.status != http.StatusForbidden || a.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("preflight of a stranger at %s: %d %v", url, a.status, a.header)
		}
		a := ask(own)
		if a.status/100 != 2 || a.header.Get("Access-Control-Allow-Origin") != own || !strings.Contains(strings.ToLower(a.header.Get("Access-Control-Allow-Headers")), "authorization") || !strings.Contains(strings.Join(a.header.Values("Vary"), ","), "Origin") {
			t.Errorf("preflight at %s: %d %v", url, a.status, a.header)
		}
	}
	for _, path := range []string{"/.well-known/oauth-protected-resource/t/grit/mcp", "/.well-known/oauth-protected-resource/t/unknown/mcp", "/.well-known/oauth-protected-resource"} {
		if a := call(t, http.MethodGet, own+path, "", "", "Origin", "https://evil.example"); path != "/.well-known/oauth-protected-resource/t/grit/mcp" && a.status != http.StatusNotFound ||
			a.status == http.StatusOK && a.header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s: %d %v", path, a.status, a.header)
		}
	}
}

package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// What is answered beside the SDK must be what the SDK answers. These tests
// send everything through the handler twice, once with the SDK alone, and
// demand the same status, headers, bytes, counts, audit entries and log lines.

// asked is one request.
type asked struct {
	bearer, query, body string
	header              http.Header // on top of the usual ones; an empty value takes one away
}

// heard is all that a request causes, without what differs from one to the next.
type heard struct {
	Status  int
	Header  http.Header
	Body    string
	Counts  Counts
	Mixed   uint64
	Entries []audit.Entry
	Log     []map[string]any
}

// steadyLimits lets everyone in but one principal.
type steadyLimits struct{}

func (steadyLimits) Take(_ context.Context, s tenants.Scope) auth.Verdict {
	v := auth.Verdict{OK: true, Which: auth.LimitPrincipal, Limit: 600, Remaining: 12, Reset: time.Minute}
	if strings.HasSuffix(s.Principal.ID, "late") {
		v.OK, v.Remaining, v.RetryAfter = false, 0, 2500*time.Millisecond
	}
	return v
}

// bothWays is a world with every tool that only looks, and some that end badly.
func bothWays(t testing.TB, change func(*Config)) (*world, *ledger) {
	t.Helper()
	b, l := newBackend(), &ledger{}
	nodes := stubNodes(12)
	nodes[3].Name = "<b>&\u2028\u202ename"
	w := start(t, stub{nodes: nodes}, func(c *Config) {
		withEverything(b)(c)
		c.Limits, c.Auditor, c.ClientAddr = steadyLimits{}, l, func(*http.Request) netip.Addr { return netip.MustParseAddr("192.0.2.5") }
		c.Services.Running = &fakeRunning{fleets: map[string][]string{"acme": {"network", "host"}}, b: b}
		c.ListenFor = 20 * time.Millisecond
		if change != nil {
			change(c)
		}
	})
	for name, run := range map[string]func(context.Context, Call) (Answer, error){
		"panic_now":   func(context.Context, Call) (Answer, error) { panic("secret <detail>") },
		"abort_now":   func(context.Context, Call) (Answer, error) { panic(http.ErrAbortHandler) },
		"fail_hidden": func(context.Context, Call) (Answer, error) { return Answer{}, errors.New("dial unix /secret/path") },
		"fail_late":   func(context.Context, Call) (Answer, error) { return Answer{}, context.DeadlineExceeded },
		"fail_gone":   func(context.Context, Call) (Answer, error) { return Answer{}, context.Canceled },
		"fail_away": func(context.Context, Call) (Answer, error) {
			return Answer{}, fault.New(fault.Unavailable, "database_away", "the <store> is away").Do("wait")
		},
		"say_much": func(context.Context, Call) (Answer, error) {
			return Answer{Body: map[string]any{"text": strings.Repeat("x", 125<<10)}, Text: "x", Rows: 1}, nil
		},
		"say_lines": func(context.Context, Call) (Answer, error) {
			return Answer{Raw: json.RawMessage("{\n \"a\": [1,\r\n 2] }"), Text: "<a>\n\u2028&\t\x00\xff"}, nil
		},
		"say_nothing": func(context.Context, Call) (Answer, error) { return Answer{}, nil },
		"end_badly": func(context.Context, Call) (Answer, error) {
			return Answer{Body: map[string]any{"f": func() {}}}, nil
		},
	} {
		w.withTool(name, []Arg{{Name: "password", Kind: argString}}, run)
	}
	return w, l
}

// ask sends a request one way and says all that came of it.
func ask(t testing.TB, w *world, l *ledger, q asked, sdkOnly bool) heard {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	w.h.sdkOnly = sdkOnly
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/t/acme/mcp", strings.NewReader(q.body))
	req.URL.RawQuery = q.query
	req.Header = http.Header{"Authorization": {"Bearer " + q.bearer}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	for k, v := range q.header {
		if req.Header[k] = v; len(v) == 0 {
			delete(req.Header, k)
		}
	}
	before, mixed := w.h.Counts(), w.h.MixedEra()
	w.log.mu.Lock()
	w.log.b.Reset()
	w.log.mu.Unlock()
	l.take()
	rec := httptest.NewRecorder()
	w.signIn(w.h).ServeHTTP(rec, req)
	reference := rec.Header().Get(auth.ReferenceHeader)
	got := heard{Status: rec.Code, Header: rec.Header().Clone(), Body: strings.ReplaceAll(rec.Body.String(), reference, "REFERENCE"), Mixed: w.h.MixedEra() - mixed}
	got.Counts = since(before, w.h.Counts())
	if n := got.Header.Get("Content-Length"); n != "" && n != fmt.Sprint(rec.Body.Len()) {
		t.Errorf("an answer of %d bytes says that it has %s", rec.Body.Len(), n)
	}
	for _, name := range []string{"Content-Length", auth.ReferenceHeader} {
		got.Header.Del(name)
	}
	l.mu.Lock()
	got.Entries, l.entries = l.entries, nil
	l.mu.Unlock()
	for i := range got.Entries {
		if e := &got.Entries[i]; e.Reference != reference {
			t.Errorf("an entry has the reference %q, want %q", e.Reference, reference)
		} else {
			e.Reference = ""
		}
	}
	for line := range strings.SplitSeq(strings.TrimSpace(w.log.String()), "\n") {
		var m map[string]any
		if json.Unmarshal([]byte(line), &m) == nil {
			delete(m, "time")
			delete(m, "stack")
			if m["reference"] == reference {
				m["reference"] = "REFERENCE"
			}
			got.Log = append(got.Log, m)
		}
	}
	return got
}

func since(before, after Counts) Counts {
	less := func(a, b map[string]uint64) map[string]uint64 {
		out := map[string]uint64{}
		for k, v := range a {
			if v != b[k] {
				out[k] = v - b[k]
			}
		}
		return out
	}
	return Counts{Calls: less(after.Calls, before.Calls), Refused: less(after.Refused, before.Refused)}
}

// demandEqual asks three times: the first list is the SDK's own answer, the
// next one what was kept of it. It reports whether the answer came from beside
// the SDK.
func demandEqual(t testing.TB, w *world, l *ledger, q asked) (direct bool) {
	t.Helper()
	first := ask(t, w, l, q, false)
	beside := w.h.beside.Load()
	again := ask(t, w, l, q, false)
	direct = w.h.beside.Load() > beside
	want := ask(t, w, l, q, true)
	for _, got := range []heard{first, again} {
		if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
			t.Errorf("%s%s %v\n%.2000s\ndiffers from the SDK's answer:\n%.4000s", q.bearer, q.query, q.header, q.body, d)
			return direct
		}
	}
	return direct
}

// TestEveryReadIsEqual calls every tool that only looks.
func TestEveryReadIsEqual(t *testing.T) {
	t.Parallel()
	w, l := bothWays(t, nil)
	asks, beside := 0, 0
	for i := range w.h.tools {
		tool := &w.h.tools[i]
		if tool.Writes {
			continue
		}
		if tool.Gated { // see TestEveryTaskIsEqual
			continue
		}
		arguments := goodAndBad
		if len(tool.Args) == 1 && tool.Args[0].Name == "password" { // of this test: how it ends is what matters
			arguments = []string{"", "{}", `{"password":"hunter2","hunter3":1}`, `{"password":"hunter2"}`}
		}
		for _, bearer := range []string{"admin", "read@globex", "read#db", "payloads~read", "read~", "read#late"} {
			for n, args := range arguments {
				if bearer != "admin" && n%9 != 0 {
					continue // the rest differs by the arguments alone
				}
				params := `"name":"` + tool.Name + `"`
				if args != "" {
					params += `,"arguments":` + args
				}
				list := eras(asked{bearer: bearer}, "tools/call", params)
				if n > 3 {
					list = list[len(list)-2:]
				}
				for _, q := range list {
					asks++
					if demandEqual(t, w, l, q) {
						beside++
					}
				}
			}
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d requests, %d of them beside the SDK", asks, beside)
	if beside*2 < asks {
		t.Errorf("only %d of %d requests were answered beside the SDK: this test shows little", beside, asks)
	}
}

// TestOddRequestsAreEqual varies one part at a time of a list and of a call.
func TestOddRequestsAreEqual(t *testing.T) {
	t.Parallel()
	w, l := bothWays(t, nil)
	strict, strictLedger := bothWays(t, func(c *Config) { c.StrictEras = true })
	beside := map[bool]int{}
	try := func(q asked) {
		t.Helper()
		beside[demandEqual(t, w, l, q)]++
		if q.header.Get(versionHeader) == modernVersion {
			beside[demandEqual(t, strict, strictLedger, q)]++
		}
	}
	for _, base := range [][2]string{{"tools/list", ""}, {"tools/call", `"name":"list_nodes","arguments":{"limit":3}`}, {"tools/call", `"name":"say_lines"`}, {"tools/call", `"name":"panic_now"`}} {
		for _, bearer := range []string{"read", "read@globex", "diagnose#db", "admin", "payloads", "read~", "act", "read#late"} {
			for _, query := range []string{"", "toolsets=observe", "readonly=1", "schemas=1", "exclude=list_nodes", "toolsets=admin", "bad=1", "access_token=x", "toolsets=observe&exclude=get_node,search&schemas=1", "%zz"} {
				list := eras(asked{bearer: bearer, query: query}, base[0], base[1])
				for _, q := range list[len(list)-2:] {
					try(q)
				}
			}
		}
		for _, q := range eras(asked{bearer: "read"}, base[0], base[1]) {
			for _, odd := range oddHeaders() {
				own := q
				own.header = q.header.Clone()
				if own.header == nil {
					own.header = http.Header{}
				}
				for k, v := range odd {
					own.header[k] = v
				}
				try(own)
			}
			for _, odd := range oddBodies(q.body) {
				own := q
				own.body = odd
				try(own)
			}
		}
		for _, meta := range oddMeta() {
			for _, version := range []string{"", lastLegacy, modernVersion} {
				q := modernAsked(asked{bearer: "read"}, base[0], base[1], meta)
				if q.header[versionHeader] = []string{version}; version == "" {
					delete(q.header, versionHeader)
				}
				try(q)
			}
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d requests were answered beside the SDK, %d by it", beside[true], beside[false])
	if beside[true] < 200 || beside[false] < 200 {
		t.Errorf("the corpus is lopsided: %v", beside)
	}
}

// FuzzBothWays looks for a request that the two ways answer differently.
func FuzzBothWays(f *testing.F) {
	for _, base := range [][2]string{{"tools/list", ""}, {"tools/call", `"name":"list_nodes","arguments":{"limit":3}`}} {
		for _, q := range eras(asked{}, base[0], base[1]) {
			f.Add(q.body, q.header.Get(versionHeader), q.header.Get(modernHeaderMark), q.header.Get("Mcp-Name"), "application/json, text/event-stream", "application/json", "", uint8(0))
		}
	}
	for i, meta := range oddMeta() {
		q := modernAsked(asked{}, "tools/call", `"name":"get_node","arguments":{"node":"node-001"}`, meta)
		f.Add(q.body, modernVersion, "tools/call", "get_node", "*/*", "application/json; charset=utf-8", "schemas=1", uint8(i))
	}
	w, l := bothWays(f, func(c *Config) { c.ReadOnly = true })
	bearers := []string{"read", "admin", "read@globex", "read#db", "payloads", "read#late"}
	f.Fuzz(func(t *testing.T, body, version, method, name, accept, kind, query string, bearer uint8) {
		q := asked{bearer: bearers[int(bearer)%len(bearers)], query: query, body: body, header: http.Header{}}
		for k, v := range map[string]string{versionHeader: version, modernHeaderMark: method, "Mcp-Name": name, "Accept": accept, "Content-Type": kind} {
			if q.header[k] = []string{v}; v == "" {
				q.header[k] = nil
			}
		}
		demandEqual(t, w, l, q)
	})
}

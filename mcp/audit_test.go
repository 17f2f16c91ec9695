package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// ledger is an audit that can be away.
type ledger struct {
	mu      sync.Mutex
	away    bool
	entries []audit.Entry
}

func (l *ledger) Note(e audit.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e)
}

func (l *ledger) Write(_ context.Context, e audit.Entry) error {
	if l.mu.Lock(); l.away {
		defer l.mu.Unlock()
		return fault.New(fault.Unavailable, "audit_unavailable", "nothing was done").Do("try again in a moment")
	}
	l.mu.Unlock()
	l.Note(e)
	return nil
}

// take answers what was recorded, as action, outcome and reason, and forgets it.
func (l *ledger) take() (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Action, e.Outcome, e.Reason)))
	}
	l.entries = nil
	return out
}

func audited(t *testing.T) (*world, *ledger) {
	l := &ledger{}
	return start(t, stub{nodes: stubNodes(1)}, func(c *Config) {
		c.Auditor, c.ClientAddr = l, func(*http.Request) netip.Addr { return netip.MustParseAddr("192.0.2.5") }
	}), l
}

func TestCallsAreRecorded(t *testing.T) {
	w, l := audited(t)
	w.post(t, "read", "", toolCall("list_nodes", `{"limit":3}`))
	l.mu.Lock()
	e := l.entries[0]
	l.mu.Unlock()
	if e.Tenant != w.tenant || e.Principal.ID != "t1" || e.Surface != "mcp" || e.Arguments != "{limit=3}" || e.Bytes == 0 || len(e.Reference) != 20 || e.From.String() != "192.0.2.5" {
		t.Errorf("%+v", e)
	}
	if d := cmp.Diff([]string{"list_nodes ok"}, l.take()); d != "" {
		t.Error(d)
	}
	for _, c := range []struct {
		bearer, body string
		want         []string
	}{
		{"read", toolCall("list_nodes", `{"cursor":7}`), []string{"list_nodes failed invalid_argument"}},
		{"payloads", toolCall("list_nodes", "{}"), []string{"list_nodes refused insufficient_scope"}},
		{"payloads", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"telltale://health"}}`, []string{"resources/read refused insufficient_scope"}},
		{"read", toolCall("no_such_tool", "{}"), []string{"tools/call refused unknown_tool"}},
		{"read", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, nil},
	} {
		w.post(t, c.bearer, "", c.body)
		if d := cmp.Diff(c.want, l.take()); d != "" {
			t.Errorf("%s: %s", c.body, d)
		}
	}
}

// A tool that changes what its tenant owns waits for its record, and does not
// act without it; one that looks does not wait.
func TestActsWaitForTheirRecord(t *testing.T) {
	w, l := audited(t)
	var acted atomic.Int32
	run := func(context.Context, Call) (Answer, error) {
		acted.Add(1)
		return Answer{Body: map[string]any{}, Text: "done"}, nil
	}
	for name, scope := range map[string]tenants.Scopes{"act_now": tenants.Act, "approve_now": tenants.Approve, "maintain_now": tenants.Maintain, "admin_now": tenants.Admin, "diagnose_now": tenants.Diagnose} {
		w.add(Tool{Name: name, Title: name, Description: "for tests", Set: observeSet, Scope: scope, Writes: true, Run: run})
	}
	w.add(Tool{Name: "admin_look", Title: "look", Description: "for tests", Set: observeSet, Scope: tenants.Admin, Run: run})
	for _, name := range []string{"act_now", "approve_now", "maintain_now", "admin_now"} {
		scope, _, _ := strings.Cut(name, "_")
		w.post(t, scope, "", toolCall(name, "{}"))
		if d := cmp.Diff([]string{name + " started", name + " ok"}, l.take()); d != "" || acted.Swap(0) != 1 {
			t.Errorf("%s: %s", name, d)
		}
		l.mu.Lock()
		l.away = true
		l.mu.Unlock()
		r := w.post(t, scope, "", toolCall(name, "{}"))
		if !strings.Contains(r.body, "UNAVAILABLE audit_unavailable") || acted.Load() != 0 {
			t.Errorf("%s acted %d times without its record: %s", name, acted.Swap(0), r.body)
		}
		if d := cmp.Diff([]string{name + " failed audit_unavailable"}, l.take()); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		l.mu.Lock()
		l.away = false
		l.mu.Unlock()
	}
	l.away = true
	for _, c := range []struct{ scope, name string }{{"diagnose", "diagnose_now"}, {"admin", "admin_look"}} {
		w.post(t, c.scope, "", toolCall(c.name, "{}"))
		if d := cmp.Diff([]string{c.name + " ok"}, l.take()); d != "" || acted.Swap(0) != 1 {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

// Neither the value of a secret argument nor a credential in any other place
// is recorded, whatever surrounds it.
func TestNoSecretIsRecorded(t *testing.T) {
	w, l := audited(t)
	args := []Arg{{Name: "password", Kind: argString}, {Name: "query", Kind: argString}}
	w.withTool("note_this", args, func(context.Context, Call) (Answer, error) { return Answer{Body: map[string]any{}, Text: "ok"}, nil })
	rnd := rand.New(rand.NewPCG(1, 2))
	junk := func() string {
		b := make([]rune, rnd.IntN(100))
		for i := range b {
			b[i] = []rune(`ab "\{}=,é` + "\u202e\n")[rnd.IntN(12)]
		}
		return string(b)
	}
	for range 300 {
		token, _ := tenants.MintSecret(tenants.OperatorSecret)
		password := fmt.Sprintf("pw%08x", rnd.Uint32())
		body, err := json.Marshal(map[string]string{"password": junk() + password + junk(), "query": junk() + token + junk(), "Bearer " + token: password, "other": password})
		if err != nil {
			t.Fatal(err)
		}
		args := string(body)
		if rnd.IntN(2) == 0 {
			args = strings.Replace(args, `"other"`, `"password2"`, 1)
		}
		w.post(t, "read", "", toolCall("note_this", args))
		w.post(t, "payloads", "", toolCall("note_this", args))
		w.post(t, "read", "", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"telltale://nodes/`+token+`"}}`)
		l.mu.Lock()
		for _, e := range l.entries {
			text := audit.Scrub(fmt.Sprintf("%+v", e)) // as the service keeps it
			if strings.Contains(text, password) || strings.Contains(text, token[20:40]) {
				t.Errorf("%s", text)
			}
		}
		l.entries = nil
		l.mu.Unlock()
		if log := w.log.String(); strings.Contains(log, password) || strings.Contains(log, token[20:40]) {
			t.Fatalf("the log holds a secret: %s", log[max(0, len(log)-1000):])
		}
	}
}

// TestRefusalsFold: what a caller makes up is no action of a record, or each
// would be a row of its own and crowd out those of others.
func TestRefusalsFold(t *testing.T) {
	l := &ledger{}
	w := start(t, stub{nodes: stubNodes(1)}, func(c *Config) { c.Auditor, c.Limits = l, &fakeLimits{} })
	for _, method := range []string{"made/up1", "made/up2", "ping"} {
		w.post(t, "read", "", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q}`, method))
	}
	if d := cmp.Diff([]string{"other method refused rate_limited", "other method refused rate_limited", "ping refused rate_limited"}, l.take()); d != "" {
		t.Error(d)
	}
	w, l = audited(t)
	for _, name := range []string{"made_up", "list_nodes"} {
		w.post(t, "payloads~payloads", "", toolCall(name, "{}"))
	}
	if d := cmp.Diff([]string{"tools/call refused unknown_tool", "list_nodes refused unknown_tool"}, l.take()); d != "" {
		t.Error(d)
	}
}

// attempts is a recorder of the connector self-test.
type attempts struct {
	mu   sync.Mutex
	seen []tenants.Attempt
}

func (a *attempts) Attempt(at tenants.Attempt) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, at)
}

// A request that is refused as such is reported under the reference id of its
// answer, to its caller's tenant; one that becomes a call is not.
func TestRefusedRequestsAreReported(t *testing.T) {
	told := &attempts{}
	w := start(t, stub{nodes: stubNodes(1)}, func(c *Config) { c.Recorder = told })
	for _, c := range []struct {
		method, bearer, body, class string
		tenant                      tenants.TenantID
	}{
		{"POST", "read", "[]", "invalid_message", w.tenant},
		{"POST", "read@globex", "{", "invalid_message", w.other},
		{"POST", "read", strings.Repeat(" ", tenants.MaxRequestBytes+1), "body_too_large", w.tenant},
		{"GET", "read", "", "method_not_allowed", w.tenant},
		{"POST", "read", toolCall("list_nodes", "{}"), "", w.tenant},
	} {
		slug := "acme"
		if c.tenant == w.other {
			slug = "globex"
		}
		r := send(t, c.method, w.URL+"/t/"+slug+"/mcp", c.bearer, c.body)
		told.mu.Lock()
		got := told.seen
		told.seen = nil
		told.mu.Unlock()
		if c.class == "" && len(got) == 0 {
			continue
		}
		if len(got) != 1 || got[0].Class != c.class || got[0].Reference != r.header.Get(auth.ReferenceHeader) || got[0].Tenant != c.tenant || got[0].Step != tenants.StepCall || got[0].Principal == "" || got[0].Received == "" {
			t.Errorf("%s %.20s: %+v", c.method, c.body, got)
		}
	}
}

package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// entries waits until the audit of acme holds so many rows of an action.
func (w *world) entries(token, query string, n int) []audit.Row {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		r := w.do("GET", "/t/acme/api/v1/audit?"+query, token, "")
		if r.StatusCode != 200 {
			w.t.Fatalf("audit: %d %s", r.StatusCode, r.body)
		}
		var page auditPage
		w.must(json.Unmarshal(r.body, &page))
		if len(page.Entries) >= n {
			return page.Entries
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.t.Fatalf("%s: %d entries, want %d: %s", query, len(page.Entries), n, r.body)
		}
	}
}

func TestWritesAreAudited(t *testing.T) {
	w := newWorld(t)
	r := w.do("PUT", "/t/acme/api/v1/nodes/db-1/modules", w.admin, `{"off":["storage"]}`)
	if r.StatusCode != 200 {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	got := w.entries(w.admin, "action=PUT%20nodes/%7Bnode%7D/modules", 2)
	ref := r.Header.Get(auth.ReferenceHeader)
	end, begin := got[0], got[1]
	if begin.Outcome != audit.Started || begin.Arguments != "node=db-1" || begin.Reference != ref || begin.Surface != "rest" || begin.Principal.Kind != tenants.TokenPrincipal || begin.Principal.Name != "admin" {
		t.Errorf("before: %+v", begin)
	}
	if end.Outcome != audit.OK || end.Arguments != "node=db-1 off" || end.Reference != ref || end.Bytes == 0 || end.From == "" {
		t.Errorf("after: %+v", end)
	}

	w.do("PUT", "/t/acme/api/v1/nodes/nowhere/modules", w.admin, `{"off":["storage"]}`)
	w.do("PUT", "/t/acme/api/v1/nodes/db-1/modules", w.read, `{"off":["storage"]}`)
	w.do("POST", "/t/acme/api/v1/tasks", w.admin, `{"kind":"run_thing","node":"db-1","arguments":{"secret":"hunter2"}}`)
	failed := w.entries(w.admin, "outcome=failed", 1)
	if failed[0].Arguments != "node=nowhere off" || failed[0].Reason == "" {
		t.Errorf("%+v", failed)
	}
	refused := w.entries(w.admin, "outcome=refused", 2)
	var reasons []string
	for _, e := range refused {
		reasons = append(reasons, e.Action+" "+e.Reason+" "+e.Arguments)
	}
	slices.Sort(reasons)
	want := []string{"POST tasks not_over_rest kind=run_thing node=db-1 arguments", "PUT nodes/{node}/modules insufficient_scope node=db-1"}
	if d := cmp.Diff(want, reasons); d != "" {
		t.Error(d)
	}
	if n := len(w.entries(w.restricted, "", 0)); n != 0 {
		t.Errorf("an administrator of some nodes sees %d entries of others", n)
	}
	if r := w.do("GET", "/t/globex/api/v1/audit", w.globex, ""); r.StatusCode != 200 || strings.Contains(string(r.body), "db-1") {
		t.Errorf("globex reads acme's: %d %s", r.StatusCode, r.body)
	}
	if r := w.do("GET", "/t/acme/api/v1/audit", w.read, ""); r.StatusCode != 403 {
		t.Errorf("without admin: %d", r.StatusCode)
	}
}

func TestSignInsAreAudited(t *testing.T) {
	w := newWorld(t)
	in := w.do("POST", "/t/acme/api/v1/session", "", `{"token":"`+w.admin+`"}`)
	var view auth.SessionView
	w.must(json.Unmarshal(in.body, &view))
	w.do("POST", "/t/acme/api/v1/session", "", `{"token":"`+w.expired+`"}`)
	w.do("GET", "/t/acme/api/v1/session", "", "", header{"Cookie", cookieOf(t, in)})
	w.do("DELETE", "/t/acme/api/v1/session", "", "", header{"Cookie", cookieOf(t, in)}) // without its CSRF token
	w.do("PUT", "/t/acme/api/v1/nodes/db-1/modules", "", `{"off":[]}`, header{"Cookie", cookieOf(t, in)}, header{auth.CSRFHeader, view.CSRF})
	out := w.do("DELETE", "/t/acme/api/v1/session", "", "", header{"Cookie", cookieOf(t, in)}, header{auth.CSRFHeader, view.CSRF})
	if out.StatusCode != 204 {
		t.Errorf("%d %s", out.StatusCode, out.body)
	}
	var got []string
	for _, e := range w.entries(w.admin, "", 4) {
		if e.Principal.Kind != tenants.SessionPrincipal || e.Principal.ID != view.Principal || e.Surface != "dashboard" {
			t.Errorf("%+v", e)
		}
		got = append(got, e.Action+" "+string(e.Outcome))
	}
	slices.Sort(got)
	want := []string{"DELETE session ok", "POST session ok", "PUT nodes/{node}/modules ok", "PUT nodes/{node}/modules started"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestLimitsAreAudited(t *testing.T) {
	w := newWorld(t)
	w.cfg.Own = nil
	w.cfg.Guards.Limiter = auth.NewLimiter(auth.LimitConfig{Policy: func(context.Context, tenants.TenantID) tenants.Policy { return tenants.Policy{PrincipalRate: 2} }})
	free := w.srv
	w.srv = New(w.cfg)
	for range 7 {
		w.do("GET", "/t/acme/api/v1/nodes", w.read, "")
	}
	w.srv = free
	got := w.entries(w.admin, "outcome=refused", 1)
	if got[0].Action != "GET nodes" || got[0].Reason != "rate_limited" || got[0].Count != 5 {
		t.Errorf("%+v", got)
	}
}

// deaf is an audit whose database is away.
type deaf struct {
	Audit
	mu    sync.Mutex
	notes []audit.Entry
}

func (d *deaf) Write(context.Context, audit.Entry) error {
	return fault.New(fault.Unavailable, "audit_unavailable", "nothing was done")
}

func (d *deaf) Note(e audit.Entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notes = append(d.notes, e)
}

func TestNothingHappensWithoutItsRecord(t *testing.T) {
	w := newWorld(t)
	d := &deaf{}
	w.cfg.Audit, w.cfg.Own = d, nil
	w.srv = New(w.cfg)
	r := w.do("PUT", "/t/acme/api/v1/nodes/db-1/modules", w.admin, `{"off":["storage"]}`)
	if p := r.problem(t); r.StatusCode != http.StatusServiceUnavailable || p.Reason != "audit_unavailable" {
		t.Errorf("%d %+v", r.StatusCode, p)
	}
	acme, err := w.dir.TenantBySlug(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	node, err := w.fleet.Get(t.Context(), tenants.Scope{Tenant: acme.ID, Granted: tenants.Read}, w.db.String())
	if err != nil {
		t.Fatal(err)
	}
	if len(node.ModulesOff) != 0 {
		t.Errorf("it acted: %+v", node.ModulesOff)
	}
	if len(d.notes) != 0 {
		t.Errorf("it ended: %+v", d.notes)
	}
}

// What a caller sends, in any place, never brings a credential into the audit.
func TestNoCredentialInTheAudit(t *testing.T) {
	w := newWorld(t)
	secret := w.globex
	for _, c := range []struct{ method, path, body string }{
		{"PUT", "/nodes/" + secret + "/modules", `{"off":["storage"]}`},
		{"PUT", "/nodes/db-1/modules", `{"off":["` + secret + `"]}`},
		{"POST", "/tasks", `{"kind":"trace_opens","node":"` + secret + `"}`},
		{"POST", "/tasks", `{"kind":"` + secret + `","node":"db-1"}`},
		{"POST", "/tasks", `{"kind":"trace_opens","node":"db-1","arguments":{"x":"` + secret + `"}}`},
		{"DELETE", "/tasks/" + secret, ""},
		{"PUT", "/nodes/db-1/modules?x=" + secret, `{}`},
	} {
		w.do(c.method, "/t/acme/api/v1"+c.path, w.admin, c.body)
		w.do(c.method, "/t/acme/api/v1"+c.path, w.read, c.body)
		w.do(c.method, "/t/acme/api/v1"+c.path, secret, c.body)
	}
	all := w.entries(w.admin, "limit=200", 10)
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{secret, w.admin, w.read} {
		for _, part := range []string{s, s[20:40], s[40:60]} { // what precedes is the token's public id
			if strings.Contains(string(text), part) {
				t.Errorf("the audit holds %q of a credential: %s", part, text)
			}
		}
	}
}

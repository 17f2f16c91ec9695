package rest

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/explain"
)

func TestConnectByReference(t *testing.T) {
	w := newWorld(t)
	refused := w.do("GET", "/t/acme/api/v1/nodes", w.expired, "")
	ref := refused.Header.Get(auth.ReferenceHeader)

	// With the id alone: the class and the next step, nothing else.
	for _, token := range []string{"", w.read, w.globex, "hunter2"} {
		r := w.do("GET", "/t/acme/connect?reference="+ref, token, "")
		want := `{"reference_id":"` + ref + `","class":"expired","detail":"expired: the credential's time is over","next":["ask an administrator of this tenant for a new token, or sign in again"]}`
		if r.StatusCode != 200 || strings.TrimSpace(string(r.body)) != want {
			t.Errorf("with %.5q: %d %s", token, r.StatusCode, r.body)
		}
	}
	// Of another tenant, or of one that does not exist, there is no such id.
	strip := func(r reply) string {
		return strings.ReplaceAll(string(r.body), r.Header.Get(auth.ReferenceHeader), "REF")
	}
	known, unknown := w.do("GET", "/t/globex/connect?reference="+ref, "", ""), w.do("GET", "/t/initech/connect?reference="+ref, "", "")
	if known.StatusCode != 404 || unknown.StatusCode != 404 || strip(known) != strip(unknown) {
		t.Errorf("%d %s\n%d %s", known.StatusCode, known.body, unknown.StatusCode, unknown.body)
	}
	for _, odd := range []string{"x", strings.Repeat("a", 20), "..%2f..", strings.Repeat("a", 500)} {
		if r := w.do("GET", "/t/acme/connect?reference="+odd, "", ""); r.StatusCode != 404 {
			t.Errorf("%s: %d %s", odd, r.StatusCode, r.body)
		}
	}
	// Looking is no attempt.
	admin := w.connection(t, "acme", w.admin, "")
	if len(admin.Attempts) != 1 || admin.Attempts[0].Reference != ref {
		t.Errorf("%+v", admin.Attempts)
	}
}

func (w *world) connection(t *testing.T, tenant, token, query string) connection {
	t.Helper()
	r := w.do("GET", "/t/"+tenant+"/connect.json"+query, token, "")
	if r.StatusCode != 200 {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	var c connection
	if err := json.Unmarshal(r.body, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestConnectForAdministrators(t *testing.T) {
	w := newWorld(t)
	w.do("GET", "/t/acme/api/v1/nodes", "", "")
	w.do("GET", "/t/acme/api/v1/nodes", "hunter2", "")
	lacks := w.do("GET", "/t/acme/api/v1/audit", w.read, "")
	w.do("GET", "/t/globex/api/v1/nodes", w.read, "")
	w.entries(w.admin, "outcome=refused", 1) // the same flush wrote the attempts, or the next one
	ref := lacks.Header.Get(auth.ReferenceHeader)
	if a := w.connection(t, "acme", w.admin, "?reference="+ref).Attempt; a == nil || a.Step != tenants.StepScope || a.Expected != "telltale:admin" || a.Received != "telltale:read" {
		t.Errorf("%+v", a)
	}
	c := w.connection(t, "acme", w.admin, "")
	want := endpoints{origin + "/t/acme/mcp", origin + "/t/acme/api/v1", origin + "/.well-known/oauth-protected-resource/t/acme/mcp", origin + "/t/acme/mcp/.well-known/oauth-protected-resource"}
	if d := cmp.Diff(want, c.Endpoints); d != "" || !c.Admin {
		t.Errorf("%v %s", c.Admin, d)
	}
	if len(c.Checklist) != 3 || c.Checklist[2].OK || c.Checklist[2].Next == "" {
		t.Errorf("%+v", c.Checklist)
	}

	// Without a sign-in the page says where things are, for any tenant alike.
	for _, token := range []string{"", w.read, w.globex, "hunter2"} {
		acme, unknown := w.do("GET", "/t/acme/connect", token, ""), w.do("GET", "/t/initech/connect", token, "")
		if acme.StatusCode != 200 || string(acme.body) != strings.ReplaceAll(string(unknown.body), "initech", "acme") || strings.Contains(string(acme.body), "attempts\"") {
			t.Errorf("with %.5q: %s\nand for an unknown tenant %s", token, acme.body, unknown.body)
		}
	}
	if c := w.connection(t, "globex", w.globex, ""); !c.Admin || strings.Contains(mustJSON(t, c), "acme") {
		t.Errorf("globex: %+v", c)
	}
	if r := w.do("GET", "/t/acme/connect", "", "", header{"Accept", "text/html,*/*"}); string(r.body) != "page" {
		t.Errorf("a browser: %d %s", r.StatusCode, r.body)
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Whoever has the reference id of a call that was refused for a limit, an
// argument or a rule learns why and what to do; the values, and what another
// administrator sent, only who may see them; another tenant nothing.
func TestConnectByReferenceOfACall(t *testing.T) {
	w := newWorld(t)
	w.cfg.Own = nil
	w.cfg.Meaning = explain.Meaning
	free := w.srv
	w.srv = New(w.cfg)
	w.cfg.Guards.Limiter = auth.NewLimiter(auth.LimitConfig{Policy: func(context.Context, tenants.TenantID) tenants.Policy { return tenants.Policy{PrincipalRate: 1} }})
	tight := New(w.cfg)
	calls := w.srv
	limited := func() reply {
		w.srv = tight
		defer func() { w.srv = calls }()
		w.do("GET", "/t/acme/api/v1/nodes", w.read, "")
		w.do("GET", "/t/acme/api/v1/nodes", w.read, "") // the next one is folded with this one in the audit
		return w.do("GET", "/t/acme/api/v1/nodes", w.read, "")
	}
	for _, c := range []struct {
		what     string
		reply    reply
		status   int
		class    string
		received string // what an administrator sees
		hidden   bool   // from an administrator who is limited to some nodes
	}{
		{"429", limited(), 429, "rate_limited", "GET nodes", true},
		{"400 of a read", w.do("GET", "/t/acme/api/v1/nodes?limit=x", w.read, ""), 400, "invalid_argument", "GET nodes (limit): ", true},
		{"404 of a read", w.do("GET", "/t/acme/api/v1/nodes/nobody", w.read, ""), 404, "unknown_node", "GET nodes/{node}: ", true},
		{"403 of a service", w.do("PUT", "/t/acme/api/v1/quotas", w.restricted, `{"max_nodes":5}`), 403, "outside_selector", "PUT quotas", false},
		{"400 of a write", w.do("PUT", "/t/acme/api/v1/quotas", w.admin, `{"max_nodes":-5}`), 400, "invalid_argument", "PUT quotas", true},
		{"400 before any credential", w.do("GET", "/t/acme/api/v1/session?x=1", "", ""), 400, "unknown_parameter", "GET session (x): ", true},
		{"no such address", w.do("GET", "/t/acme/api/v1/nothing", w.read, ""), 404, "route_unknown", "", true},
		{"too large", w.do("POST", "/t/acme/api/v1/tokens", w.admin, strings.Repeat("x", tenants.MaxRequestBytes+1)), 413, "body_too_large", "", true},
	} {
		p := c.reply.problem(t)
		if c.reply.StatusCode != c.status || p.Reason != c.class {
			t.Errorf("%s: %d %s, want %d %s", c.what, c.reply.StatusCode, p.Reason, c.status, c.class)
			continue
		}
		ref := c.reply.Header.Get(auth.ReferenceHeader)
		if ref != p.ReferenceID {
			t.Errorf("%s: header %s, body %s", c.what, ref, p.ReferenceID)
		}
		means, next, _ := explain.Meaning(c.class)
		if means == "" || next == "" {
			t.Errorf("%s: %s has no explanation", c.what, c.class)
		}
		r := w.do("GET", "/t/acme/connect?reference="+ref, "", "")
		want := mustJSON(t, verdict{ref, c.class, c.class + ": " + means, []string{next}})
		if r.StatusCode != 200 || strings.TrimSpace(string(r.body)) != want {
			t.Errorf("%s: %d %s\nwant %s", c.what, r.StatusCode, r.body, want)
		}
		if r := w.do("GET", "/t/globex/connect?reference="+ref, w.globex, ""); r.StatusCode != 404 {
			t.Errorf("%s, to globex: %d %s", c.what, r.StatusCode, r.body)
		}
		a := w.connection(t, "acme", w.admin, "?reference="+ref).Attempt
		if a == nil || a.Step != tenants.StepCall || !strings.HasPrefix(a.Received, c.received) || a.Received == "" {
			t.Errorf("%s: %+v", c.what, a)
		}
		if a := w.connection(t, "acme", w.restricted, "?reference="+ref).Attempt; a == nil || (a.Received == "") != c.hidden {
			t.Errorf("%s, to an administrator of some nodes: %+v", c.what, a)
		}
	}
	// A good call, and one that asks here, leave nothing.
	for _, r := range []reply{w.do("GET", "/t/acme/api/v1/nodes", w.read, ""), w.do("GET", "/t/acme/connect?reference=zzzz", "", "")} {
		if r := w.do("GET", "/t/acme/connect?reference="+r.Header.Get(auth.ReferenceHeader), "", ""); r.StatusCode != 404 {
			t.Errorf("%d %s", r.StatusCode, r.body)
		}
	}
	w.srv = free
}

// What anybody may read without end does not push a refusal out, and the
// administrator sees how many were dropped.
func TestMetadataReadsPushNothingOut(t *testing.T) {
	w := newWorld(t)
	ref := w.do("GET", "/t/acme/api/v1/nodes", w.expired, "").Header.Get(auth.ReferenceHeader)
	site := w.cfg.Site
	metadata := auth.NewMetadata(site, w.dir, nil).Reporting(w.audit)
	for range 500 {
		r := httptest.NewRequest("GET", "/.well-known/oauth-protected-resource/t/acme/mcp", nil)
		rec := httptest.NewRecorder()
		if metadata.ServeHTTP(rec, r); rec.Code != 200 {
			t.Fatal(rec.Code)
		}
		w.do("GET", "/t/acme/api/v1/nodes", "", "")
	}
	c := w.connection(t, "acme", w.admin, "?reference="+ref)
	if c.Attempt == nil || c.Attempt.Class != "expired" || len(c.Attempts) > audit.MaxAttempts {
		t.Errorf("%+v, %d attempts", c.Attempt, len(c.Attempts))
	}
	var lost int64
	for _, d := range c.Dropped {
		if d.Kind != "metadata" && d.Kind != "challenge" || d.Kept == 0 {
			t.Errorf("%+v", d)
		}
		lost += d.Dropped
	}
	if want := int64(1001 - len(c.Attempts)); lost < want { // a write whose rows are trimmed meanwhile may count one twice
		t.Errorf("%d dropped, want %d: %+v", lost, want, c.Dropped)
	}
	if r := w.do("GET", "/t/acme/connect", "", ""); strings.Contains(string(r.body), "dropped") {
		t.Errorf("%s", r.body)
	}
}

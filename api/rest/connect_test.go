package rest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
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

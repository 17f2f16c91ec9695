package rest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/telltale-dev/telltale/auth"
)

func (r reply) into(t testing.TB, v any) {
	t.Helper()
	if err := json.Unmarshal(r.body, v); err != nil {
		t.Fatalf("%v in %s", err, r.body)
	}
}

func cookieOf(t testing.TB, r reply) string {
	t.Helper()
	got := r.Cookies()
	if len(got) != 1 {
		t.Fatalf("%d cookies in %v: %s", len(got), r.Header, r.body)
	}
	if c := got[0]; !c.HttpOnly || c.Path != "/" {
		t.Errorf("a script or another path may see the cookie %v", c)
	}
	return got[0].Name + "=" + got[0].Value
}

// TestSessionLife goes from sign-in to sign-out with a write in between.
func TestSessionLife(t *testing.T) {
	w := newWorld(t)
	const at = "/t/acme/api/v1/session"
	modules := "/t/acme/api/v1/nodes/" + w.db.String() + "/modules"
	in := w.do("POST", at, "", `{"token":"`+w.admin+`"}`)
	if in.StatusCode != 201 || in.Header.Get("Cache-Control") != "no-store" || strings.Contains(string(in.body), w.admin) {
		t.Fatalf("sign-in: %d %v %s", in.StatusCode, in.Header, in.body)
	}
	cookie := header{"Cookie", cookieOf(t, in)}
	var view auth.SessionView
	in.into(t, &view)
	if _, value, _ := strings.Cut(cookie.value, "="); strings.Contains(string(in.body), value) {
		t.Fatal("the body holds the cookie's value")
	}
	csrf := header{"Telltale-CSRF", view.CSRF}

	me := w.do("GET", at, "", "", cookie)
	var again auth.SessionView
	me.into(t, &again)
	if me.StatusCode != 200 || again.CSRF != view.CSRF || again.Tenant != "acme" || again.Name != "admin" || strings.Join(again.Scopes, " ") != "telltale:read telltale:diagnose telltale:admin" {
		t.Errorf("who am I: %d %s", me.StatusCode, me.body)
	}
	if r := w.do("HEAD", at, "", "", cookie); r.StatusCode != 200 {
		t.Errorf("HEAD of the session: %d", r.StatusCode)
	}
	if r := w.do("GET", "/t/acme/api/v1/nodes", "", "", cookie); r.StatusCode != 200 {
		t.Errorf("a read with the cookie: %d %s", r.StatusCode, r.body)
	}
	if r := w.do("GET", "/t/globex/api/v1/nodes", "", "", cookie); r.StatusCode != 401 {
		t.Errorf("the cookie at another tenant: %d", r.StatusCode)
	}
	if r := w.do("PUT", modules, "", `{"off":[]}`, cookie); r.StatusCode != 403 || r.problem(t).Reason != "credential_csrf" {
		t.Errorf("a write without the CSRF token: %d %s", r.StatusCode, r.body)
	}
	if r := w.do("PUT", modules, "", `{"off":[]}`, cookie, csrf, header{"Origin", "https://evil.example"}); r.StatusCode != 403 {
		t.Errorf("a write from another origin: %d", r.StatusCode)
	}
	if r := w.do("PUT", modules, "", `{"off":[]}`, cookie, csrf, header{"Origin", origin}); r.StatusCode != 200 {
		t.Errorf("a write with both: %d %s", r.StatusCode, r.body)
	}
	if r := w.do("DELETE", at, "", "", cookie); r.StatusCode != 403 {
		t.Errorf("a sign-out without the CSRF token: %d", r.StatusCode)
	}
	// An export is a read that a link of another site must not start.
	export := "/t/acme/api/v1/tenant/export"
	for _, method := range []string{"GET", "HEAD"} {
		if r := w.do(method, export, "", "", cookie); r.StatusCode != 403 || r.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s of an export by the cookie alone: %d %.200s", method, r.StatusCode, r.body)
		}
	}
	if r := w.do("GET", export, "", "", cookie, csrf, header{"Sec-Fetch-Site", "cross-site"}); r.StatusCode != 403 || r.problem(t).Reason != "credential_csrf" {
		t.Errorf("an export for another site: %d %.200s", r.StatusCode, r.body)
	}
	if got, err := w.dir.Tenant(t.Context(), w.acme); err != nil || got.ExportedAt != nil {
		t.Errorf("%v, exported %v", err, got.ExportedAt)
	}
	if r := w.do("GET", export, "", "", cookie, csrf); r.StatusCode != 200 || !strings.Contains(string(r.body), `{"end":`) {
		t.Errorf("an export with the CSRF token: %d %.200s", r.StatusCode, r.body)
	}
	if r := w.do("DELETE", at, "", "", cookie, csrf); r.StatusCode != 204 || !strings.Contains(r.Header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("sign-out: %d %v", r.StatusCode, r.Header)
	}
	if r := w.do("GET", "/t/acme/api/v1/nodes", "", "", cookie); r.StatusCode != 401 {
		t.Errorf("a read after the sign-out: %d", r.StatusCode)
	}
}

func TestSignInRefusals(t *testing.T) {
	w := newWorld(t)
	const at = "/t/acme/api/v1/session"
	for body, want := range map[string]struct {
		status int
		reason string
	}{
		`{"token":"` + w.globex + `"}`:                {401, "credential_unknown"},
		`{"token":"` + w.expired + `"}`:               {401, "credential_expired"},
		`{"token":"hunter2"}`:                         {401, "credential_malformed"},
		`{"token":""}`:                                {400, "invalid_body"},
		`{"token":"a","token":"b"}`:                   {400, "invalid_body"},
		`{"token":"` + w.admin + `","remember":true}`: {400, "invalid_body"},
		`{"token":"` + w.admin + `"}{}`:               {400, "invalid_body"},
	} {
		r := w.do("POST", at, "", body)
		if r.StatusCode != want.status || r.problem(t).Reason != want.reason || r.Header.Get("Set-Cookie") != "" {
			t.Errorf("%.40s: %d %s, want %d %s", body, r.StatusCode, r.body, want.status, want.reason)
		}
	}
	if r := w.do("POST", at, "", `{"token":"`+w.admin+`"}`, header{"Content-Type", "text/plain"}); r.StatusCode != 415 {
		t.Errorf("a form's media type: %d", r.StatusCode)
	}
	if r := w.do("POST", at, "", `{"token":"`+w.admin+`"}`, header{"Origin", "https://evil.example"}); r.StatusCode != 403 {
		t.Errorf("another origin: %d", r.StatusCode)
	}
	if r := w.do("POST", "/t/initech/api/v1/session", "", `{"token":"`+w.admin+`"}`); r.StatusCode != 401 {
		t.Errorf("an unknown tenant: %d", r.StatusCode)
	}
	if strings.Contains(w.log.String(), w.admin) {
		t.Error("the log holds a token")
	}
}

func TestWhoAmIWithABearer(t *testing.T) {
	w := newWorld(t)
	r := w.do("GET", "/t/acme/api/v1/session", w.restricted, "")
	var me map[string]any
	r.into(t, &me)
	if r.StatusCode != 200 || me["tenant"] != "acme" || me["name"] != "restricted" || me["csrf"] != nil {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
}

// What the tenant's own administrators suspended answers to them at one
// address, and to nobody anywhere else.
func TestSuspendedByItself(t *testing.T) {
	w := newWorld(t)
	const tenant = "/t/acme/api/v1/tenant"
	if r := w.do("PUT", tenant, w.admin, `{"suspended":true}`); r.StatusCode != 200 || !strings.Contains(string(r.body), `"suspended_by":"admin"`) {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	if r := w.do("GET", "/t/acme/api/v1/nodes", w.admin, ""); r.StatusCode != 403 || r.problem(t).Reason != "credential_suspended" {
		t.Errorf("while suspended: %d %s", r.StatusCode, r.body)
	}
	if r := w.do("GET", tenant, w.read, ""); r.StatusCode != 403 || r.problem(t).Reason != "insufficient_scope" {
		t.Errorf("a reader of a suspended tenant: %d %s", r.StatusCode, r.body)
	}
	if r := w.do("GET", "/t/globex/api/v1/nodes", w.globex, ""); r.StatusCode != 200 {
		t.Errorf("the other tenant: %d %s", r.StatusCode, r.body)
	}
	if r := w.do("PUT", tenant, w.globex, `{"suspended":false}`); r.StatusCode != 401 {
		t.Errorf("another tenant's administrator: %d %s", r.StatusCode, r.body)
	}
	if r := w.do("PUT", tenant, w.admin, `{"suspended":false}`); r.StatusCode != 200 {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	if r := w.do("GET", "/t/acme/api/v1/nodes", w.admin, ""); r.StatusCode != 200 {
		t.Errorf("after resuming: %d %s", r.StatusCode, r.body)
	}
	w.must(w.dir.SetSuspended(t.Context(), "acme", true))
	if r := w.do("PUT", tenant, w.admin, `{"suspended":false}`); r.StatusCode != 403 || r.problem(t).Reason != "credential_suspended" {
		t.Errorf("what the operator suspended: %d %s", r.StatusCode, r.body)
	}
}

// A deleted tenant answers like one that never was.
func TestDeletedTenant(t *testing.T) {
	w := newWorld(t)
	const tenant = "/t/acme/api/v1/tenant"
	if r := w.do("DELETE", tenant+"?confirm=acme", w.admin, ""); r.StatusCode != 412 || r.problem(t).Reason != "not_exported" {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	r := w.do("GET", tenant+"/export", w.admin, "")
	if r.StatusCode != 200 || !strings.Contains(string(r.body), "web-1") || strings.Contains(string(r.body), "secret-host") || !strings.HasSuffix(string(r.body), "\"}}\n") {
		t.Fatalf("%d %.300s", r.StatusCode, r.body)
	}
	if r := w.do("DELETE", tenant+"?confirm=acme", w.admin, ""); r.StatusCode != 200 {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	if r := w.do("GET", "/t/acme/api/v1/nodes", w.admin, ""); r.StatusCode != 401 || r.problem(t).Reason != "credential_unknown" {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
}

package rest

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
)

// TestEveryRouteAsksForACredential crosses every operation with every sort of
// credential.
func TestEveryRouteAsksForACredential(t *testing.T) {
	w := newWorld(t)
	for _, op := range operations() {
		target, body := w.target(op, "acme", w.db)
		for _, c := range []struct {
			name, token string
			status      int
			reason      string
			challenge   string
		}{
			{"no token", "", 401, "credential_no_token", `Bearer scope="telltale:read"`},
			{"not a token", "hunter2", 401, "credential_malformed", `error="invalid_token"`},
			{"a mistyped token", w.read[:len(w.read)-1] + "_", 401, "", `error="invalid_token"`},
			{"a token of another tenant", w.globex, 401, "credential_unknown", `error="invalid_token"`},
			{"an expired token", w.expired, 401, "credential_expired", `error="invalid_token"`},
			{"a token without the scope", w.hollow, 403, "insufficient_scope", `error="insufficient_scope"`},
		} {
			r := w.do(op.method, target, c.token, body)
			if r.StatusCode != c.status {
				t.Errorf("%s with %s: %d, want %d: %s", op.id, c.name, r.StatusCode, c.status, r.body)
				continue
			}
			p := r.problem(t)
			if c.reason != "" && p.Reason != c.reason {
				t.Errorf("%s with %s: reason %s, want %s", op.id, c.name, p.Reason, c.reason)
			}
			if got := r.Header.Get("WWW-Authenticate"); !strings.Contains(got, c.challenge) {
				t.Errorf("%s with %s: challenge %q, want %q in it", op.id, c.name, got, c.challenge)
			}
			if ref := r.Header.Get(auth.ReferenceHeader); ref == "" || ref != p.ReferenceID {
				t.Errorf("%s with %s: reference %q in the header and %q in the document", op.id, c.name, ref, p.ReferenceID)
			}
			checkSealed(t, op.id, r)
			if c.token != "" && strings.Contains(w.log.String(), c.token) {
				t.Fatalf("%s with %s: the log holds the credential", op.id, c.name)
			}
		}
		if op.need != tenants.Read {
			r := w.do(op.method, target, w.read, body)
			if r.StatusCode != 403 || !strings.Contains(r.Header.Get("WWW-Authenticate"), `scope="telltale:read `+op.need.String()+`"`) {
				t.Errorf("%s with telltale:read: %d %q", op.id, r.StatusCode, r.Header.Get("WWW-Authenticate"))
			}
		}
		for _, token := range []string{w.admin, w.restricted} {
			target, body := w.target(op, "acme", w.db)
			r := w.do(op.method, target, token, body)
			status := op.status
			if token == w.restricted && wholeTenant[op.id] {
				status = 403
			}
			if r.StatusCode != status {
				t.Errorf("%s: %d, want %d: %s", op.id, r.StatusCode, status, r.body)
			}
			checkSealed(t, op.id, r)
			if strings.Contains(string(r.body), w.foreign.String()) || strings.Contains(string(r.body), "secret-host") {
				t.Errorf("%s shows another tenant's node", op.id)
			}
			line, err := w.log.find(r.Header.Get(auth.ReferenceHeader))
			if err != nil {
				t.Fatal(err)
			}
			path, _, _ := strings.Cut(strings.Replace(op.path, "{issuer_gone}", "{issuer}", 1), "?")
			if line["tenant"] != "acme" || line["principal"] == "" || line["route"] != base+path || line["status"] != float64(status) || line["kind"] != "token" {
				t.Errorf("%s: access line %v", op.id, line)
			}
		}
	}
}

func checkSealed(t *testing.T, what string, r reply) {
	t.Helper()
	vary := strings.Join(r.Header.Values("Vary"), ",")
	if r.Header.Get("Cache-Control") != "no-store" || !strings.Contains(vary, "Authorization") || r.Header.Get("X-Content-Type-Options") != "nosniff" || r.StatusCode != 201 && r.Header.Get("Location") != "" {
		t.Errorf("%s: headers %v", what, r.Header)
	}
}

// TestUnknownTenantLooksLikeAKnownOne compares whole answers.
func TestUnknownTenantLooksLikeAKnownOne(t *testing.T) {
	w := newWorld(t)
	for _, op := range operations() {
		for _, token := range []string{"", "hunter2", w.read, w.globex} {
			do := func(tenant string) reply {
				target, body := w.target(op, tenant, w.db)
				return w.do(op.method, target, token, body)
			}
			known := do("globex")
			if token == w.globex {
				known = do("acme")
			}
			unknown := do("initech")
			strip := func(r reply) (string, http.Header) {
				ref := r.Header.Get(auth.ReferenceHeader)
				h := r.Header.Clone()
				h.Del(auth.ReferenceHeader)
				return strings.ReplaceAll(string(r.body), ref, "REF"), h
			}
			kb, kh := strip(known)
			ub, uh := strip(unknown)
			if known.StatusCode != 401 || known.StatusCode != unknown.StatusCode || kb != ub {
				t.Errorf("%s: %d %s\nand for an unknown tenant %d %s", op.id, known.StatusCode, kb, unknown.StatusCode, ub)
			}
			if d := cmp.Diff(kh, uh); d != "" {
				t.Errorf("%s: %s", op.id, d)
			}
		}
	}
}

// TestForeignObjectsDoNotExist walks every operation that takes a node, with
// the nodes that its caller may not see.
func TestForeignObjectsDoNotExist(t *testing.T) {
	w := newWorld(t)
	for _, op := range operations() {
		if !strings.Contains(op.path+op.body, "{node}") {
			continue
		}
		never := tenants.NewNodeID()
		for _, c := range []struct {
			name, token string
			node        tenants.NodeID
		}{
			{"another tenant's node", w.admin, w.foreign},
			{"a node outside the selector", w.restricted, w.web},
			{"another tenant's node, which the selector's label would match", w.restricted, w.foreign},
		} {
			do := func(id tenants.NodeID) reply {
				target, body := w.target(op, "acme", id)
				return w.do(op.method, target, c.token, body)
			}
			got, none := do(c.node), do(never)
			if got.StatusCode != 404 || none.StatusCode != 404 {
				t.Errorf("%s of %s: %d (and %d for an id that never was), want 404: %s", op.id, c.name, got.StatusCode, none.StatusCode, got.body)
				continue
			}
			a, b := got.problem(t), none.problem(t)
			a.ReferenceID, b.ReferenceID = "", ""
			a.Detail, b.Detail = strings.ReplaceAll(a.Detail, c.node.String(), "ID"), strings.ReplaceAll(b.Detail, never.String(), "ID")
			if d := cmp.Diff(b, a); d != "" {
				t.Errorf("%s of %s tells it from a node that never was: %s", op.id, c.name, d)
			}
		}
		for _, name := range []string{"secret-host", "web-1"} { // by name: the other tenant's, and the one outside
			target, body := w.target(op, "acme", w.db)
			named := strings.NewReplacer(w.db.String(), name)
			if r := w.do(op.method, named.Replace(target), w.restricted, named.Replace(body)); r.StatusCode != 404 {
				t.Errorf("%s of %s: %d, want 404", op.id, name, r.StatusCode)
			}
		}
	}
	for _, path := range w.hidden { // events and tasks of the other tenant, and of the node outside
		if r := w.do("GET", "/t/acme/api/v1"+path, w.restricted, ""); r.StatusCode != 404 {
			t.Errorf("%s: %d %s", path, r.StatusCode, r.body)
		}
		if strings.HasPrefix(path, "/tasks/") && !strings.HasSuffix(path, "/stream") {
			if r := w.do("DELETE", "/t/acme/api/v1"+path, w.restricted, ""); r.StatusCode != 404 {
				t.Errorf("cancel %s: %d %s", path, r.StatusCode, r.body)
			}
		}
	}
	if r := w.do("GET", "/t/acme/api/v1/nodes", w.restricted, ""); !strings.Contains(string(r.body), "db-1") || strings.Contains(string(r.body), "web-1") || strings.Contains(string(r.body), "secret-host") {
		t.Errorf("the restricted list is %s", r.body)
	}
}

func TestMethods(t *testing.T) {
	w := newWorld(t)
	for path, allow := range map[string][]string{
		"/t/acme/api/v1/nodes":                     {"GET", "HEAD", "OPTIONS"},
		"/t/acme/api/v1/nodes/x/modules":           {"PUT", "OPTIONS"},
		"/t/acme/api/v1/session":                   {"GET", "HEAD", "POST", "DELETE", "OPTIONS"},
		"/healthz":                                 {"GET", "HEAD", "OPTIONS"},
		"/t/acme/api/v1/tasks":                     {"GET", "HEAD", "POST", "OPTIONS"},
		"/t/acme/api/v1/tasks/x":                   {"GET", "HEAD", "DELETE", "OPTIONS"},
		"/t/acme/api/v1/events/stream":             {"GET", "HEAD", "OPTIONS"},
		"/t/acme/api/v1/metrics/query?metrics=a.b": {"GET", "HEAD", "OPTIONS"},
	} {
		for _, m := range []string{"PATCH", "OPTIONS"} {
			r := w.do(m, path, w.admin, "")
			want := 405
			if m == "OPTIONS" {
				want = 204
			}
			if got := r.Header.Values("Allow"); r.StatusCode != want || !slices.Equal(got, allow) {
				t.Errorf("%s %s: %d, Allow %v, want %d and %v", m, path, r.StatusCode, got, want, allow)
			}
		}
	}
	get, head := w.do("GET", "/t/acme/api/v1/nodes", w.read, ""), w.do("HEAD", "/t/acme/api/v1/nodes", w.read, "")
	if head.StatusCode != 200 || head.Header.Get("Content-Type") != get.Header.Get("Content-Type") {
		t.Errorf("HEAD: %d %v", head.StatusCode, head.Header)
	}
	for _, path := range []string{"/t/acme/api/v1/nodes/", "/t/acme/api/v1", "/t/acme/api/v2/nodes", "/T/acme/api/v1/nodes", "/t//api/v1/nodes", "/nodes"} {
		r := w.do("GET", path, w.admin, "")
		if r.StatusCode != 404 && r.StatusCode != 401 || r.Header.Get("Location") != "" {
			t.Errorf("GET %s: %d %v, want no such address and no redirect", path, r.StatusCode, r.Header)
		}
		r.problem(t)
	}
	for _, path := range []string{"/", "/t/acme/ui", "/t/acme/ui/nodes/7", "/assets/index-1.js"} {
		if r := w.do("GET", path, "", ""); r.StatusCode != 200 || string(r.body) != "page" {
			t.Errorf("GET %s: %d %s, want the dashboard", path, r.StatusCode, r.body)
		}
	}
}

func TestForeignHostsAndOrigins(t *testing.T) {
	w := newWorld(t)
	if r := w.do("GET", "http://evil.example/t/acme/api/v1/nodes", w.read, ""); r.StatusCode != 421 {
		t.Errorf("a foreign host: %d", r.StatusCode)
	}
	if r := w.do("GET", "http://evil.example/healthz", "", ""); r.StatusCode != 200 {
		t.Errorf("health does not depend on the host: %d", r.StatusCode)
	}
	if r := w.do("GET", "/t/acme/api/v1/nodes", w.read, "", header{"Origin", "https://evil.example"}); r.StatusCode != 403 {
		t.Errorf("a foreign origin: %d", r.StatusCode)
	}
	ask := header{"Access-Control-Request-Method", "GET"}
	pre := w.do("OPTIONS", "/t/acme/api/v1/nodes", "", "", header{"Origin", "https://inspector.example.org"}, ask)
	if pre.StatusCode != 204 || pre.Header.Get("Access-Control-Allow-Origin") != "https://inspector.example.org" || pre.Header.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("the preflight of a listed origin: %d %v", pre.StatusCode, pre.Header)
	}
	pre = w.do("OPTIONS", "/t/acme/api/v1/nodes", "", "", header{"Origin", "https://evil.example"}, ask)
	if pre.StatusCode != 403 || pre.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("the preflight of a foreign origin: %d %v", pre.StatusCode, pre.Header)
	}
}

// TestBehindAnotherRouter: the server hands what it does not know itself on.
func TestBehindAnotherRouter(t *testing.T) {
	w := newWorld(t)
	outer := chi.NewRouter()
	outer.Handle("/t/{tenant}/mcp", http.NotFoundHandler())
	outer.NotFound(w.srv.ServeHTTP)
	for target, want := range map[string]int{"/t/acme/api/v1/nodes/db-1": 200, "/t/globex/api/v1/nodes": 401, "/nowhere": 404, "/healthz": 200} {
		for _, m := range []string{"GET", "HEAD"} {
			if r := doOn(outer, m, target, w.read, ""); r.StatusCode != want {
				t.Errorf("%s %s: %d, want %d", m, target, r.StatusCode, want)
			}
		}
	}
	if r := doOn(outer, "PATCH", "/t/acme/api/v1/nodes", w.read, ""); r.StatusCode != 405 || len(r.Header.Values("Allow")) != 3 {
		t.Errorf("PATCH: %d %v", r.StatusCode, r.Header)
	}
}

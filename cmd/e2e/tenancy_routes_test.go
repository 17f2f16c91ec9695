package e2e_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// route is one operation of the OpenAPI file, with an example of what it takes.
type route struct {
	method, path, id string
	body             string   // "" where it takes none
	query            []string // names of its query parameters
	needs            []string // the required ones, as name=example
}

// tenantRoutes reads every operation below a tenant from the contract, so that
// a new one is walked without being listed here. Operations that are open to
// all are left out.
func tenantRoutes(t *testing.T) []route {
	t.Helper()
	b, err := os.ReadFile("../../api/rest/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type parameter struct {
		Ref      string `yaml:"$ref"`
		Name, In string
		Required bool
		Example  any
	}
	type operation struct {
		ID          string `yaml:"operationId"`
		Security    *[]any
		Parameters  []parameter
		RequestBody struct {
			Content map[string]struct{ Example any }
		} `yaml:"requestBody"`
	}
	var doc struct {
		Paths      map[string]map[string]yaml.Node
		Components struct{ Parameters map[string]parameter }
	}
	if err := yaml.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	var out []route
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		for _, m := range []string{"get", "post", "put", "delete", "patch"} {
			found, ok := doc.Paths[path][m]
			var op operation
			if err := found.Decode(&op); ok && err != nil {
				t.Fatal(err)
			}
			if !ok || op.Security != nil || !strings.HasPrefix(path, "/t/{tenant}/") {
				continue
			}
			r := route{method: strings.ToUpper(m), path: path, id: op.ID}
			if c, ok := op.RequestBody.Content["application/json"]; ok {
				raw, _ := json.Marshal(c.Example)
				r.body = string(raw) // null where the contract has no example
			}
			for _, p := range op.Parameters {
				if p.Ref != "" {
					p = doc.Components.Parameters[p.Ref[strings.LastIndex(p.Ref, "/")+1:]]
				}
				if p.In == "query" {
					r.query = append(r.query, p.Name)
					if p.Required {
						r.needs = append(r.needs, p.Name+"="+url.QueryEscape(fmt.Sprint(p.Example)))
					}
				}
			}
			out = append(out, r)
		}
	}
	if len(out) < 30 {
		t.Fatalf("only %d routes in the contract: is this the right file?", len(out))
	}
	return out
}

// routes sends each of globex's credentials to every route of acme's, and
// acme's ids to every route of globex's.
func (w *intruder) routes() {
	bodies := map[string]string{ // where the contract has no example, or one that could not name an object of acme's
		"updateIssuer": `{"name":"taken over"}`,
		"updateMember": `{"scopes":["telltale:read"]}`,
		"createMember": fmt.Sprintf(`{"issuer_id":%q,"subject":"mallory","scopes":["telltale:read"]}`, w.ids["issuer"]),
		"startTask":    fmt.Sprintf(`{"kind":"trace_slow_io","node":%q,"arguments":{"duration_s":1}}`, w.target.Node),
	}
	aimed := []string{"createMember", "startTask"} // their bodies name acme's objects
	for _, r := range tenantRoutes(w.t) {
		if b, ok := bodies[r.id]; ok {
			r.body = b
		}
		if r.body == "null" {
			w.t.Errorf("%s takes a body, of which the contract has no example: add one here", r.id)
		}
		path := r.path
		for name, id := range w.ids {
			path = strings.ReplaceAll(path, "{"+name+"}", id)
		}
		if strings.Contains(strings.ReplaceAll(path, "{tenant}", ""), "{") {
			w.t.Errorf("%s: no object of acme's is planted for this path", r.path)
			continue
		}
		ofAcme := path != r.path || slices.Contains(aimed, r.id)
		for who, c := range w.mine {
			at := w.s.BaseURL + strings.Replace(path, "{tenant}", "acme", 1)
			if len(r.needs) > 0 {
				at += "?" + strings.Join(r.needs, "&")
			}
			a := w.send(c, r.method, at, r.body)
			if a.status != http.StatusUnauthorized {
				w.t.Errorf("%s %s as globex's %s: %d, want 401: %s", r.method, at, who, a.status, a.body)
			}
			w.clean(r.method+" "+at, a, w.known()...)
			at = strings.Replace(at, "/t/acme/", "/t/globex/", 1)
			switch {
			case ofAcme:
				a := w.send(c, r.method, at, r.body)
				inBody := r.id == "createMember" && a.status == http.StatusBadRequest && strings.Contains(a.body, "issuer_id") // as for an id of nobody's
				if !inBody && a.status != http.StatusNotFound && a.status != http.StatusForbidden || a.status == http.StatusForbidden && c.has("admin") && c.has("diagnose") {
					w.t.Errorf("%s %s as globex's %s: %d, want 404: %s", r.method, at, who, a.status, a.body)
				}
				w.clean(r.method+" "+at, a, w.known()...)
			case r.method == http.MethodGet && !strings.HasSuffix(r.path, "/stream"):
				w.collection(r, who, c, at)
			}
		}
	}
}

// collection asks a list of globex's for its own, then for acme's: by id, by
// name, and with a cursor that acme was given.
func (w *intruder) collection(r route, who string, c cred, at string) {
	last := r.path[strings.LastIndex(r.path, "/")+1:]
	asked := []string{}
	if last == "audit" || last == "export" { // globex's own record holds what its people asked for
		asked = w.known()
	}
	a := w.send(c, r.method, at, "")
	if a.status != http.StatusOK && (a.status != http.StatusForbidden || c.has("admin")) {
		w.t.Errorf("%s as globex's %s: %d %s", at, who, a.status, a.body)
	}
	w.clean(at, a, asked...)
	with := "?"
	if strings.Contains(at, "?") {
		with = "&"
	}
	for _, name := range r.query {
		var value string
		switch name {
		case "node":
			value = w.target.Node
		case "search":
			value = w.target.Name
		case "issuer":
			value = w.ids["issuer"]
		case "reference":
			value = w.reference
		case "cursor":
			if value = w.cursors[last]; value == "" {
				continue
			}
		default:
			continue
		}
		a := w.send(c, r.method, at+with+name+"="+url.QueryEscape(value), "")
		if name == "node" && a.status != http.StatusNotFound {
			w.t.Errorf("%s of acme's %s as globex's %s: %d, want 404: %s", at, name, who, a.status, a.body)
		}
		if a.status >= 500 || a.status == http.StatusUnauthorized {
			w.t.Errorf("%s with %s=%s: %d %s", at, name, value, a.status, a.body)
		}
		w.clean(at+with+name, a, append(asked, value)...)
	}
}

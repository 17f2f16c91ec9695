package rest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/telltale-dev/telltale/tenants"
)

// An issuer that does not answer as it must is not stored, unless it is forced;
// the answer says what the test found.
func TestIssuersAreTestedBeforeTheyAreStored(t *testing.T) {
	w := newWorld(t)
	kept := w.trusted()
	count := func(sc tenants.Scope) int {
		list, _, err := w.access.ListIssuers(t.Context(), sc, "", 0)
		w.must(err)
		return len(list)
	}
	acme, other := count(w.acme), count(w.other)
	for n, c := range []struct {
		method, path, name string
		status             int
	}{
		{"POST", "/issuers", "bad", 412}, {"POST", "/issuers?force=false", "bad", 412}, {"POST", "/issuers?force=yes", "good", 400},
		{"POST", "/issuers", "good", 201}, {"POST", "/issuers?force=true", "bad", 201},
		{"PUT", "/issuers/" + kept.ID, "bad", 412}, {"PUT", "/issuers/" + kept.ID, "good", 200}, {"PUT", "/issuers/" + kept.ID + "?force=true", "bad", 200},
	} {
		body := fmt.Sprintf(`{"name":%q,"client_id":"c"}`, c.name)
		if c.method == "POST" {
			body = fmt.Sprintf(`{"name":%q,"url":"https://tested.example.org/%d"}`, c.name, n)
		}
		r := w.do(c.method, "/t/acme/api/v1"+c.path, w.admin, body)
		if r.StatusCode != c.status {
			t.Errorf("%s %s of a %s one: %d %s", c.method, c.path, c.name, r.StatusCode, r.body)
			continue
		}
		switch c.status {
		case 412:
			p := r.problem(t)
			next := strings.Join(p.Next, " ")
			if p.Reason != "issuer_test_failed" || !strings.Contains(p.Detail, "discovery (received nothing at") || !strings.Contains(next, "discovery: look") || !strings.Contains(next, "force=true") {
				t.Errorf("%+v", p)
			}
			if i, err := w.access.GetIssuer(t.Context(), w.acme, kept.ID); err != nil || !i.UpdatedAt.Equal(kept.UpdatedAt) {
				t.Errorf("changed all the same: %+v, %v", i, err)
			}
		case 200, 201:
			var v issuerView
			w.must(json.Unmarshal(r.body, &v))
			if len(v.Steps) != 2 || v.Steps[1].OK != (c.name == "good") {
				t.Errorf("the steps: %+v", v.Steps)
			}
		}
	}
	// What exists already is not asked.
	r := w.do("POST", "/t/acme/api/v1/issuers", w.admin, fmt.Sprintf(`{"name":"bad","url":%q}`, kept.URL))
	if p := r.problem(t); r.StatusCode != 409 || p.Reason != "issuer_exists" {
		t.Errorf("once more: %d %+v", r.StatusCode, p)
	}
	if a, o := count(w.acme), count(w.other); a != acme+2 || o != other {
		t.Errorf("%d issuers of acme, %d of the other", a-acme, o-other)
	}
	// Who may not store one has nobody asked.
	r = w.do("POST", "/t/acme/api/v1/issuers", w.restricted, `{"name":"bad","url":"https://tested.example.org/x"}`)
	if p := r.problem(t); r.StatusCode != 403 || p.Reason != "outside_selector" {
		t.Errorf("limited: %d %+v", r.StatusCode, p)
	}
}

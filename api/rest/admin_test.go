package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/directory"
)

// wholeTenant lists what a caller that is limited to some nodes may not do.
var wholeTenant = map[string]bool{"setTenant": true, "exportTenant": true, "deleteTenant": true, "createIssuer": true, "updateIssuer": true, "deleteIssuer": true, "testIssuer": true, "setQuotas": true, "getUsage": true}

// openSeal seals nothing.
type openSeal struct{}

func (openSeal) Seal(plain []byte, use string) []byte { return append([]byte(use), plain...) }

// stepsOf is a test that finds one thing.
type stepsOf struct{}

func (stepsOf) Test(_ context.Context, i tenants.Issuer) []tenants.Step {
	return []tenants.Step{{Name: "url", OK: true}, {Name: "discovery", OK: i.Name == "good", Expected: "metadata", Received: "nothing at " + i.URL, Next: "look"}}
}

// quotasOf reads the quotas of a world that is not whole yet.
type quotasOf struct{ w *world }

func (q quotasOf) PolicyOf(ctx context.Context, t tenants.TenantID) (tenants.Policy, error) {
	return q.w.access.PolicyOf(ctx, t)
}

func fixed(n int64) Counter {
	return CounterFunc(func(context.Context, tenants.Scope) (int64, error) { return n, nil })
}

type failing struct{}

func (failing) LastDay(context.Context, tenants.Scope) (audit.Day, error) {
	return audit.Day{}, errors.New("secret cause")
}

func (w *world) newIssuer(sc tenants.Scope) tenants.Issuer {
	w.t.Helper()
	w.made++
	secret := "hunter2-client-secret"
	i, err := w.access.CreateIssuer(context.Background(), sc, access.IssuerSpec{URL: fmt.Sprint("https://idp.example.org/", w.made), ClientID: "c", ClientSecret: &secret, Opaque: true, Roles: []tenants.RoleRule{
		{Claim: "groups", Value: "all", Scopes: tenants.Read}, {Claim: "groups", Value: "dbas", Scopes: tenants.Act, Nodes: roleDB},
	}})
	w.must(err)
	return i
}

// trusted is an issuer of acme, always the same.
func (w *world) trusted() tenants.Issuer {
	w.t.Helper()
	if w.issuer == nil {
		i := w.newIssuer(w.acme)
		w.issuer = &i
	}
	return *w.issuer
}

func (w *world) newMember(sc tenants.Scope, issuer string, nodes tenants.Selector) tenants.Member {
	w.t.Helper()
	w.made++
	m, err := w.access.CreateMember(context.Background(), sc, access.MemberSpec{IssuerID: issuer, Subject: fmt.Sprint("subject ", w.made), Scopes: tenants.Read, Nodes: nodes})
	w.must(err)
	return m
}

var roleDB = tenants.Selector{Labels: map[string]string{"role": "db"}}

// fresh makes what an operation changes or removes, so that it can be repeated.
func (w *world) fresh(o operation) []string {
	w.t.Helper()
	w.made++
	out := []string{"{n}", strconv.Itoa(w.made)}
	if strings.Contains(o.path+o.body, "{issuer}") {
		out = append(out, "{issuer}", w.trusted().ID)
	}
	ctx := context.Background()
	switch {
	case strings.Contains(o.path, "{token}"):
		_, tok, err := w.access.CreateToken(ctx, w.acme, access.TokenSpec{Name: "fresh", Scopes: tenants.Read, Nodes: roleDB})
		w.must(err)
		out = append(out, "{token}", tok.ID)
	case strings.Contains(o.path, "{enrol_token}"):
		_, tok, err := w.dir.CreateEnrolToken(ctx, w.acme, directory.EnrolTokenSpec{Labels: roleDB.Labels})
		w.must(err)
		out = append(out, "{enrol_token}", tok.ID)
	case strings.Contains(o.path, "{member}"):
		out = append(out, "{member}", w.newMember(w.acme, w.trusted().ID, roleDB).ID)
	case strings.Contains(o.path, "{issuer_gone}"):
		out = append(out, "{issuer_gone}", w.newIssuer(w.acme).ID)
	}
	return out
}

func adminOperations() (out []operation) {
	for _, o := range operations() {
		if o.need == tenants.Admin {
			out = append(out, o)
		}
	}
	return out
}

// TestAdministrationNeedsItsScope crosses every route of the administration
// with every scope.
func TestAdministrationNeedsItsScope(t *testing.T) {
	w := newWorld(t)
	if n := len(adminOperations()); n < 20 {
		t.Fatalf("%d operations", n)
	}
	for _, scope := range append(tenants.AllScopes(), tenants.EveryScope&^tenants.Admin, tenants.Admin|tenants.Read) {
		secret, _, err := w.access.CreateToken(t.Context(), w.acme, access.TokenSpec{Name: "one", Scopes: scope})
		w.must(err)
		for _, op := range adminOperations() {
			target, body := w.target(op, "acme", w.db)
			r := w.do(op.method, target, secret, body)
			want := op.status
			if !scope.Has(tenants.Admin) {
				want = 403
				if got := r.Header.Get("WWW-Authenticate"); !strings.Contains(got, "insufficient_scope") || !strings.Contains(got, "telltale:admin") {
					t.Errorf("%s with %s: challenge %q", op.id, scope, got)
				}
			}
			if r.StatusCode != want {
				t.Errorf("%s with %s: %d, want %d: %s", op.id, scope, r.StatusCode, want, r.body)
			}
		}
	}
}

// TestForeignCredentialsDoNotExist asks for what another tenant has, and for
// what reaches further than the caller: both look like what never was.
func TestForeignCredentialsDoNotExist(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	theirIssuer := w.newIssuer(w.other)
	type ids struct{ token, enrol, issuer, member string }
	objects := func(sc tenants.Scope, issuer string) ids {
		_, tok, err := w.access.CreateToken(ctx, sc, access.TokenSpec{Name: "wide", Scopes: tenants.Read})
		w.must(err)
		_, enrol, err := w.dir.CreateEnrolToken(ctx, sc, directory.EnrolTokenSpec{})
		w.must(err)
		return ids{tok.ID, enrol.ID, issuer, w.newMember(sc, issuer, tenants.Selector{}).ID}
	}
	theirs, wide := objects(w.other, theirIssuer.ID), objects(w.acme, w.trusted().ID)
	never := ids{"aaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaa", tenants.NewNodeID().String(), tenants.NewNodeID().String()}
	for _, c := range []struct {
		name, token string
		ids         ids
	}{{"another tenant's", w.admin, theirs}, {"one that reaches further", w.restricted, wide}, {"another tenant's, limited", w.restricted, theirs}} {
		for _, a := range []struct{ method, path, body string }{
			{"DELETE", "/tokens/{token}", ""}, {"DELETE", "/enrol-tokens/{enrol}", ""},
			{"GET", "/issuers/{issuer}", ""}, {"PUT", "/issuers/{issuer}?force=true", `{"name":"mine"}`}, {"DELETE", "/issuers/{issuer}", ""}, {"POST", "/issuers/{issuer}/test", ""},
			{"GET", "/members/{member}", ""}, {"PUT", "/members/{member}", `{"scopes":["telltale:read"],"nodes":{"labels":{"role":"db"}}}`}, {"DELETE", "/members/{member}", ""},
		} {
			if c.token == w.restricted && strings.HasPrefix(a.path, "/issuers/") && (a.method != "GET" || c.ids == wide) {
				continue // refused as such, or shown without the rules that reach further
			}
			ask := func(i ids) reply {
				return w.do(a.method, "/t/acme/api/v1"+strings.NewReplacer("{token}", i.token, "{enrol}", i.enrol, "{issuer}", i.issuer, "{member}", i.member).Replace(a.path), c.token, a.body)
			}
			got, none := ask(c.ids), ask(never)
			if got.StatusCode != 404 || none.StatusCode != 404 {
				t.Errorf("%s %s of %s: %d and %d, want 404: %s", a.method, a.path, c.name, got.StatusCode, none.StatusCode, got.body)
				continue
			}
			p, q := got.problem(t), none.problem(t)
			p.ReferenceID, q.ReferenceID = "", ""
			if d := cmp.Diff(q, p); d != "" {
				t.Errorf("%s %s of %s tells it from what never was: %s", a.method, a.path, c.name, d)
			}
		}
	}
	for _, path := range []string{"/tokens", "/enrol-tokens", "/members", "/issuers", "/members?issuer=" + theirs.issuer} {
		for _, token := range []string{w.admin, w.restricted} {
			r := w.do("GET", "/t/acme/api/v1"+path, token, "")
			for _, id := range []string{theirs.token, theirs.enrol, theirs.issuer, theirs.member} {
				if r.StatusCode != 200 || strings.Contains(string(r.body), id) {
					t.Errorf("%s: %d shows %s: %s", path, r.StatusCode, id, r.body)
				}
			}
			if few := token == w.restricted; few != !(strings.Contains(string(r.body), wide.token) || strings.Contains(string(r.body), wide.enrol) || strings.Contains(string(r.body), wide.member) || strings.Contains(string(r.body), `"all"`)) && !strings.Contains(path, "?") {
				t.Errorf("%s: limited %v: %s", path, few, r.body)
			}
		}
	}
	// What could not be removed works.
	if _, err := w.access.GetIssuer(ctx, w.other, theirs.issuer); err != nil {
		t.Error(err)
	}
	if tok, err := w.access.TokenByID(ctx, theirs.token); err != nil || tok.RevokedAt != nil {
		t.Errorf("%+v, %v", tok, err)
	}
}

// TestNothingWiderThanItself: a limited administrator gives no more than it has.
func TestNothingWiderThanItself(t *testing.T) {
	w := newWorld(t)
	for _, a := range []struct{ path, body string }{
		{"/tokens", `{"name":"t","scopes":["telltale:read"]}`},
		{"/tokens", `{"name":"t","scopes":["telltale:read"],"nodes":{"labels":{"role":"web"}}}`},
		{"/tokens", `{"name":"t","scopes":["telltale:read"],"nodes":{"ids":["` + w.web.String() + `"]}}`},
		{"/enrol-tokens", `{}`}, {"/enrol-tokens", `{"labels":{"role":"web"}}`},
		{"/members", `{"issuer_id":"` + w.trusted().ID + `","subject":"x","scopes":["telltale:read"]}`},
		{"/issuers", `{"url":"https://evil.example.net","roles":[{"everybody":true,"scopes":["telltale:admin"],"nodes":{"labels":{"role":"db"}}}]}`},
	} {
		r := w.do("POST", "/t/acme/api/v1"+a.path, w.restricted, a.body)
		if p := r.problem(t); r.StatusCode != 403 || p.Reason != "outside_selector" || len(p.Next) == 0 || r.Header.Get("WWW-Authenticate") != "" {
			t.Errorf("%s %s: %d %+v", a.path, a.body, r.StatusCode, p)
		}
	}
	// What it may make works within its nodes and no further.
	var made tokenMade
	r := w.do("POST", "/t/acme/api/v1/tokens", w.restricted, `{"name":"t","scopes":["telltale:admin"],"nodes":{"labels":{"role":"db"}}}`)
	w.must(json.Unmarshal(r.body, &made))
	if list := w.do("GET", "/t/acme/api/v1/nodes", made.Secret, ""); !strings.Contains(string(list.body), "db-1") || strings.Contains(string(list.body), "web-1") {
		t.Errorf("sees %s", list.body)
	}
	if r := w.do("GET", "/t/globex/api/v1/nodes", made.Secret, ""); r.StatusCode != 401 {
		t.Errorf("in another tenant: %d", r.StatusCode)
	}
}

// TestLostUpdates: a change on what somebody else changed meanwhile is refused.
func TestLostUpdates(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ path, force, one, two string }{
		{"/issuers/" + w.trusted().ID, "?force=true", `{"name":"one","client_id":"c"}`, `{"name":"two","client_id":"c"}`}, {"/quotas", "", `{"max_issuers":60}`, `{"max_issuers":50}`},
	} {
		path := "/t/acme/api/v1" + c.path
		seen := w.do("GET", path, w.admin, "")
		first := w.do("PUT", path+c.force, w.admin, c.one, header{"If-Match", seen.Header.Get("ETag")})
		if first.StatusCode != 200 || first.Header.Get("ETag") == seen.Header.Get("ETag") || seen.Header.Get("ETag") == "" {
			t.Fatalf("%s: %d %v %s", c.path, first.StatusCode, first.Header, first.body)
		}
		late := w.do("PUT", path+c.force, w.admin, c.two, header{"If-Match", seen.Header.Get("ETag")})
		if p := late.problem(t); late.StatusCode != 412 || p.Reason != "changed_meanwhile" || late.Header.Get("ETag") != "" {
			t.Errorf("%s: %d %+v", c.path, late.StatusCode, p)
		}
		if now := w.do("GET", path, w.admin, ""); now.Header.Get("ETag") != first.Header.Get("ETag") {
			t.Errorf("%s: changed by a refused write", c.path)
		}
		for _, match := range []string{first.Header.Get("ETag"), "", "*"} {
			if r := w.do("PUT", path+c.force, w.admin, c.two, header{"If-Match", match}); r.StatusCode != 200 {
				t.Errorf("%s with %q: %d %s", c.path, match, r.StatusCode, r.body)
			}
		}
		for _, match := range []string{"x", `"`, `"!"`, `W/"1"`, `"1", "2"`, `"-5"`} {
			if r := w.do("PUT", path+c.force, w.admin, c.two, header{"If-Match", match}); r.StatusCode != 400 {
				t.Errorf("%s with %q: %d", c.path, match, r.StatusCode)
			}
		}
	}
	// The first change of what was never set.
	none := w.do("GET", "/t/globex/api/v1/quotas", w.globex, "")
	if r := w.do("PUT", "/t/globex/api/v1/quotas", w.globex, `{}`, header{"If-Match", none.Header.Get("ETag")}); r.StatusCode != 200 {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	if r := w.do("PUT", "/t/globex/api/v1/quotas", w.globex, `{}`, header{"If-Match", none.Header.Get("ETag")}); r.StatusCode != 412 {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
}

// TestSecretsAreShownOnce looks for secrets everywhere but in the one answer.
func TestSecretsAreShownOnce(t *testing.T) {
	w := newWorld(t)
	var tok tokenMade
	var enrol enrolTokenMade
	w.must(json.Unmarshal(w.do("POST", "/t/acme/api/v1/tokens", w.admin, `{"name":"ci","scopes":["telltale:read"],"networks":["192.0.2.0/24"],"expires_at":"2999-01-01T00:00:00Z"}`).body, &tok))
	w.must(json.Unmarshal(w.do("POST", "/t/acme/api/v1/enrol-tokens", w.admin, `{}`).body, &enrol))
	made := w.do("POST", "/t/acme/api/v1/issuers?force=true", w.admin, `{"url":"https://idp.example.com","client_id":"c","client_secret":"correct-horse","opaque":true,"roles":[{"claim":"groups","value":"sre","scopes":["telltale:act"]}]}`)
	var i issuerView
	w.must(json.Unmarshal(made.body, &i))
	if made.StatusCode != 201 || made.Header.Get("Location") != "/t/acme/api/v1/issuers/"+i.ID || !i.HasClientSecret || i.Name != "idp.example.com" {
		t.Errorf("%d %v %s", made.StatusCode, made.Header, made.body)
	}
	if !strings.HasPrefix(tok.Secret, "tt_") || !strings.HasPrefix(enrol.Secret, "tte_") {
		t.Errorf("%+v %+v", tok, enrol)
	}
	// How the making ended is in the audit within a second.
	for end := time.Now().Add(10 * time.Second); !strings.Contains(string(w.do("GET", "/t/acme/api/v1/audit?action=POST+tokens&outcome=ok", w.admin, "").body), "name=ci"); {
		if time.Now().After(end) {
			t.Fatal("the audit does not know of the token")
		}
	}
	everything := w.log.String() + string(made.body)
	for _, path := range []string{"/tokens", "/enrol-tokens", "/issuers", "/issuers/" + i.ID, "/audit?limit=200", "/quotas", "/usage"} {
		everything += string(w.do("GET", "/t/acme/api/v1"+path, w.admin, "").body)
	}
	everything += string(w.do("POST", "/t/acme/api/v1/issuers/"+i.ID+"/test", w.admin, "").body)
	for _, secret := range []string{tok.Secret, enrol.Secret, "correct-horse", "hunter2-client-secret"} {
		if strings.Contains(everything, secret) {
			t.Errorf("%.8s… is shown again", secret)
		}
	}
	if !strings.Contains(everything, tok.Token.ID) {
		t.Error("the token is nowhere in the lists")
	}
	// Without the secret a change keeps it, and an empty one removes it.
	for _, c := range []struct { // in this order
		body string
		want bool
	}{{`{"client_id":"c","opaque":true}`, true}, {`{"client_id":"c","client_secret":""}`, false}} {
		var after issuerView
		w.must(json.Unmarshal(w.do("PUT", "/t/acme/api/v1/issuers/"+i.ID+"?force=true", w.admin, c.body).body, &after))
		if after.HasClientSecret != c.want || len(after.Roles) != 0 || len(after.Notes) == 0 {
			t.Errorf("%s: %+v", c.body, after)
		}
	}
}

// TestMisspeltLimitsAreRefused: what is misspelt must not widen what was to be limited.
func TestMisspeltLimitsAreRefused(t *testing.T) {
	w := newWorld(t)
	token := func(rest string) string { return `{"name":"t","scopes":["telltale:read"],` + rest + `}` }
	issuer := func(rest string) string {
		return `{"url":"https://x.example.com","roles":[{"scopes":["telltale:read"],` + rest + `}]}`
	}
	for _, c := range []struct{ path, body, field string }{
		{"/tokens", token(`"nodes":{"label":{"role":"db"}}`), "nodes.label"},
		{"/tokens", token(`"nodes":{"Labels":{"role":"db"}}`), "nodes.Labels"},
		{"/tokens", token(`"nodes":{"labels":{"role":"db"},"labels":{}}`), "labels"},
		{"/tokens", token(`"nodes":{}`), "nodes"}, {"/tokens", token(`"nodes":{"ids":[]}`), "nodes"}, {"/tokens", token(`"nodes":{"labels":null}`), "nodes"},
		{"/tokens", token(`"nodes":[]`), "nodes"}, {"/tokens", token(`"nodes":{"ids":["x"]}`), "nodes.ids"}, {"/tokens", token(`"nodes":{"ids":"x"}`), "nodes.ids"},
		{"/tokens", token(`"networks":["all"]`), "networks"}, {"/tokens", token(`"networks":["::ffff:10.0.0.0/104"]`), "networks"},
		{"/tokens", token(`"expires_at":"2001-01-01T00:00:00Z"`), "expires_at"}, {"/tokens", token(`"secret":"x"`), "secret"},
		{"/tokens", `{"name":"t"}`, "scopes"}, {"/tokens", `{"name":"t","scopes":["read"]}`, "scopes"}, {"/tokens", `{"name":"t","scopes":["telltale:everything"]}`, "scopes"},
		{"/tokens", `{"scopes":["telltale:read"]}`, "name"},
		{"/enrol-tokens", `{"uses":-1}`, "uses"}, {"/enrol-tokens", `{"expires_s":-1}`, "expires_s"}, {"/enrol-tokens", `{"expires_s":9223372036854775807}`, "expires_s"},
		{"/issuers", issuer(`"everybody":false`), "roles[0]"}, {"/issuers", issuer(`"value":"sre"`), "roles[0].claim"}, {"/issuers", issuer(`"claim":"a","value":"b","everybody":true`), "roles[0]"},
		{"/issuers", issuer(`"everbody":true`), "roles.everbody"}, {"/issuers", issuer(`"everybody":true,"nodes":{"node":["x"]}`), "roles.nodes.node"}, {"/issuers", issuer(`"everybody":true,"nodes":{}`), "roles[0].nodes"},
		{"/issuers", `{"url":"http://127.0.0.1/"}`, "url"}, {"/issuers", `{"url":"https://x.example.com","mode":"static"}`, "audiences"}, {"/issuers", `{"url":"https://x.example.com","algorithms":["HS256"]}`, "algorithms"},
		{"/issuers", `{"url":"https://x.example.com","opaque":true}`, "client_secret"},
		{"/members", `{"issuer_id":"x","subject":"s","scopes":["telltale:read"]}`, "issuer_id"}, {"/members", `{"issuer_id":"` + w.trusted().ID + `","scopes":["telltale:read"]}`, "subject"},
	} {
		r := w.do("POST", "/t/acme/api/v1"+c.path, w.admin, c.body)
		if p := r.problem(t); r.StatusCode != 400 || p.Field != c.field {
			t.Errorf("%s %s: %d, field %q, want %q: %s", c.path, c.body, r.StatusCode, p.Field, c.field, p.Detail)
		}
	}
	for _, c := range []struct{ body, field string }{
		{`{"scopes":[]}`, "scopes"}, {`{"max_tokens":501}`, "max_tokens"}, {`{"principal_rate":-1}`, "principal_rate"}, {`{"principal_rate":1e3}`, "principal_rate"}, {`{"scopes":["telltale:read"],"first_scopes":["telltale:act"]}`, "first_scopes"}, {`{"quota":1}`, "quota"},
	} {
		r := w.do("PUT", "/t/acme/api/v1/quotas", w.admin, c.body)
		if p := r.problem(t); r.StatusCode != 400 || p.Field != c.field {
			t.Errorf("%s: %d %+v", c.body, r.StatusCode, p)
		}
	}
}

func TestFullQuotas(t *testing.T) {
	w := newWorld(t)
	if r := w.do("PUT", "/t/acme/api/v1/quotas", w.admin, `{"max_tokens":1,"max_issuers":1,"max_members":1,"max_enrol_tokens":1}`); r.StatusCode != 200 {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	w.newMember(w.acme, w.trusted().ID, tenants.Selector{})
	if r := w.do("POST", "/t/acme/api/v1/enrol-tokens", w.admin, `{}`); r.StatusCode != 201 {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	for path, body := range map[string]string{
		"tokens": `{"name":"t","scopes":["telltale:read"]}`, "enrol-tokens": `{}`, "issuers": `{"url":"https://x.example.com","name":"good"}`, "members": `{"issuer_id":"` + w.trusted().ID + `","subject":"s","scopes":["telltale:read"]}`,
	} {
		r := w.do("POST", "/t/acme/api/v1/"+path, w.admin, body)
		word := strings.ReplaceAll(path, "-", "_")
		if p := r.problem(t); r.StatusCode != http.StatusTooManyRequests || p.Reason != "quota_"+word || p.Field != "max_"+word || len(p.Next) == 0 || r.Header.Get("Retry-After") != "" {
			t.Errorf("%s: %d %+v", path, r.StatusCode, p)
		}
	}
	if r := w.do("POST", "/t/globex/api/v1/tokens", w.globex, `{"name":"t","scopes":["telltale:read"]}`); r.StatusCode != 201 {
		t.Errorf("globex: %d %s", r.StatusCode, r.body)
	}
}

func TestUsage(t *testing.T) {
	w := newWorld(t)
	w.newMember(w.acme, w.trusted().ID, tenants.Selector{})
	var got usageView
	r := w.do("GET", "/t/acme/api/v1/usage", w.admin, "")
	w.must(json.Unmarshal(r.body, &got))
	n := func(used_, most int64) *used { return &used{used_, &most} }
	want := usageView{
		Nodes: n(2, tenants.DefaultMaxNodes), EnrolTokens: n(0, tenants.DefaultMaxEnrolTokens), Tokens: n(5, tenants.DefaultMaxTokens), Issuers: n(1, 100), Members: n(1, tenants.DefaultMaxMembers),
		ActiveTasks: &used{Used: 3}, Notes: []string{"day_calls and day_refusals: not known at this moment"},
	}
	if d := cmp.Diff(want, got); d != "" || strings.Contains(string(r.body), "secret cause") || strings.Contains(string(r.body), `"day_refusals"`) {
		t.Errorf("%s\n%s", d, r.body)
	}
}

func TestListsOfTheAdministration(t *testing.T) {
	w := newWorld(t)
	for range 3 {
		w.newMember(w.acme, w.trusted().ID, tenants.Selector{})
		w.newIssuer(w.acme)
		if r := w.do("POST", "/t/acme/api/v1/enrol-tokens", w.admin, `{}`); r.StatusCode != 201 {
			t.Fatalf("%d %s", r.StatusCode, r.body)
		}
	}
	for path, member := range map[string]string{"/tokens": "tokens", "/enrol-tokens": "enrol_tokens", "/issuers": "issuers", "/members": "members"} {
		seen := map[string]bool{}
		cursor := ""
		for pages := 0; ; pages++ {
			target := "/t/acme/api/v1" + path + "?limit=2"
			if cursor != "" {
				target += "&cursor=" + cursor
			}
			var body map[string]json.RawMessage
			r := w.do("GET", target, w.admin, "")
			w.must(json.Unmarshal(r.body, &body))
			var rows []struct{ ID string }
			w.must(json.Unmarshal(body[member], &rows))
			for _, row := range rows {
				if seen[row.ID] {
					t.Errorf("%s shows %s twice", path, row.ID)
				}
				seen[row.ID] = true
			}
			if body["next_cursor"] == nil {
				break
			}
			w.must(json.Unmarshal(body["next_cursor"], &cursor))
			if pages > 10 {
				t.Fatalf("%s does not end", path)
			}
		}
		if len(seen) < 3 {
			t.Errorf("%s: %d rows", path, len(seen))
		}
		if r := w.do("GET", "/t/acme/api/v1"+path+"?limit=100000", w.admin, ""); !strings.Contains(string(r.body), "limit was clamped to 200") {
			t.Errorf("%s: %s", path, r.body)
		}
		// Another tenant's cursor leads nowhere but into one's own rows.
		if r := w.do("GET", "/t/globex/api/v1"+path+"?cursor="+cursor, w.globex, ""); r.StatusCode != 200 {
			t.Errorf("%s: %d %s", path, r.StatusCode, r.body)
		} else {
			for id := range seen {
				if strings.Contains(string(r.body), id) {
					t.Errorf("%s shows globex %s", path, id)
				}
			}
		}
	}
	if r := w.do("GET", "/t/acme/api/v1/members?issuer=x", w.admin, ""); r.StatusCode != 400 || r.problem(t).Field != "issuer" {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
}

func TestIssuerTestIsShown(t *testing.T) {
	w := newWorld(t)
	r := w.do("POST", "/t/acme/api/v1/issuers/"+w.trusted().ID+"/test", w.admin, "")
	var got issuerTest
	w.must(json.Unmarshal(r.body, &got))
	if got.OK || len(got.Steps) != 2 || got.Steps[1].Next == "" || got.ReferenceID == "" || got.ReferenceID != r.Header.Get("Telltale-Reference") || got.Issuer != w.trusted().URL {
		t.Errorf("%s", r.body)
	}
}

// TestWritesWithASessionNeedItsToken: a form of another page makes no tokens.
func TestWritesWithASessionNeedItsToken(t *testing.T) {
	w := newWorld(t)
	in := w.do("POST", "/t/acme/api/v1/session", "", `{"token":"`+w.admin+`"}`)
	cookie := header{"Cookie", cookieOf(t, in)}
	var session struct{ CSRF string }
	w.must(json.Unmarshal(in.body, &session))
	const body = `{"name":"t","scopes":["telltale:read"]}`
	if r := w.do("POST", "/t/acme/api/v1/tokens", "", body, cookie); r.StatusCode != 403 || r.problem(t).Reason != "credential_csrf" {
		t.Errorf("without: %d %s", r.StatusCode, r.body)
	}
	if r := w.do("POST", "/t/acme/api/v1/tokens", "", body, cookie, header{"Telltale-CSRF", session.CSRF}); r.StatusCode != 201 {
		t.Errorf("with: %d %s", r.StatusCode, r.body)
	}
}

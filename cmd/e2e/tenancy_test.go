package e2e_test

import (
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/auth/authtest"
)

// secretMark is part of everything that acme's people named themselves. Nobody
// of globex may ever read it.
const secretMark = "acmes-own-7q"

// intruder walks acme's doors with what globex has, and globex's doors with
// acme's ids.
type intruder struct {
	t            *testing.T
	s            *stack
	acme, globex tenant
	target       node              // of acme's, named with the mark
	ids          map[string]string // acme's objects by the name of their path parameter
	reference    string            // of a refusal at acme
	cursors      map[string]string // of acme's lists by the last word of their path
	words        []*regexp.Regexp  // what globex must not read
	mine         map[string]cred   // credentials of globex
}

// cred is one way to be somebody.
type cred struct {
	bearer string
	header []string // instead of a bearer: a session
	scopes []string // short names
}

func (c cred) has(scope string) bool { return scope == "" || slices.Contains(c.scopes, scope) }

// tenantsNeverMeet walks every route, tool, resource and stream with each of
// globex's credentials: at acme's addresses they are worth nothing, and acme's
// ids do not exist under globex's own. Then it looks that acme lost nothing.
func tenantsNeverMeet(t *testing.T, s *stack, acme, globex tenant) {
	if s.Issuer == nil {
		t.Fatal("no identity provider: deploy/deps.sh test installs it")
	}
	w := &intruder{t: t, s: s, acme: acme, globex: globex, ids: map[string]string{}, cursors: map[string]string{}, mine: map[string]cred{}}
	w.plant()
	w.arm(authtest.At(*s.Issuer, s.BaseURL))
	if own := nodes(t, globex); len(own) != 1 {
		t.Errorf("globex sees %d nodes, want its one simulated node", len(own))
	}
	t.Run("routes", func(t *testing.T) { w.t = t; w.routes() })
	t.Run("tools", func(t *testing.T) { w.t = t; w.tools() })
	t.Run("resources and streams", func(t *testing.T) { w.t = t; w.resources(); w.streams() })
	t.Run("doors", func(t *testing.T) { w.t = t; w.doors(authtest.At(*s.Issuer, s.BaseURL)) })
	w.t = t
	for _, path := range []string{"/issuers/" + w.ids["issuer"], "/members/" + w.ids["member"], "/tasks/" + w.ids["ticket"], "/events/" + w.ids["event"], "/nodes/" + w.ids["node"], "/tenant"} {
		if a := call(t, http.MethodGet, acme.RESTURL+path, acme.Tokens["admin"], ""); a.status != http.StatusOK || strings.Contains(a.body, `"suspended":true`) {
			t.Errorf("acme's own %s after the walk: %d %s", path, a.status, a.body)
		}
	}
	if a := call(t, http.MethodGet, acme.RESTURL+"/tokens?limit=200", acme.Tokens["admin"], ""); strings.Count(a.body, `"revoked_at"`) > 0 {
		t.Errorf("a token of acme's was revoked: %s", a.body)
	}
}

// plant makes one of everything for acme.
func (w *intruder) plant() {
	t, acme := w.t, w.acme
	cmd := exec.Command(filepath.Join(bin, "telltale-agent"), "simulate", "--n", "2", "--prefix", secretMark+"-", "--events-per-min", "300",
		"--server", w.s.GRPCAddr, "--ca", w.s.CAFile, "--token", acme.EnrolToken, "--dir", t.TempDir())
	start(t, cmd)
	name := secretMark + "-0001"
	w.s.await(30*time.Second, "a task of acme's", func() bool {
		_, doc := startTask(t, acme, "trace_slow_io", name, map[string]any{"duration_s": 1})
		w.ids["ticket"] = doc.Ticket
		return doc.Status == "COMPLETED"
	})
	w.s.await(20*time.Second, "two events of acme's", func() bool {
		var page struct{ Events []eventDoc }
		rest(t, acme, "read", http.MethodGet, "/events?limit=2&node="+name, nil, &page)
		if len(page.Events) > 0 {
			w.ids["event"] = page.Events[0].ID
		}
		return len(page.Events) == 2
	})
	for _, n := range nodes(t, acme) {
		if n.Name == name {
			w.target = n
		}
		w.secret(n.Node) // this machine's name is no secret: servers call themselves by it, too
	}
	w.ids["node"] = w.target.Node

	issuers, _ := w.list("/issuers", "issuers")
	w.ids["issuer"] = issuers[0]["id"].(string)
	w.ids["member"] = w.make("/members", map[string]any{"issuer_id": w.ids["issuer"], "subject": secretMark + "-somebody", "name": secretMark + " member", "scopes": []string{"telltale:read"}}, "")
	w.make("/members", map[string]any{"issuer_id": w.ids["issuer"], "subject": secretMark + "-else", "scopes": []string{"telltale:read"}}, "")
	w.ids["token"] = w.make("/tokens", map[string]any{"name": secretMark + " token", "scopes": []string{"telltale:read"}, "nodes": map[string]any{"ids": []string{w.target.Node}}}, "token")
	w.ids["enrol_token"] = w.make("/enrol-tokens", map[string]any{"labels": map[string]string{"team": secretMark}}, "enrol_token")
	refused := call(t, http.MethodGet, acme.RESTURL+"/nodes", "tt_nonsense", "")
	w.reference = refused.header.Get("Telltale-Reference")
	for path, member := range map[string]string{"nodes": "nodes", "events": "events", "tasks": "tasks", "audit": "entries", "tokens": "tokens", "enrol-tokens": "enrol_tokens", "members": "members"} {
		if path == "tasks" {
			startTask(t, acme, "trace_slow_io", name, map[string]any{"duration_s": 1})
		}
		_, cursor := w.list("/"+path+"?limit=1", member)
		if cursor == "" {
			t.Errorf("acme's %s have no second page", path)
		}
		w.cursors[path] = cursor
	}
	for _, id := range w.ids {
		w.secret(id)
	}
	w.secret(w.reference)
	w.words = append(w.words, regexp.MustCompile(secretMark))
}

func (w *intruder) secret(words ...string) {
	for _, s := range words {
		w.words = append(w.words, regexp.MustCompile(`\b`+regexp.QuoteMeta(s)+`\b`))
	}
}

// list reads a page of acme's as its administrator.
func (w *intruder) list(path, member string) ([]map[string]any, string) {
	w.t.Helper()
	var page map[string]any
	if status := rest(w.t, w.acme, "admin", http.MethodGet, path, nil, &page); status != http.StatusOK {
		w.t.Fatalf("%s: %d %v", path, status, page)
	}
	var rows []map[string]any
	for _, r := range page[member].([]any) {
		rows = append(rows, r.(map[string]any))
	}
	cursor, _ := page["next_cursor"].(string)
	if cut, ok := page["truncated"].(map[string]any); ok && cursor == "" {
		cursor, _ = cut["next_cursor"].(string)
	}
	return rows, cursor
}

// make creates something of acme's and returns its id.
func (w *intruder) make(path string, body map[string]any, within string) string {
	w.t.Helper()
	var made map[string]any
	status := rest(w.t, w.acme, "admin", http.MethodPost, path, body, &made)
	if inner, ok := made[within].(map[string]any); ok {
		made = inner
	}
	id, _ := made["id"].(string)
	if status != http.StatusCreated || id == "" {
		w.t.Fatalf("POST %s: %d %v", path, status, made)
	}
	return id
}

// arm collects every kind of credential that globex's people can have.
func (w *intruder) arm(idp *authtest.Provider) {
	t := w.t
	for kind, token := range w.globex.Tokens {
		w.mine["operator "+kind] = cred{bearer: token, scopes: []string{"read", kind}}
	}
	const scope = "telltale:read telltale:diagnose telltale:admin"
	w.mine["carol"] = cred{bearer: idp.Token(t, authtest.Carol, "", scope, w.globex.MCPURL), scopes: []string{"read", "diagnose"}}
	w.mine["dana"] = cred{bearer: idp.Token(t, authtest.Dana, "", scope, w.globex.MCPURL), scopes: []string{"read", "diagnose", "admin"}}
	w.mine["session"] = cred{header: session(t, w.globex, "admin"), scopes: []string{"read", "admin"}}
}

// session signs in to the dashboard with an operator token and returns the
// headers of a write with that session.
func session(t *testing.T, x tenant, kind string) []string {
	t.Helper()
	a := call(t, http.MethodPost, x.RESTURL+"/session", "", fmt.Sprintf(`{"token":%q}`, x.Tokens[kind]), "Content-Type", "application/json")
	csrf := regexp.MustCompile(`"csrf":"([^"]+)"`).FindStringSubmatch(a.body)
	cookie, _, _ := strings.Cut(a.header.Get("Set-Cookie"), ";")
	if a.status != http.StatusCreated || csrf == nil || cookie == "" {
		t.Fatalf("sign in at %s: %d %v %s", x.Slug, a.status, a.header, a.body)
	}
	return []string{"Cookie", cookie, "Telltale-CSRF", csrf[1]}
}

// send makes one request as one of globex.
func (w *intruder) send(c cred, method, url, body string, more ...string) answer {
	w.t.Helper()
	return call(w.t, method, url, c.bearer, body, slices.Concat([]string{"Content-Type", "application/json"}, c.header, more)...)
}

// clean looks for what is acme's in an answer. It may repeat what it was asked.
func (w *intruder) clean(what string, a answer, asked ...string) {
	w.t.Helper()
	text := a.body + fmt.Sprint(a.header)
	slices.SortFunc(asked, func(a, b string) int { return len(b) - len(a) })
	for _, s := range asked {
		text = strings.ReplaceAll(text, s, "")
	}
	for _, word := range w.words {
		if word.MatchString(text) {
			at := word.FindStringIndex(text)[0]
			w.t.Errorf("%s shows %s of acme: %d …%.300s", what, word, a.status, text[max(0, at-150):])
		}
	}
}

// known are the words of acme's that globex's people have sent, and that their
// own audit may therefore hold.
func (w *intruder) known() []string {
	return append(slices.Collect(maps.Values(w.ids)), w.target.Name, w.reference, secretMark+"-somebody")
}

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/auth/authtest"
)

var mcpHeaders = []string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream"}

// rpc writes one JSON-RPC request.
func rpc(t *testing.T, method string, params any) string {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// tools calls every tool of globex's with acme's ids, names and cursors.
func (w *intruder) tools() {
	t := w.t
	for who, c := range w.mine {
		a := w.send(c, http.MethodPost, w.acme.MCPURL, rpc(t, "tools/list", map[string]any{}), mcpHeaders...)
		if a.status != http.StatusUnauthorized {
			t.Errorf("MCP of acme as globex's %s: %d, want 401", who, a.status)
		}
		w.clean("MCP of acme", a)
	}
	all := w.mine["dana"] // read, diagnose and admin
	x := w.globex
	x.Tokens = map[string]string{"dana": all.bearer}
	names := tools(t, x, "dana")
	for _, must := range []string{"search", "fetch", "list_tokens", "audit_recent", "tenant_usage", "trace_slow_io", "promote_evidence"} {
		if !slices.Contains(names, must) {
			t.Errorf("dana of globex has no %s: %v", must, names)
		}
	}
	arguments := []map[string]any{
		{"node": w.target.Node}, {"node": w.target.Name}, {"selector": map[string]string{"environment": "dev"}}, {},
		{"event_id": w.ids["event"]}, {"ticket_id": w.ids["ticket"]}, {"refusal": "feature_off", "node": w.target.Node},
		{"ticket_id": w.ids["ticket"], "row": 0, "title": "taken", "kind": "slow_io"}, {"ticket_id": w.ids["ticket"], "title": "taken"},
		{"search": w.target.Name}, {"limit": 1_000_000_000}, {"query": w.target.Name}, {"query": w.ids["event"]}, {"query": w.ids["node"]},
		{"query": secretMark[:4]}, {"id": "node:" + w.ids["node"]}, {"id": w.ids["node"]}, {"id": "event:" + w.ids["event"]}, {"id": "task:" + w.ids["ticket"]},
		{"reference_id": w.reference}, {"principal": w.ids["token"]}, {"cursor": "AAAA"},
	}
	for _, cursor := range w.cursors {
		arguments = append(arguments, map[string]any{"cursor": cursor})
	}
	needed := map[string]any{"module": "network", "metrics": []string{"network.tcp_closes"}, "title": "taken", "event_id": w.ids["event"], "ticket_id": w.ids["ticket"], "query": w.target.Name, "id": w.ids["node"]}
	var checks []func()
	for _, x := range listed(t, x, "dana") {
		sent := map[string]bool{}
		for _, args := range arguments {
			trial := x.fit(args, needed)
			raw, _ := json.Marshal(trial)
			if sent[string(raw)] {
				continue
			}
			sent[string(raw)] = true
			checks = append(checks, func() {
				a := w.send(all, http.MethodPost, w.globex.MCPURL, rpc(t, "tools/call", map[string]any{"name": x.Name, "arguments": trial}), mcpHeaders...)
				asked := []string{}
				for _, s := range w.known() { // an answer may repeat what it was asked, and the record what was asked before
					if strings.Contains(string(raw), s) || x.Name == "audit_recent" {
						asked = append(asked, s)
					}
				}
				w.clean("tool "+x.Name+" with "+string(raw), a, asked...)
				if a.status >= 500 {
					t.Errorf("tool %s with %s: %d %s", x.Name, raw, a.status, a.body)
				}
			})
		}
	}
	for group := range slices.Chunk(checks, 4) { // the gate of costly calls lets so many wait
		together(group...)
	}
	out, code := telltale(t, w.globex, "read", "call", "get_node", fmt.Sprintf(`{"node":%q}`, w.target.Node))
	if code != 1 || !strings.Contains(out, "NOT_FOUND") && !strings.Contains(out, "no node") {
		t.Errorf("get_node of acme's node as globex: exit %d: %s", code, out)
	}
	for _, name := range []string{"get_node", "fetch", "get_event", "check_task_result"} {
		args := map[string]any{"node": w.ids["node"], "id": w.ids["node"], "event_id": w.ids["event"], "ticket_id": w.ids["ticket"]}
		arg := map[string]string{"get_node": "node", "fetch": "id", "get_event": "event_id", "check_task_result": "ticket_id"}[name]
		if a := tool(t, x, "dana", name, map[string]any{arg: args[arg]}); !a.isError {
			t.Errorf("%s of acme's %s succeeds for globex: %s", name, arg, a.text)
		}
	}
}

// resources reads acme's objects by their resource addresses, in both eras.
func (w *intruder) resources() {
	for _, uri := range []string{"telltale://nodes/" + w.target.Node, "telltale://tasks/" + w.ids["ticket"], "telltale://events/" + w.ids["event"] + "/context", "telltale://events/recent", "telltale://health"} {
		for who, c := range w.mine {
			if c.bearer == "" {
				continue // MCP takes no cookies
			}
			a := w.send(c, http.MethodPost, w.globex.MCPURL, rpc(w.t, "resources/read", map[string]any{"uri": uri}), mcpHeaders...)
			w.clean(uri+" as globex's "+who, a, w.target.Node, w.ids["ticket"], w.ids["event"])
			if own := uri == "telltale://events/recent" || uri == "telltale://health"; strings.Contains(a.body, `"contents"`) != own {
				w.t.Errorf("%s as globex's %s: %d %.300s", uri, who, a.status, a.body)
			}
		}
	}
}

// streams holds globex's streams open while acme's events keep coming.
func (w *intruder) streams() {
	const lasts = 1500 * time.Millisecond
	admin := w.mine["operator admin"]
	uris := []string{"telltale://events/recent", "telltale://events/" + w.ids["event"] + "/context", "telltale://tasks/" + w.ids["ticket"], "telltale://nodes/" + w.target.Node, "telltale://health"}
	body := rpc(w.t, "subscriptions/listen", map[string]any{"notifications": map[string]any{"toolsListChanged": true, "resourceSubscriptions": uris},
		"_meta": map[string]any{"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": map[string]any{}}})
	modern := append(slices.Clone(mcpHeaders), "MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "subscriptions/listen")
	together(func() {
		a := listen(w.t, http.MethodGet, w.globex.RESTURL+"/events/stream", admin.bearer, "", lasts)
		w.clean("the stream of events", a)
		if a.status != http.StatusOK || strings.Contains(a.body, "event: event") {
			w.t.Errorf("globex has no events, and its stream shows: %d %s", a.status, a.body)
		}
	}, func() {
		a := listen(w.t, http.MethodPost, w.globex.MCPURL, admin.bearer, body, lasts, modern...)
		w.clean("the stream of updates", a, w.known()...)
		if a.status != http.StatusOK || strings.Contains(a.body, "notifications/resources/updated") {
			w.t.Errorf("nothing of globex's changes, and its stream shows: %d %s", a.status, a.body)
		}
	}, func() { // the same at acme, so that silence means something
		a := listen(w.t, http.MethodPost, w.acme.MCPURL, w.acme.Tokens["admin"], body, lasts, modern...)
		if !strings.Contains(a.body, "notifications/resources/updated") {
			w.t.Errorf("acme hears nothing of its own: %d %s", a.status, a.body)
		}
	}, func() {
		for _, url := range []string{w.acme.RESTURL + "/events/stream", w.acme.RESTURL + "/tasks/" + w.ids["ticket"] + "/stream"} {
			if a := listen(w.t, http.MethodGet, url, admin.bearer, "", lasts); a.status != http.StatusUnauthorized {
				w.t.Errorf("%s as globex: %d", url, a.status)
			}
		}
		if a := listen(w.t, http.MethodPost, w.acme.MCPURL, admin.bearer, body, lasts, modern...); a.status != http.StatusUnauthorized {
			w.t.Errorf("acme's updates as globex: %d", a.status)
		}
	})
}

// doors tries what is no route and no tool: references, sessions and their
// CSRF tokens, sign-in with the other's token, and access tokens both ways.
func (w *intruder) doors(idp *authtest.Provider) {
	t := w.t
	at := func(x tenant, page string) string {
		return w.s.BaseURL + "/t/" + x.Slug + "/" + page + "?reference=" + w.reference
	}
	for _, page := range []string{"connect.json", "connect"} {
		for who, c := range w.mine {
			a := w.send(c, http.MethodGet, at(w.globex, page), "", "Accept", "application/json")
			if a.status != http.StatusNotFound {
				t.Errorf("acme's reference at globex's %s as %s: %d %s", page, who, a.status, a.body)
			}
			w.clean(page, a, w.reference)
			if a := w.send(c, http.MethodGet, at(w.acme, page), ""); strings.Contains(a.body, `"received"`) || strings.Contains(a.body, `"from"`) || strings.Contains(a.body, `"attempts"`) {
				t.Errorf("globex's %s sees the values of acme's attempt: %s", who, a.body)
			}
		}
	}
	ofAcme, own := session(t, w.acme, "admin"), w.mine["session"].header
	const quotas = `{"principal_rate":7}`
	for what, c := range map[string]struct {
		header []string
		status int
	}{
		"acme's session":                  {ofAcme, http.StatusUnauthorized},
		"globex's with acme's CSRF token": {[]string{own[0], own[1], ofAcme[2], ofAcme[3]}, http.StatusForbidden},
		"acme's with globex's CSRF token": {[]string{ofAcme[0], ofAcme[1], own[2], own[3]}, http.StatusUnauthorized},
		"both cookies, acme's first":      {[]string{"Cookie", ofAcme[1] + "; " + own[1], ofAcme[2], ofAcme[3]}, http.StatusUnauthorized},
	} {
		a := call(t, http.MethodPut, w.globex.RESTURL+"/quotas", "", quotas, append([]string{"Content-Type", "application/json"}, c.header...)...)
		if a.status != c.status && (what != "both cookies, acme's first" || a.status != http.StatusForbidden && a.status != http.StatusBadRequest) {
			t.Errorf("%s at globex: %d, want %d: %s", what, a.status, c.status, a.body)
		}
		w.clean(what, a)
	}
	for _, kind := range []string{"read", "admin"} {
		a := call(t, http.MethodPost, w.acme.RESTURL+"/session", "", fmt.Sprintf(`{"token":%q}`, w.globex.Tokens[kind]), "Content-Type", "application/json")
		if a.status != http.StatusUnauthorized || a.header.Get("Set-Cookie") != "" {
			t.Errorf("signing in to acme with globex's token: %d %v", a.status, a.header)
		}
	}
	for _, c := range []struct {
		account  string
		of, here tenant
	}{{authtest.Alice, w.acme, w.globex}, {authtest.Dana, w.acme, w.globex}, {authtest.Carol, w.globex, w.acme}, {authtest.Dana, w.globex, w.acme}} {
		token := idp.Token(t, c.account, "", "telltale:read telltale:admin", c.of.MCPURL)
		for range 2 { // the second is answered from memory
			if a := knock(t, c.of.MCPURL, token); a.status != http.StatusOK {
				t.Errorf("%s at home: %d %s", c.account, a.status, a.body)
			}
			for _, url := range []string{c.here.MCPURL, c.here.RESTURL + "/nodes", c.here.RESTURL + "/issuers", c.here.RESTURL + "/session"} {
				if a := knock(t, url, token); a.status != http.StatusUnauthorized || !strings.Contains(a.header.Get("WWW-Authenticate"), `error="invalid_token"`) {
					t.Errorf("%s's token of %s at %s: %d %v", c.account, c.of.Slug, url, a.status, a.header)
				}
			}
		}
	}
}

// listen reads a stream for a while, or an answer that is none.
func listen(t *testing.T, method, url, token, body string, lasts time.Duration, header ...string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return answer{}
	}
	req.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Errorf("%s: %v", url, err)
		return answer{}
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body) // until the time is over
	return answer{resp.StatusCode, resp.Header, string(b)}
}

// offered is a tool as tools/list shows it.
type offered struct {
	Name        string
	InputSchema struct {
		Properties map[string]any
		Required   []string
	}
}

// fit is arguments as far as the tool knows them, with those that it needs.
func (o offered) fit(args, needed map[string]any) map[string]any {
	out := map[string]any{}
	for name, v := range args {
		if o.InputSchema.Properties[name] != nil {
			out[name] = v
		}
	}
	if o.InputSchema.Properties["duration_s"] != nil {
		out["duration_s"] = 1
	}
	for _, name := range o.InputSchema.Required {
		if out[name] == nil && needed[name] != nil {
			out[name] = needed[name]
		}
	}
	return out
}

// listed are the tools that a tenant's token of one kind sees.
func listed(t *testing.T, x tenant, kind string) []offered {
	t.Helper()
	a := call(t, "POST", x.MCPURL, x.Tokens[kind], `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, mcpHeaders...)
	_, data, ok := strings.Cut(a.body, "data: ")
	if !ok {
		data = a.body
	}
	var got struct{ Result struct{ Tools []offered } }
	if err := json.Unmarshal([]byte(strings.TrimSpace(data)), &got); err != nil {
		t.Fatalf("tools/list: %d %v: %s", a.status, err, a.body)
	}
	if len(got.Result.Tools) < 5 {
		t.Fatalf("tools: %v", got.Result.Tools)
	}
	return got.Result.Tools
}

// tools lists their names.
func tools(t *testing.T, x tenant, kind string) (names []string) {
	t.Helper()
	for _, o := range listed(t, x, kind) {
		names = append(names, o.Name)
	}
	return names
}

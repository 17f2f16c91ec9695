package rest

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/telltale-dev/telltale/auth"
)

// TestRealAnswersMatchTheDocument validates what the real services answer.
func TestRealAnswersMatchTheDocument(t *testing.T) {
	w := newWorld(t)
	doc := document(t)
	seen := map[string]bool{}
	check := func(op *openapi3.Operation, r reply) {
		t.Helper()
		resp := op.Responses.Status(r.StatusCode)
		if resp == nil {
			resp = op.Responses.Default()
			if r.StatusCode < 400 {
				t.Errorf("%s answers %d, which is not documented", op.OperationID, r.StatusCode)
			}
		}
		seen[op.OperationID] = true
		for h, ref := range resp.Value.Headers {
			if r.Header.Get(h) == "" && h != "Retry-After" && !(h == auth.ReferenceHeader && r.StatusCode < 500) && !(h == "WWW-Authenticate" && r.StatusCode != 401) {
				t.Errorf("%s %d lacks the header %s (%s)", op.OperationID, r.StatusCode, h, ref.Value.Description)
			}
		}
		if len(resp.Value.Content) == 0 {
			if len(r.body) != 0 {
				t.Errorf("%s %d has a body that is not documented", op.OperationID, r.StatusCode)
			}
			return
		}
		mt := resp.Value.Content.Get(r.Header.Get("Content-Type"))
		if mt == nil {
			t.Errorf("%s %d answers %s, which is not documented", op.OperationID, r.StatusCode, r.Header.Get("Content-Type"))
			return
		}
		if ct := r.Header.Get("Content-Type"); ct == "application/yaml" || ct == "application/x-ndjson" || ct == "text/event-stream" {
			return
		}
		dec := json.NewDecoder(strings.NewReader(string(r.body)))
		dec.UseNumber()
		var exact any
		if err := dec.Decode(&exact); err != nil {
			t.Fatal(err)
		}
		exactNumbers(t, op.OperationID, exact)
		var v any
		if err := json.Unmarshal(r.body, &v); err != nil {
			t.Fatal(err)
		}
		if err := doc.ValidateSchemaJSON(mt.Schema.Value, v); err != nil {
			t.Errorf("%s %d does not match: %v\n%s", op.OperationID, r.StatusCode, err, r.body)
		}
	}
	find := func(id string) *openapi3.Operation {
		for _, item := range doc.Paths.Map() {
			for _, op := range item.Operations() {
				if op.OperationID == id {
					return op
				}
			}
		}
		t.Fatalf("no operation %s", id)
		return nil
	}
	for _, op := range operations() {
		o := find(op.id)
		for _, token := range []string{w.admin, w.restricted, w.read, w.hollow, ""} {
			target, body := w.target(op, "acme", w.db)
			check(o, w.do(op.method, target, token, body))
		}
		target, body := w.target(op, "acme", w.foreign)
		check(o, w.do(op.method, target, w.admin, body))
		sep := "?"
		if strings.Contains(op.path, "?") {
			sep = "&"
		}
		target, body = w.target(op, "acme", w.db)
		check(o, w.do(op.method, target+sep+"nonsense=1", w.admin, body))
	}
	ticket := w.do("POST", "/t/acme/api/v1/tasks", w.admin, `{"kind":"trace_opens","labels":{"role":"db"},"arguments":{"duration_s":20}}`)
	if ticket.StatusCode != 202 {
		t.Errorf("a long task: %d %s", ticket.StatusCode, ticket.body)
	}
	check(find("startTask"), ticket)
	check(find("getTask"), w.do("GET", ticket.Header.Get("Location"), w.read, ""))
	check(find("cancelTask"), w.do("DELETE", ticket.Header.Get("Location"), w.admin, ""))
	for _, target := range []string{"/metrics/summary?module=network", "/metrics/summary?module=storage", "/metrics/query?metrics=network.drops&top=3&by=sum", "/metrics/query?metrics=network.active&group=role", "/nodes?limit=1", "/nodes?status=online,stale&labels=role=db&limit=1000000000", "/nodes?search=web"} {
		id := map[bool]string{true: "listNodes", false: "queryMetrics"}[strings.HasPrefix(target, "/nodes")]
		if strings.HasPrefix(target, "/metrics/summary") {
			id = "getMetricsSummary"
		}
		r := w.do("GET", "/t/acme/api/v1"+target, w.read, "")
		if r.StatusCode != 200 {
			t.Errorf("%s: %d %s", target, r.StatusCode, r.body)
		}
		check(find(id), r)
	}
	in := w.do("POST", "/t/acme/api/v1/session", "", `{"token":"`+w.read+`"}`)
	check(find("createSession"), in)
	check(find("createSession"), w.do("POST", "/t/acme/api/v1/session", "", `{"token":"x"}`))
	check(find("getSession"), w.do("GET", "/t/acme/api/v1/session", w.read, ""))
	check(find("getSession"), w.do("GET", "/t/acme/api/v1/session", "", ""))
	check(find("getSession"), w.do("GET", "/t/acme/api/v1/session", "", "", header{"Cookie", cookieOf(t, in)}))
	check(find("deleteSession"), w.do("DELETE", "/t/acme/api/v1/session", "", "", header{"Cookie", cookieOf(t, in)}))
	check(find("deleteSession"), w.do("DELETE", "/t/acme/api/v1/session", "", ""))
	check(find("listSignInProviders"), w.do("GET", "/t/acme/api/v1/session/providers", "", ""))
	check(find("beginSignIn"), w.do("GET", "/t/acme/api/v1/session/login", "", ""))
	check(find("finishSignIn"), w.do("GET", "/t/acme/api/v1/session/callback?code=x&state=y", "", ""))
	refused := w.do("GET", "/t/acme/api/v1/nodes", "hunter2", "")
	for id, path := range map[string]string{"getConnectPage": "/t/acme/connect", "getConnect": "/t/acme/connect.json"} {
		for _, query := range []string{"", "?reference=" + refused.Header.Get(auth.ReferenceHeader), "?reference=" + strings.Repeat("a", 20), "?nonsense=1"} {
			for _, token := range []string{w.admin, w.read, w.globex, ""} {
				check(find(id), w.do("GET", path+query, token, ""))
			}
		}
	}
	check(find("getOpenAPI"), w.do("GET", "/api/v1/openapi.yaml", "", ""))
	check(find("getLiveness"), w.do("GET", "/healthz", "", ""))
	check(find("getReadiness"), w.do("GET", "/readyz", "", ""))
	check(find("getVersion"), w.do("GET", "/version", "", ""))
	for _, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			if !seen[op.OperationID] {
				t.Errorf("%s was never asked for real", op.OperationID)
			}
		}
	}
}

// exactNumbers refuses whole numbers that a double cannot hold.
func exactNumbers(t *testing.T, where string, v any) {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if k != "mean" { // a quotient, never exact
				exactNumbers(t, where+"."+k, e)
			}
		}
	case []any:
		for _, e := range v {
			exactNumbers(t, where+"[]", e)
		}
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil && (n >= 1<<53 || n <= -1<<53) {
			t.Errorf("%s is the number %s; from 2^53 on it must be text", where, v)
		}
	}
}

package rest

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

func document(t testing.TB) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(openapi)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestDocumentIsSound(t *testing.T) {
	doc := document(t)
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("the document is of OpenAPI %s", doc.OpenAPI)
	}
	ids := map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			if op.OperationID == "" || ids[op.OperationID] || op.Summary == "" || len(op.Tags) != 1 {
				t.Errorf("%s %s lacks an id of its own, a summary or one tag", method, path)
			}
			ids[op.OperationID] = true
			if op.Responses.Default() == nil {
				t.Errorf("%s says nothing about other failures", op.OperationID)
			}
		}
	}
}

// TestDocumentNamesEveryRoute compares both ways.
func TestDocumentNamesEveryRoute(t *testing.T) {
	s := New(Config{})
	var routes, documented []string
	err := chi.Walk(s.mux, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		routes = append(routes, method+" "+route)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, item := range document(t).Paths.Map() {
		for method := range item.Operations() {
			documented = append(documented, method+" "+path)
		}
	}
	slices.Sort(routes)
	slices.Sort(documented)
	if d := cmp.Diff(documented, routes); d != "" {
		t.Errorf("documented and real routes differ (- documented, + real):\n%s", d)
	}
	behind := map[string]bool{}
	for _, op := range operations() {
		behind[op.id] = true
	}
	for _, item := range document(t).Paths.Map() {
		for _, op := range item.Operations() {
			if open := op.Security != nil || slices.Contains(op.Tags, "session"); open == behind[op.OperationID] {
				t.Errorf("%s is documented as open=%v, and the tests of credentials cover it=%v", op.OperationID, open, behind[op.OperationID])
			}
		}
	}
}

// TestDocumentNamesEveryField holds the schemas against the structs whose
// JSON is sent: the same members, required unless they can be left out.
func TestDocumentNamesEveryField(t *testing.T) {
	doc := document(t)
	for name, v := range map[string]any{
		"Problem": auth.Problem{}, "ConnectDropped": audit.Dropped{}, "NodeRef": tenants.NodeRef{}, "Truncated": tenants.Truncated{}, "Window": tenants.Window{},
		"Coverage": tenants.Coverage{}, "NotCovered": tenants.NotCovered{}, "Node": fleet.Node{}, "NodePage": fleet.Page{},
		"NodeDetail": fleet.NodeDetail{}, "HeadlineValue": fleet.HeadlineValue{}, "Capability": fleet.Capability{},
		"Capabilities": fleet.NodeCapabilities{}, "ModuleOff": fleet.ModuleOff{}, "ModulesRequest": modulesRequest{}, "Modules": modulesAnswer{},
		"QuarantineRow": fleet.QuarantineRow{}, "Loss": fleet.Loss{}, "NodeSession": fleet.Session{}, "Overview": fleet.Overview{},
		"Share": fleet.Share{}, "Worst": fleet.Worst{}, "NodeValue": fleet.NodeValue{}, "CapabilityShare": fleet.CapabilityShare{},
		"QuarantineShare": fleet.QuarantineShare{}, "MetricsSummary": metrics.Summary{}, "MetricSummary": metrics.MetricSummary{},
		"LabelRow": metrics.LabelRow{}, "Stats": metrics.Stats{}, "MetricsQuery": metrics.Result{}, "Series": metrics.Series{}, "Group": metrics.Group{},
		"Event": events.Event{}, "EventPage": eventPage{}, "EventDetail": events.Detail{}, "EventSample": inspector.EventSample{}, "EventContext": events.Context{},
		"ContextValue": events.ContextValue{}, "TaskRequest": taskRequest{}, "Task": tasks.Task{}, "TaskRun": tasks.Run{}, "TaskSummary": tasks.Summary{}, "TaskPage": taskPage{},
		"TaskResult": inspector.TaskResult{}, "ResultRow": inspector.ResultRow{}, "ResultSample": inspector.ResultSample{}, "NextStep": inspector.NextStep{},
		"Profile": inspector.Profile{}, "ProfileFrame": inspector.ProfileFrame{}, "FoldedStack": inspector.FoldedStack{},
		"AuditPage": auditPage{}, "AuditEntry": audit.Row{}, "AuditCaller": audit.Caller{}, "ConnectVerdict": verdict{}, "Connection": connection{},
		"ConnectEndpoints": endpoints{}, "ConnectAttempt": attempt{}, "TestStep": tenants.Step{},
		"TenantState": tenantView{}, "TenantRequest": tenantRequest{}, "DeletedTenant": deletedTenant{},
		"Selector": selectorBody{}, "Token": tokenView{}, "TokenPage": tokenPage{}, "TokenRequest": tokenRequest{}, "TokenMade": tokenMade{},
		"EnrolToken": enrolTokenView{}, "EnrolTokenPage": enrolTokenPage{}, "EnrolTokenRequest": enrolTokenRequest{}, "EnrolTokenMade": enrolTokenMade{},
		"RoleRule": roleBody{}, "Issuer": issuerView{}, "IssuerPage": issuerPage{}, "IssuerRequest": issuerRequest{}, "IssuerTest": issuerTest{},
		"Member": memberView{}, "MemberPage": memberPage{}, "MemberRequest": memberRequest{}, "Policy": policyBody{}, "Quotas": quotasView{}, "Used": used{}, "Usage": usageView{},
		"SessionRequest": signInRequest{}, "Liveness": liveness{}, "Readiness": readyAnswer{}, "Version": Version{},
	} {
		ref := doc.Components.Schemas[name]
		if ref == nil {
			t.Errorf("no schema %s", name)
			continue
		}
		props, required := flatten(ref.Value)
		fields, always := fieldsOf(reflect.TypeOf(v))
		if d := cmp.Diff(props, fields); d != "" {
			t.Errorf("%s: members differ (- documented, + sent):\n%s", name, d)
		}
		if d := cmp.Diff(required, always); d != "" {
			t.Errorf("%s: required members differ (- documented, + always sent):\n%s", name, d)
		}
	}
	// Session is what two structs send: with a cookie and with a bearer.
	props, required := flatten(doc.Components.Schemas["Session"].Value)
	fields, _ := fieldsOf(reflect.TypeOf(auth.SessionView{}))
	_, always := fieldsOf(reflect.TypeOf(caller{}))
	if d := cmp.Diff(props, fields) + cmp.Diff(required, always); d != "" {
		t.Errorf("Session: %s", d)
	}
	var kinds []string
	for _, k := range fault.Kinds() {
		kinds = append(kinds, k.String())
	}
	if d := cmp.Diff(words(doc.Components.Schemas["Problem"].Value.Properties["kind"].Value.Enum), kinds); d != "" {
		t.Errorf("kinds of problems: %s", d)
	}
	var states []string
	for _, s := range fleet.Statuses() {
		states = append(states, string(s))
	}
	if d := cmp.Diff(words(doc.Components.Schemas["NodeStatus"].Value.Enum), states); d != "" {
		t.Errorf("states of nodes: %s", d)
	}
}

func words(in []any) (out []string) {
	for _, v := range in {
		out = append(out, v.(string))
	}
	return out
}

func flatten(s *openapi3.Schema) (props, required []string) {
	for name := range s.Properties {
		props = append(props, name)
	}
	required = append(required, s.Required...)
	for _, part := range s.AllOf {
		p, r := flatten(part.Value)
		props, required = append(props, p...), append(required, r...)
	}
	slices.Sort(props)
	slices.Sort(required)
	return props, required
}

func fieldsOf(t reflect.Type) (all, always []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			a, b := fieldsOf(f.Type)
			all, always = append(all, a...), append(always, b...)
			continue
		}
		all = append(all, name)
		if !strings.Contains(opts, "omitempty") {
			always = append(always, name)
		}
	}
	slices.Sort(all)
	slices.Sort(always)
	return all, always
}

// TestDocumentNamesEveryParameter asks each operation for a parameter that
// does not exist; the refusal lists those that do.
func TestDocumentNamesEveryParameter(t *testing.T) {
	w := newWorld(t)
	doc := document(t)
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			if op.OperationID == "finishSignIn" {
				continue // providers add parameters of their own to their answers
			}
			var want []string
			for _, p := range append(slices.Clone(item.Parameters), op.Parameters...) {
				if p.Value.In == "query" {
					want = append(want, p.Value.Name)
				}
			}
			slices.Sort(want)
			target := strings.NewReplacer("{tenant}", "acme", "{node}", w.db.String(), "{event}", w.event, "{ticket}", w.ticket).Replace(path)
			extra := "?nonsense=1"
			for _, o := range operations() {
				if _, q, ok := strings.Cut(o.path, "?"); ok && o.id == op.OperationID {
					extra = "?" + strings.ReplaceAll(q, "{node}", w.db.String()) + "&nonsense=1"
				}
			}
			r := w.do(method, target+extra, w.admin, "")
			if r.StatusCode != 400 {
				t.Errorf("%s takes a parameter that does not exist: %d", op.OperationID, r.StatusCode)
				continue
			}
			p := r.problem(t)
			_, list, _ := strings.Cut(p.Detail, "known are ")
			var got []string
			if list != "" {
				got = strings.Split(list, ", ")
			}
			if d := cmp.Diff(want, got); d != "" || p.Field != "nonsense" || p.Reason != "unknown_parameter" {
				t.Errorf("%s: %+v, parameters differ (- documented, + read):\n%s", op.OperationID, p, d)
			}
		}
	}
}

func TestDocumentIsServedToEveryone(t *testing.T) {
	s := New(Config{Log: quiet()})
	r := doOn(s, "GET", "/api/v1/openapi.yaml", "", "")
	if r.StatusCode != 200 || string(r.body) != string(openapi) || r.Header.Get("Content-Type") != "application/yaml" {
		t.Errorf("%d %v", r.StatusCode, r.Header)
	}
	r = doOn(s, "GET", "/api/v1/openapi.yaml", "", "", header{"If-None-Match", `"x", W/` + r.Header.Get("ETag")})
	if r.StatusCode != 304 || len(r.body) != 0 {
		t.Errorf("with its ETag: %d and %d bytes", r.StatusCode, len(r.body))
	}
}

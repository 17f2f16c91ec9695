package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

const (
	nodePrefix   = "telltale://nodes/"
	metricPrefix = "telltale://metrics/"
	// maxCompletions is the protocol's bound on one completion answer.
	maxCompletions = 100
)

// addResources registers what can be read. Each is also reachable as a tool.
func (h *Handler) addResources(s *sdk.Server) {
	svc := h.cfg.Services
	fixed := func(uri, name, title, words string, read func(context.Context, tenants.Scope) (any, error)) {
		s.AddResource(&sdk.Resource{URI: uri, Name: name, Title: title, Description: words, MIMEType: "application/json"}, h.reader(
			func(ctx context.Context, scope tenants.Scope, _ string) (any, error) { return read(ctx, scope) }))
	}
	fixed("telltale://health", "health", "Fleet health", "State of all nodes now; the same as fleet_overview.",
		func(ctx context.Context, scope tenants.Scope) (any, error) { return svc.Fleet.Overview(ctx, scope) })
	fixed(metricPrefix+"summary", "metrics-summary", "Metrics of all modules", "Totals of every module over the last five minutes, without label rows.",
		func(ctx context.Context, scope tenants.Scope) (any, error) { return allModules(ctx, svc, scope) })
	for _, module := range svc.modules() {
		fixed(metricPrefix+module, "metrics-"+module, "Metrics: "+module, "The module over the last five minutes on all nodes; the same as metrics_summary.",
			func(ctx context.Context, scope tenants.Scope) (any, error) { return oneModule(ctx, svc, scope, module) })
	}
	s.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: nodePrefix + "{node}", Name: "node", Title: "Node", MIMEType: "application/json",
		Description: "Everything known about one node, by id or unique name; the same as get_node."}, h.reader(
		func(ctx context.Context, scope tenants.Scope, uri string) (any, error) {
			ref, err := url.PathUnescape(strings.TrimPrefix(uri, nodePrefix))
			if err != nil || ref == "" {
				return nil, fault.New(fault.NotFound, "unknown_node", "no such node")
			}
			return svc.Fleet.Get(ctx, scope, ref)
		}))
}

func oneModule(ctx context.Context, svc Services, scope tenants.Scope, module string) (metrics.Summary, error) {
	got, err := svc.Metrics.Summary(ctx, scope, metrics.SummaryQuery{Module: module})
	if err == nil {
		trimSummary(&got, false, 0)
	}
	return got, err
}

func allModules(ctx context.Context, svc Services, scope tenants.Scope) (any, error) {
	type all struct {
		Modules []metrics.Summary `json:"modules"`
	}
	out := all{Modules: []metrics.Summary{}}
	for _, module := range svc.modules() {
		got, err := svc.Metrics.Summary(ctx, scope, metrics.SummaryQuery{Module: module})
		if err != nil {
			return nil, fmt.Errorf("sum up %s: %w", module, err)
		}
		for i := range got.Metrics {
			m := &got.Metrics[i]
			m.Rows, m.Other, m.Help = nil, nil, ""
		}
		out.Modules = append(out.Modules, got)
	}
	return out, nil
}

// reader is the guard of resources: scope, deadline, byte budget, audit line.
func (h *Handler) reader(read func(context.Context, tenants.Scope, string) (any, error)) sdk.ResourceHandler {
	return func(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		start, uri := h.now(), req.Params.URI
		c, ok := callerOf(ctx)
		if !ok || !c.scope.Granted.Has(tenants.Read) {
			return nil, sdk.ResourceNotFoundError(uri)
		}
		ctx, cancel := context.WithTimeout(ctx, shortTask)
		defer cancel()
		outcome, reason, size := "panic", "", 0
		defer func() {
			args, err := json.Marshal(map[string]string{"uri": uri})
			if err == nil {
				h.audit(ctx, Tool{Name: "resources/read", Args: []Arg{{Name: "uri"}}}, c, args, outcome, reason, size, h.now().Sub(start))
			}
		}()
		body, err := read(ctx, c.scope, uri)
		if err != nil {
			f := toFault(ctx, err, shortTask)
			outcome, reason = f.Kind.String(), f.Reason
			return nil, h.resourceError(ctx, f, uri, c)
		}
		raw, err := h.encoder.encode(body)
		if err != nil {
			outcome = fault.Internal.String()
			return nil, fmt.Errorf("%s: %w", uri, err)
		}
		if size = len(raw); size > tenants.MaxAnswerBytes {
			outcome, reason = fault.Exhausted.String(), "answer_too_large"
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "this resource is larger than one answer may be; use the tool of the same facts and narrow it"}
		}
		outcome = "ok"
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: uri, MIMEType: "application/json", Text: string(raw)}}}, nil
	}
}

func (h *Handler) resourceError(ctx context.Context, f *fault.Error, uri string, c caller) error {
	switch f.Kind {
	case fault.NotFound:
		return sdk.ResourceNotFoundError(uri)
	case fault.Internal:
		h.log.ErrorContext(ctx, "resource failed", "tenant", c.scope.Tenant, "reference", c.reference, "error", f)
		return internalError(c.reference)
	}
	code := int64(jsonrpc.CodeInternalError)
	if f.Kind == fault.Invalid {
		code = jsonrpc.CodeInvalidParams
	}
	res := refusal(f, c.reference)
	data, _ := res.StructuredContent.(json.RawMessage)
	return &jsonrpc.Error{Code: code, Message: inspector.CleanLines(f.Msg), Data: data}
}

// complete offers the names of nodes for the node template and for prompts.
func (h *Handler) complete(ctx context.Context, req *sdk.CompleteRequest) (*sdk.CompleteResult, error) {
	out := &sdk.CompleteResult{Completion: sdk.CompletionResultDetails{Values: []string{}}}
	c, ok := callerOf(ctx)
	if !ok || req.Params.Ref == nil || req.Params.Argument.Name != nodeArg.Name {
		return out, nil
	}
	if ref := req.Params.Ref; ref.Type != "ref/prompt" && (ref.Type != "ref/resource" || !strings.HasPrefix(ref.URI, nodePrefix)) {
		return out, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	page, err := h.cfg.Services.Fleet.List(ctx, c.scope, fleet.ListQuery{Search: clip(req.Params.Argument.Value, 100), Limit: maxCompletions})
	if err != nil {
		if f := fault.Of(err); f.Kind == fault.Internal {
			return nil, fmt.Errorf("complete node names: %w", err)
		}
		return out, nil
	}
	for _, n := range page.Nodes {
		out.Completion.Values = append(out.Completion.Values, inspector.CleanLines(n.Name))
	}
	out.Completion.HasMore = page.NextCursor != ""
	return out, nil
}

// resourceExists reports whether a URI has the form of a resource that a
// caller with telltale:read is offered.
func (h *Handler) resourceExists(uri string) bool {
	svc := h.cfg.Services
	switch kind, _, _ := splitURI(uri); kind {
	case recentEvents, eventContext:
		return svc.Events != nil
	case taskResult:
		return svc.Tasks != nil
	}
	if module, ok := strings.CutPrefix(uri, metricPrefix); ok {
		return module == "summary" || slices.Contains(svc.modules(), module)
	}
	return uri == "telltale://health" || len(uri) > len(nodePrefix) && strings.HasPrefix(uri, nodePrefix)
}

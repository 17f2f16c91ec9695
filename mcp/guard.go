package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/fault"
)

const maxBytesName = "max_bytes"

// maxBytes is the argument with which a caller raises an answer's budget.
var maxBytes = Arg{Name: maxBytesName, Kind: argInt, Min: 1024, Max: tenants.MaxAnswerBytes, Default: tenants.AnswerBytes}

// guard makes the one handler that stands around every tool: scope, deadline,
// arguments, the byte budget and the audit line. A panic is caught above it.
func (h *Handler) guard(t Tool) sdk.ToolHandler {
	return func(ctx context.Context, req *sdk.CallToolRequest) (res *sdk.CallToolResult, err error) {
		start := h.now()
		caller, ok := callerOf(ctx)
		if !ok || !caller.scope.Granted.Has(t.Scope) {
			// A tool that this caller may not see does not exist for it.
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("unknown tool %q", t.Name)}
		}
		outcome, reason := "panic", ""
		defer func() {
			h.audit(ctx, t, caller, req.Params.Arguments, outcome, reason, resultBytes(res), h.now().Sub(start))
		}()
		limit := t.Deadline
		if limit == 0 {
			limit = shortTask
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		res, err = h.answer(ctx, t, caller, req)
		if err != nil {
			f := toFault(ctx, err, limit)
			outcome, reason = f.Kind.String(), f.Reason
			if f.Kind == fault.Internal {
				h.log.ErrorContext(ctx, "tool failed", "tool", t.Name, "tenant", caller.scope.Tenant, "reference", caller.reference, "error", f)
			}
			res = refusal(f, caller.reference)
			return res, nil
		}
		outcome = "ok"
		return res, nil
	}
}

// answer runs the tool and fits what it says into the budget: an answer that
// is too large is asked for again with fewer rows, so that its cursor stays
// exact and no JSON is ever cut. A tool that starts something is not run
// again: it says itself how to show less of what it found.
func (h *Handler) answer(ctx context.Context, t Tool, c caller, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	if c.limit.refused() {
		return nil, c.limit.fault()
	}
	args, err := decodeArgs(t.Name, t.Args, req.Params.Arguments)
	if err != nil {
		return nil, err
	}
	if t.Gated {
		leave, err := h.gate.enter(c.scope)
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	progress, done := h.progress(ctx, req)
	defer done()
	budget := args.int(maxBytes.Name, tenants.AnswerBytes)
	call := Call{Scope: c.scope, Args: args, Now: h.now(), Modern: c.modern, progress: progress, tools: func() []Tool { return h.allowed(c) }}
	if err := h.started(ctx, t, c, req.Params.Arguments); err != nil {
		return nil, err
	}
	ans, err := t.Run(ctx, call)
	if err != nil {
		return nil, err
	}
	for range 6 {
		note(ctx, ans)
		body := ans.Raw
		if body == nil {
			body, err = h.encoder.encode(ans.Body)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.Name, err)
		}
		text, err := json.Marshal(ans.Text)
		if err != nil {
			return nil, fmt.Errorf("encode the text of %s: %w", t.Name, err)
		}
		size := len(body) + len(text)
		if size <= budget {
			return &sdk.CallToolResult{
				Content:           []sdk.Content{&sdk.TextContent{Text: ans.Text}},
				StructuredContent: body,
			}, nil
		}
		if ans.Rows <= 1 {
			break
		}
		call.rows = max(1, min(ans.Rows-1, ans.Rows*budget*9/(size*10)))
		if ans.Fit != nil {
			ans = ans.Fit(call.rows)
		} else if ans, err = t.Run(ctx, call); err != nil {
			return nil, err
		}
	}
	f := fault.Newf(fault.Exhausted, "answer_too_large", "one row of the answer is larger than the %d bytes allowed", budget)
	if ans.Task != nil {
		return nil, f.Do("call check_task_result with ticket_id " + ans.Task.Ticket + " and a larger max_bytes")
	}
	return nil, f.Do("ask for fewer nodes, metrics or a shorter window, or raise max_bytes where the tool has it")
}

// toFault makes the fault that the caller sees. A deadline says its length.
func toFault(ctx context.Context, err error, limit time.Duration) *fault.Error {
	var f *fault.Error
	if errors.As(err, &f) && f.Kind != fault.Internal {
		return f
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return fault.Newf(fault.Deadline, "deadline", "no answer within %s", limit).Do("ask for a shorter window or fewer nodes").Because(err)
	}
	if errors.Is(err, context.Canceled) {
		return fault.New(fault.Unavailable, "cancelled", "the call was cancelled").Because(err)
	}
	return fault.Of(err)
}

// refusal is a tool result that a model can act on.
func refusal(f *fault.Error, reference string) *sdk.CallToolResult {
	type body struct {
		Error       string `json:"error"`
		Reason      string `json:"reason,omitempty"`
		Argument    string `json:"argument,omitempty"`
		Message     string `json:"message"`
		Next        string `json:"next_step,omitempty"`
		ReferenceID string `json:"reference_id,omitempty"`
	}
	b := body{f.Kind.String(), f.Reason, inspector.CleanText(f.Field), inspector.CleanText(f.Msg), inspector.CleanText(f.Next), ""}
	if f.Kind == fault.Internal || f.Kind == fault.Unavailable {
		b.ReferenceID = reference
	}
	var text strings.Builder
	text.WriteString(b.Error)
	if b.Reason != "" && b.Reason != strings.ToLower(b.Error) { // the word that explain takes as refusal
		text.WriteString(" " + b.Reason)
	}
	if b.Argument != "" {
		text.WriteString(" (" + b.Argument + ")")
	}
	text.WriteString(": " + b.Message)
	if b.Next != "" {
		text.WriteString(". Next: " + b.Next)
	}
	if b.ReferenceID != "" {
		text.WriteString(". Reference id: " + b.ReferenceID)
	}
	raw, err := json.Marshal(b)
	if err != nil {
		panic(err) // strings always encode
	}
	return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: text.String()}}, StructuredContent: json.RawMessage(raw)}
}

// audit counts a call and writes its one line. Argument values are shortened and secret ones
// left out; answers are never logged.
func (h *Handler) audit(ctx context.Context, t Tool, c caller, raw json.RawMessage, outcome, reason string, size int, took time.Duration) {
	h.tally.call(outcome)
	h.ended(t, c, raw, outcome, reason, size, took)
	level := slog.LevelInfo
	if outcome == "panic" || outcome == fault.Internal.String() {
		level = slog.LevelError
	}
	h.log.LogAttrs(ctx, level, "tool call",
		slog.String("tenant", c.scope.Tenant.String()),
		slog.String("principal_kind", string(c.scope.Principal.Kind)),
		slog.String("principal", c.scope.Principal.ID),
		slog.String("tool", t.Name),
		slog.String("arguments", redact(t, raw)),
		slog.String("outcome", outcome),
		slog.String("reason", reason),
		slog.Int("bytes", size),
		slog.Duration("duration", took),
		slog.String("reference", c.reference))
}

// redact writes the arguments for a log line: known names only, values cut.
func redact(t Tool, raw json.RawMessage) string {
	var sent map[string]json.RawMessage
	if len(raw) == 0 || json.Unmarshal(raw, &sent) != nil {
		return "{}"
	}
	parts := []string{}
	unknown := 0
	for _, name := range sortedKeys(sent) {
		switch {
		case !slices.ContainsFunc(t.Args, func(a Arg) bool { return a.Name == name }):
			unknown++
		case slices.Contains(t.Secret, name):
			parts = append(parts, name+`="[redacted]"`)
		default:
			parts = append(parts, name+"="+inspector.CleanText(clip(audit.Scrub(string(sent[name])), 80)))
		}
	}
	if unknown > 0 {
		parts = append(parts, fmt.Sprintf("(%d unknown)", unknown))
	}
	return "{" + strings.Join(parts, " ") + "}"
}

func resultBytes(res *sdk.CallToolResult) int {
	if res == nil {
		return 0
	}
	n := 0
	for _, c := range res.Content {
		if t, ok := c.(*sdk.TextContent); ok {
			n += len(t.Text)
		}
	}
	if raw, ok := res.StructuredContent.(json.RawMessage); ok {
		n += len(raw)
	}
	return n
}

// recoverer is the outermost middleware. A panic would end the process: the
// SDK recovers none. A plain error would leave with code 0: it becomes an
// internal error that shows nothing of its cause. What leaves as a protocol
// error is counted.
func (h *Handler) recoverer(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (res sdk.Result, err error) {
		c, _ := callerOf(ctx)
		defer func() {
			if p := recover(); p != nil {
				h.log.ErrorContext(ctx, "panic in a request", "method", method, "panic", fmt.Sprint(p), "reference", c.reference, "stack", string(debug.Stack()))
				res, err = nil, internalError(c.reference)
			}
			if wire, ok := errors.AsType[*jsonrpc.Error](err); ok {
				h.tally.refusal(wire.Code)
			}
		}()
		res, err = next(ctx, method, req)
		if _, ok := errors.AsType[*jsonrpc.Error](err); err != nil && !ok {
			h.log.ErrorContext(ctx, "request failed", "method", method, "reference", c.reference, "error", err)
			return nil, internalError(c.reference)
		}
		return res, err
	}
}

func internalError(reference string) *jsonrpc.Error {
	data, err := json.Marshal(map[string]string{"reference_id": reference})
	if err != nil {
		data = nil
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error; give the operator the reference id " + reference, Data: data}
}

package mcp

import (
	"bytes"
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

// said is how a call of a tool ended, ready for the wire.
type said struct {
	text   string
	quoted []byte          // text as JSON
	body   json.RawMessage // the structured form
	failed bool            // it is a refusal
}

// size is what the audit calls the bytes of an answer.
func (s said) size() int { return len(s.text) + len(s.body) }

// result is the same as the SDK wants it.
func (s said) result() *sdk.CallToolResult {
	return &sdk.CallToolResult{IsError: s.failed, Content: []sdk.Content{&sdk.TextContent{Text: s.text}}, StructuredContent: s.body}
}

// teller makes the function that tells a client how far its call is, and the
// one after which it does nothing.
type teller func(context.Context) (tell func(done, total float64, message string), done func())

// guard makes the handler of a tool that the SDK calls.
func (h *Handler) guard(t Tool) sdk.ToolHandler {
	return func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		c, ok := callerOf(ctx)
		if !ok || !c.scope.Granted.Has(t.Scope) {
			// A tool that this caller may not see does not exist for it.
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("unknown tool %q", t.Name)}
		}
		return h.guarded(ctx, &t, &c, req.Params.Arguments, h.teller(req)).result(), nil
	}
}

// guarded is the one way to run a tool, whoever asks: deadline, arguments, the
// byte budget and the audit line stand around it here, the scope before it and
// the catching of a panic above it.
func (h *Handler) guarded(ctx context.Context, t *Tool, c *caller, raw json.RawMessage, tell teller) (out said) {
	start := h.now()
	outcome, reason := "panic", ""
	defer func() {
		h.audit(ctx, *t, *c, raw, outcome, reason, out.size(), h.now().Sub(start))
	}()
	limit := t.deadline()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := h.answer(ctx, t, c, raw, tell)
	if err != nil {
		f := toFault(ctx, err, limit)
		outcome, reason = f.Kind.String(), f.Reason
		if f.Kind == fault.Internal {
			h.log.ErrorContext(ctx, "tool failed", "tool", t.Name, "tenant", c.scope.Tenant, "reference", c.reference, "error", f)
		}
		return declined(f, c.reference)
	}
	outcome = "ok"
	return out
}

// answer runs the tool and fits what it says into the budget: an answer that
// is too large is asked for again with fewer rows, so that its cursor stays
// exact and no JSON is ever cut. A tool that starts something is not run
// again: it says itself how to show less of what it found.
func (h *Handler) answer(ctx context.Context, t *Tool, c *caller, raw json.RawMessage, tell teller) (said, error) {
	if c.limit.refused() {
		return said{}, c.limit.fault()
	}
	args, err := decodeArgs(t.Name, t.Args, raw)
	if err != nil {
		return said{}, err
	}
	budget := args.int(maxBytes.Name, tenants.AnswerBytes)
	call := Call{Scope: c.scope, Args: args, Now: h.now(), Modern: c.modern, tools: func() []Tool { return h.allowed(c) }}
	if t.Gated { // it waits for nodes, and can tell how far they are
		leave, err := h.gate.enter(c.scope)
		if err != nil {
			return said{}, err
		}
		defer leave()
		var done func()
		call.progress, done = tell(ctx)
		defer done()
	}
	if err := h.started(ctx, *t, *c, raw); err != nil {
		return said{}, err
	}
	ans, err := t.Run(ctx, call)
	if err != nil {
		return said{}, err
	}
	for range 6 {
		note(ctx, ans)
		body := ans.Raw
		if body == nil {
			body, err = h.encoder.encode(ans.Body)
		}
		if err != nil {
			return said{}, fmt.Errorf("%s: %w", t.Name, err)
		}
		quoted := appendJSON(make([]byte, 0, len(ans.Text)+len(ans.Text)/16), ans.Text)
		size := len(body) + len(quoted)
		if size <= budget {
			return said{text: ans.Text, quoted: quoted, body: body}, nil
		}
		if ans.Rows <= 1 {
			break
		}
		call.rows = max(1, min(ans.Rows-1, ans.Rows*budget*9/(size*10)))
		if ans.Fit != nil {
			ans = ans.Fit(call.rows)
		} else if ans, err = t.Run(ctx, call); err != nil {
			return said{}, err
		}
	}
	f := fault.Newf(fault.Exhausted, "answer_too_large", "one row of the answer is larger than the %d bytes allowed", budget)
	if ans.Task != nil {
		return said{}, f.Do("call check_task_result with ticket_id " + ans.Task.Ticket + " and a larger max_bytes")
	}
	return said{}, f.Do("ask for fewer nodes, metrics or a shorter window, or raise max_bytes where the tool has it")
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
	return declined(f, reference).result()
}

func declined(f *fault.Error, reference string) said {
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
	return said{text: text.String(), quoted: appendJSON(nil, text.String()), body: raw, failed: true}
}

// audit counts a call and writes its one line. Argument values are shortened and secret ones
// left out; answers are never logged.
func (h *Handler) audit(ctx context.Context, t Tool, c caller, raw json.RawMessage, outcome, reason string, size int, took time.Duration) {
	h.tally.call(outcome)
	arguments := redact(t, raw)
	h.ended(t, c, arguments, outcome, reason, size, took)
	level := slog.LevelInfo
	if outcome == "panic" || outcome == fault.Internal.String() {
		level = slog.LevelError
	}
	h.log.LogAttrs(ctx, level, "tool call",
		slog.String("tenant", c.scope.Tenant.String()),
		slog.String("principal_kind", string(c.scope.Principal.Kind)),
		slog.String("principal", c.scope.Principal.ID),
		slog.String("tool", t.Name),
		slog.String("arguments", arguments),
		slog.String("outcome", outcome),
		slog.String("reason", reason),
		slog.Int("bytes", size),
		slog.Duration("duration", took),
		slog.String("reference", c.reference))
}

// redact writes the arguments for a log line: known names only, values cut.
func redact(t Tool, raw json.RawMessage) string {
	sent := scan{body: raw}
	if len(raw) == 0 || string(raw) == "{}" || sent.message() != nil {
		return "{}"
	}
	slices.SortFunc(sent.top, func(a, b member) int { return bytes.Compare(a.key, b.key) })
	unknown := 0
	line := make([]byte, 1, 128)
	line[0] = '{'
	for _, m := range sent.top {
		i := slices.IndexFunc(t.Args, func(a Arg) bool { return a.Name == string(m.key) })
		if i < 0 {
			unknown++
			continue
		}
		line = append(append(line, t.Args[i].Name...), '=')
		if slices.Contains(t.Secret, t.Args[i].Name) {
			line = append(line, `"[redacted]"`...)
		} else {
			line = append(line, inspector.CleanText(clip(audit.Scrub(string(m.raw)), 80))...)
		}
		line = append(line, ' ')
	}
	if unknown > 0 {
		line = fmt.Appendf(line, "(%d unknown) ", unknown)
	}
	if last := len(line) - 1; line[last] == ' ' {
		line = line[:last]
	}
	return string(append(line, '}'))
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
				res, err = nil, h.panicked(ctx, method, c.reference, p)
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

// panicked says what a caller hears of a panic: where the operator finds it.
func (h *Handler) panicked(ctx context.Context, method, reference string, p any) *jsonrpc.Error {
	h.log.ErrorContext(ctx, "panic in a request", "method", method, "panic", fmt.Sprint(p), "reference", reference, "stack", string(debug.Stack()))
	return internalError(reference)
}

func internalError(reference string) *jsonrpc.Error {
	data, err := json.Marshal(map[string]string{"reference_id": reference})
	if err != nil {
		data = nil
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error; give the operator the reference id " + reference, Data: data}
}

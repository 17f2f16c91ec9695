package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// The extension of task handles (io.modelcontextprotocol/tasks, 2026-07-28): a
// client that declares it gets a handle where others get ACCEPTED and a ticket.
// The handle is the ticket; both ways work for both. The protocol's states are
// fewer than ours: what ended without a result is "completed" with a result
// that is an error.

const handleExtension = "io.modelcontextprotocol/tasks"

// The extension's methods.
const (
	tasksGet    = "tasks/get"
	tasksUpdate = "tasks/update"
	tasksCancel = "tasks/cancel"
)

var handleMethods = []string{tasksGet, tasksUpdate, tasksCancel, "tasks/list", "tasks/result"}

// pollEvery is how often a client should ask for a running task.
const pollEvery = 2 * time.Second

// declaresHandles reads a client's capabilities of one request.
func declaresHandles(raw json.RawMessage) bool {
	if bytes.IndexByte(raw, '\\') < 0 && !bytes.Contains(raw, []byte(handleExtension)) {
		return false // as most requests do not; it need not be decoded
	}
	var caps struct {
		Extensions map[string]json.RawMessage `json:"extensions"`
	}
	if json.Unmarshal(raw, &caps) != nil {
		return false
	}
	settings, ok := caps.Extensions[handleExtension]
	return ok && string(settings) != "null"
}

// asksTaskNews reports whether subscriptions/listen names task handles.
func asksTaskNews(raw json.RawMessage) bool {
	var want struct {
		TaskIDs []json.RawMessage `json:"taskIds"`
	}
	return json.Unmarshal(raw, &want) == nil && len(want.TaskIDs) > 0
}

// refuseUndeclared refuses the extension's methods to a client that did not
// declare the extension with this request, whatever it declared before.
func refuseUndeclared(modern bool, m message) *wireError {
	ours := m.Method == tasksGet || m.Method == tasksUpdate || m.Method == tasksCancel
	if !modern || !m.call() || m.Handles || !ours && !m.TaskNews {
		return nil
	}
	return &wireError{Status: http.StatusBadRequest, Code: sdk.CodeMissingRequiredClientCapabilities, Message: "the client must declare the extension " + handleExtension + " in the capabilities of this request",
		Data: map[string]any{"requiredCapabilities": map[string]any{"extensions": map[string]any{handleExtension: struct{}{}}}}}
}

// handle is the state of a task as the extension writes it. It serves as the
// result of tools/call (resultType "task") and of tasks/get ("complete").
type handle struct {
	sdk.ResultBase
	ResultType string              `json:"resultType"`
	TaskID     string              `json:"taskId"`
	Status     string              `json:"status"`
	Message    string              `json:"statusMessage,omitempty"`
	CreatedAt  time.Time           `json:"createdAt"`
	UpdatedAt  time.Time           `json:"lastUpdatedAt"`
	TTLMs      int64               `json:"ttlMs"`
	PollMs     int64               `json:"pollIntervalMs,omitempty"`
	Result     *sdk.CallToolResult `json:"result,omitempty"`
}

func handleOf(t tasks.Task, now time.Time) *handle {
	h := &handle{TaskID: t.Ticket, Status: "working", CreatedAt: t.CreatedAt.UTC(), UpdatedAt: now.UTC(), TTLMs: t.ExpiresAt.Sub(t.CreatedAt).Milliseconds(), PollMs: pollEvery.Milliseconds(),
		Message: fmt.Sprintf("%s %s, %.0f %% done", t.Kind, t.Status, progressOf(t)*100)}
	switch {
	case t.Status == tasks.Cancelled:
		h.Status, h.PollMs, h.Message = "cancelled", 0, t.Kind+" was cancelled; check_task_result shows what it found until then"
	case t.Status.Terminal():
		h.Status, h.PollMs, h.Message = "completed", 0, fmt.Sprintf("%s %s", t.Kind, t.Status)
	}
	if t.EndedAt != nil {
		h.UpdatedAt = t.EndedAt.UTC()
	}
	return h
}

// sighting carries the task that a tool call was about out of the guard.
type sighting struct {
	task    *tasks.Task
	started bool
}

type sightingKey struct{}

// note tells an interested caller which task an answer is about.
func note(ctx context.Context, a Answer) {
	if s, ok := ctx.Value(sightingKey{}).(*sighting); ok && a.Task != nil {
		s.task, s.started = a.Task, s.started || a.Started
	}
}

// handles is the middleware that answers tools/call with a handle when the
// call started a task that goes on and the client understands handles.
func (h *Handler) handles(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		c, ok := callerOf(ctx)
		if method != "tools/call" || !ok || !c.handles {
			return next(ctx, method, req)
		}
		seen := &sighting{}
		res, err := next(context.WithValue(ctx, sightingKey{}, seen), method, req)
		if call, ok := res.(*sdk.CallToolResult); err != nil || !ok || call.IsError || !seen.started || seen.task == nil {
			return res, err
		}
		out := handleOf(*seen.task, h.now())
		out.ResultType = "task"
		return out, nil
	}
}

type taskParams struct {
	sdk.ParamsBase
	TaskID string `json:"taskId"`
}

type updateParams struct {
	sdk.ParamsBase
	TaskID string         `json:"taskId"`
	Inputs map[string]any `json:"inputResponses,omitempty"`
}

// done acknowledges tasks/update and tasks/cancel.
type done struct {
	sdk.ResultBase
	ResultType string `json:"resultType"`
}

// addHandles registers the extension's methods as far as the caller's tools
// reach: a method is another way to a tool and never more than that.
func (h *Handler) addHandles(s *sdk.Server, allowed []Tool) error {
	check, cancel := find(allowed, checkTask), find(allowed, cancelTask)
	if check == nil {
		return nil
	}
	err := sdk.AddReceivingCustomMethod(s, tasksGet, func(ctx context.Context, ss *sdk.ServerSession, p *taskParams) (*handle, error) {
		seen, res, err := h.viaTool(ctx, ss, *check, p.TaskID)
		if err != nil {
			return nil, err
		}
		out := handleOf(*seen.task, h.now())
		out.ResultType = "complete"
		if out.Status == "completed" {
			out.Result = res
			res.IsError = seen.task.Status != tasks.Completed && seen.task.Coverage.Answered == 0
		}
		return out, nil
	})
	if err != nil {
		return err
	}
	// No task ever asks for input: every response is one to an unknown key,
	// which the extension wants ignored.
	err = sdk.AddReceivingCustomMethod(s, tasksUpdate, func(ctx context.Context, ss *sdk.ServerSession, p *updateParams) (*done, error) {
		_, _, err := h.viaTool(ctx, ss, *check, p.TaskID)
		return &done{ResultType: "complete"}, err
	})
	if err != nil || cancel == nil {
		return err
	}
	return sdk.AddReceivingCustomMethod(s, tasksCancel, func(ctx context.Context, ss *sdk.ServerSession, p *taskParams) (*done, error) {
		_, _, err := h.viaTool(ctx, ss, *cancel, p.TaskID)
		return &done{ResultType: "complete"}, err
	})
}

func find(list []Tool, name string) *Tool {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}

// viaTool runs the tool that means the same, with its guard: scope, deadline,
// audit line, budget. A refusal becomes a protocol error, because these methods
// have no result to carry it.
func (h *Handler) viaTool(ctx context.Context, ss *sdk.ServerSession, t Tool, ticket string) (*sighting, *sdk.CallToolResult, error) {
	args := map[string]any{ticketArg.Name: ticket}
	if t.Name == checkTask {
		args[maxBytes.Name] = tenants.MaxAnswerBytes
	}
	raw, err := json.Marshal(args)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a ticket: %w", err)
	}
	seen := &sighting{}
	res, err := h.guard(t)(context.WithValue(ctx, sightingKey{}, seen), &sdk.CallToolRequest{Session: ss, Params: &sdk.CallToolParamsRaw{Name: t.Name, Arguments: raw}})
	if err != nil {
		return nil, nil, err
	}
	if !res.IsError && seen.task != nil {
		return seen, res, nil
	}
	data, _ := res.StructuredContent.(json.RawMessage)
	var f struct {
		Error   string `json:"error"`
		Message string `json:"message"`
	}
	if json.Unmarshal(data, &f) != nil || f.Error == fault.Internal.String() || f.Error == fault.Unavailable.String() || f.Error == fault.Deadline.String() {
		return nil, nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the task could not be read: " + f.Message, Data: data}
	}
	return nil, nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: f.Message, Data: data}
}

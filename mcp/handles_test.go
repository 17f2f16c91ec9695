package mcp

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/telltale-dev/telltale/tenants/tasks"
)

// handleCall is a modern request of a client that declares task handles.
func handleCall(method, params string) (body string, header []string) {
	body, header = modernMeta(method, params)
	return strings.Replace(body, `/clientCapabilities":{}`, `/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`, 1), header
}

// wireHandle is what the extension's results look like to a client.
type wireHandle struct {
	ResultType string `json:"resultType"`
	TaskID     string `json:"taskId"`
	Status     string `json:"status"`
	Message    string `json:"statusMessage"`
	CreatedAt  string `json:"createdAt"`
	UpdatedAt  string `json:"lastUpdatedAt"`
	TTLMs      *int64 `json:"ttlMs"`
	PollMs     int64  `json:"pollIntervalMs"`
	Result     *struct {
		IsError    bool             `json:"isError"`
		Content    []map[string]any `json:"content"`
		Structured map[string]any   `json:"structuredContent"`
	} `json:"result"`
}

func readHandle(t *testing.T, r reply) wireHandle {
	t.Helper()
	var m struct {
		Result *wireHandle     `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal([]byte(r.rpc()), &m); err != nil || m.Result == nil {
		t.Fatalf("no result (%v) in %d %s", err, r.status, r.body)
	}
	return *m.Result
}

// TestTaskHandles walks the extension: a handle instead of a ticket, polling,
// the result, and what is not offered.
func TestTaskHandles(t *testing.T) {
	b := newBackend()
	w := start(t, stub{}, withBackend(b))
	slow := `"name":"trace_tcp_retransmits","arguments":{"node":"acme-db1","duration_s":20}`
	begin := func(t *testing.T, bearer, params string) wireHandle {
		t.Helper()
		body, header := handleCall("tools/call", params)
		return readHandle(t, w.post(t, bearer, "", body, append(header, "Mcp-Name", "trace_tcp_retransmits")...))
	}
	method := func(bearer, method, id string) reply {
		body, header := handleCall(method, fmt.Sprintf(`"taskId":%q`, id))
		return w.post(t, bearer, "", body, append(header, "Mcp-Name", id)...)
	}
	h := begin(t, "diagnose", slow)
	if h.ResultType != "task" || h.Status != "working" || h.TaskID == "" || h.TTLMs == nil || *h.TTLMs != tasks.TicketLife.Milliseconds() || h.PollMs == 0 || h.CreatedAt == "" || h.UpdatedAt == "" {
		t.Errorf("the handle: %+v", h)
	}
	id, err := tasks.ParseID(h.TaskID)
	if err != nil {
		t.Fatal(err)
	}
	if got := readHandle(t, method("diagnose", tasksGet, h.TaskID)); got.ResultType != "complete" || got.Status != "working" || got.Result != nil || !strings.Contains(got.Message, "50 %") {
		t.Errorf("while it runs: %+v", got)
	}
	if got := readHandle(t, method("read", tasksUpdate, h.TaskID)); got.ResultType != "complete" || got.Status != "" {
		t.Errorf("an update: %+v", got)
	}
	b.end(id, tasks.Completed)
	if got := readHandle(t, method("read", tasksGet, h.TaskID)); got.Status != "completed" || got.Result == nil || got.Result.IsError || got.Result.Structured["status"] != "COMPLETED" || !strings.Contains(fmt.Sprint(got.Result.Content), "acme-db1:5000") {
		t.Errorf("the end: %+v", got)
	}
	// The tool answers the ticket as before, whoever asks.
	body, header := handleCall("tools/call", fmt.Sprintf(`"name":"check_task_result","arguments":{"ticket_id":%q}`, h.TaskID))
	if r := w.post(t, "read", "", body, append(header, "Mcp-Name", checkTask)...); !strings.Contains(r.body, `"resultType":"complete"`) || !strings.Contains(r.body, "COMPLETED") {
		t.Errorf("the ticket: %s", r.body)
	}
	t.Run("cancel", func(t *testing.T) {
		h := begin(t, "diagnose", slow)
		for range 2 {
			if got := readHandle(t, method("diagnose", tasksCancel, h.TaskID)); got.ResultType != "complete" {
				t.Errorf("%+v", got)
			}
		}
		if got := readHandle(t, method("diagnose", tasksGet, h.TaskID)); got.Status != "cancelled" || got.Result != nil {
			t.Errorf("%+v", got)
		}
	})
	t.Run("failed", func(t *testing.T) {
		h := begin(t, "diagnose", slow)
		id, err := tasks.ParseID(h.TaskID)
		if err != nil {
			t.Fatal(err)
		}
		b.end(id, tasks.TimedOut)
		if got := readHandle(t, method("diagnose", tasksGet, h.TaskID)); got.Status != "completed" || got.Result == nil || !got.Result.IsError {
			t.Errorf("a failure of the tool is completed with an error: %+v", got)
		}
	})
	t.Run("short", func(t *testing.T) {
		if got := begin(t, "diagnose", `"name":"trace_tcp_retransmits","arguments":{"node":"acme-db1"}`); got.ResultType != "complete" || got.TaskID != "" {
			t.Errorf("what ends in the call needs no handle: %+v", got)
		}
	})
	t.Run("refused", func(t *testing.T) {
		for name, r := range map[string]reply{
			"foreign tenant":  method("diagnose@globex", tasksGet, h.TaskID),
			"foreign cancel":  method("diagnose@globex", tasksCancel, h.TaskID),
			"foreign update":  method("diagnose@globex", tasksUpdate, h.TaskID),
			"outside":         method("diagnose#web", tasksGet, h.TaskID),
			"cancel, outside": method("diagnose#web", tasksCancel, h.TaskID),
			"unknown":         method("diagnose", tasksGet, "0195ffff-0000-7000-8000-000000000000"),
			"no ticket":       method("diagnose", tasksGet, "nonsense"),
		} {
			if code, msg := rpcError(t, r); code != -32602 || msg == "" || strings.Contains(r.body, "acme") {
				t.Errorf("%s: %d %s", name, r.status, r.body)
			}
		}
		if r := method("read", tasksCancel, h.TaskID); r.status != 403 {
			t.Errorf("cancel by a reader: %d %s", r.status, r.body)
		}
		if r := method("payloads", tasksGet, h.TaskID); r.status != 403 {
			t.Errorf("get without read: %d %s", r.status, r.body)
		}
		body, header := handleCall(tasksCancel, fmt.Sprintf(`"taskId":%q`, h.TaskID))
		if code, _ := rpcError(t, w.post(t, "diagnose", "?readonly=1", body, header...)); code != -32601 {
			t.Errorf("cancel with readonly: code %d", code)
		}
		for _, m := range []string{tasksGet, tasksUpdate, tasksCancel} {
			body, header := modernMeta(m, fmt.Sprintf(`"taskId":%q`, h.TaskID))
			if r := w.post(t, "diagnose", "", body, header...); !strings.Contains(r.body, "-32021") || !strings.Contains(r.body, "requiredCapabilities") {
				t.Errorf("%s by a client that did not declare: %d %s", m, r.status, r.body)
			}
			old := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"taskId":%q}}`, m, h.TaskID)
			if code, msg := rpcError(t, w.post(t, "diagnose", "", old)); code != -32601 || !strings.Contains(msg, checkTask) {
				t.Errorf("%s in the old era: %d %s", m, code, msg)
			}
		}
		body, header = modernMeta(listenMethod, `"notifications":{"taskIds":["`+h.TaskID+`"]}`)
		if r := w.post(t, "diagnose", "", body, header...); !strings.Contains(r.body, "-32021") {
			t.Errorf("news of handles without declaring: %s", r.body)
		}
	})
	t.Run("undeclared", func(t *testing.T) {
		body, header := modernMeta("tools/call", slow)
		if r := w.post(t, "diagnose", "", body, append(header, "Mcp-Name", "trace_tcp_retransmits")...); !strings.Contains(r.body, accepted) || strings.Contains(r.body, `"resultType":"task"`) {
			t.Errorf("a client that did not declare: %s", r.body)
		}
	})
}

// TestCapabilitiesOfBothEras: what only the new era delivers is told to the
// new era only.
func TestCapabilitiesOfBothEras(t *testing.T) {
	w := start(t, stub{}, withBackend(newBackend()))
	for version, want := range map[string]string{
		lastLegacy:    `{"completions":{},"prompts":{},"resources":{},"tools":{}}`,
		modernVersion: `{"completions":{},"extensions":{"io.modelcontextprotocol/tasks":{}},"prompts":{},"resources":{"subscribe":true},"tools":{}}`,
	} {
		caps := connect(t, w.URL+"/t/acme/mcp", "diagnose", version).InitializeResult().Capabilities
		raw, err := json.Marshal(caps)
		if err != nil {
			t.Fatal(err)
		}
		var sorted any
		if err := json.Unmarshal(raw, &sorted); err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(sorted); err != nil || string(got) != want {
			t.Errorf("%s: %s (%v)", version, got, err)
		}
	}
	for _, m := range []string{"resources/subscribe", "resources/unsubscribe", "logging/setLevel"} {
		r := w.post(t, "diagnose", "", `{"jsonrpc":"2.0","id":1,"method":"`+m+`","params":{"uri":"telltale://events/recent","level":"info"}}`)
		if code, msg := rpcError(t, r); code != -32601 || !strings.Contains(msg, "stateless") {
			t.Errorf("%s in the old era: %d %s", m, code, msg)
		}
	}
}

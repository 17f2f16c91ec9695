package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// taskDoc is what REST says of a task.
type taskDoc struct {
	Ticket   string      `json:"ticket_id"`
	Status   string      `json:"status"`
	Runs     []runDoc    `json:"runs"`
	Coverage coverageDoc `json:"coverage"`
}

type runDoc struct {
	Node    string `json:"node"`
	Name    string `json:"name"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Next    string `json:"next_step"`
	Error   string `json:"error"`
	Arg     string `json:"argument"`
	Partial bool   `json:"partial"`
	Result  *struct {
		Totals map[string]uint64 `json:"totals"`
		Rows   []struct {
			Labels map[string]string  `json:"labels"`
			Count  uint64             `json:"count"`
			Values map[string]float64 `json:"values"`
		} `json:"rows"`
		Profile *struct {
			Samples uint64
			Top     []struct {
				Function string
				Share    float64
			}
		} `json:"profile"`
	} `json:"result"`
}

type coverageDoc struct {
	Asked      int `json:"asked"`
	Answered   int `json:"answered"`
	NotCovered []struct {
		Node, Name, Reason string
	} `json:"not_covered"`
}

// problem is a refusal over REST.
type problem struct {
	Status int
	Kind   string
	Reason string
	Field  string
	Detail string
	Next   []string
}

// rest sends a request below a tenant's address and reads what comes back.
func rest(t *testing.T, x tenant, kind, method, path string, body any, into any) int {
	t.Helper()
	raw := ""
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		raw = string(b)
	}
	a := call(t, method, x.RESTURL+path, x.Tokens[kind], raw, "Content-Type", "application/json")
	if into != nil {
		if err := json.Unmarshal([]byte(a.body), into); err != nil {
			t.Fatalf("%s %s: %d %v: %s", method, path, a.status, err, a.body)
		}
	}
	return a.status
}

// startTask starts a task over REST on one node.
func startTask(t *testing.T, x tenant, kind, node string, args map[string]any) (int, taskDoc) {
	t.Helper()
	var doc struct {
		problem
		taskDoc
		Status any `json:"status"`
	}
	status := rest(t, x, "diagnose", http.MethodPost, "/tasks", map[string]any{"kind": kind, "node": node, "arguments": args}, &doc)
	if s, ok := doc.Status.(string); ok {
		doc.taskDoc.Status = s
	} else { // a problem, whose reason is told as the task's status
		doc.taskDoc.Status = doc.Reason
	}
	return status, doc.taskDoc
}

func getTask(t *testing.T, x tenant, ticket string) taskDoc {
	t.Helper()
	var doc taskDoc
	if status := rest(t, x, "read", http.MethodGet, "/tasks/"+ticket, nil, &doc); status != http.StatusOK {
		t.Errorf("GET tasks/%s: %d %+v", ticket, status, doc)
	}
	return doc
}

func terminal(status string) bool {
	return slices.Contains([]string{"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT", "NODE_DISCONNECTED", "EXPIRED"}, status)
}

// ended waits until a task is terminal.
func ended(t *testing.T, x tenant, ticket string, limit time.Duration) (doc taskDoc) {
	t.Helper()
	poll(t, limit, "end of task "+ticket, func() bool {
		doc = getTask(t, x, ticket)
		return terminal(doc.Status)
	})
	return doc
}

// toolAnswer is what a tool said over MCP.
type toolAnswer struct {
	status  int
	isError bool
	text    string
	body    map[string]any
}

// word is a text of the structured answer.
func (a toolAnswer) word(key string) string {
	s, _ := a.body[key].(string)
	return s
}

// tool calls a tool over MCP, without the command line in between.
func tool(t *testing.T, x tenant, kind, name string, args map[string]any) toolAnswer {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": map[string]any{"name": name, "arguments": args}})
	if err != nil {
		t.Fatal(err)
	}
	a := call(t, http.MethodPost, x.MCPURL, x.Tokens[kind], string(raw), mcpHeaders...)
	_, data, ok := strings.Cut(a.body, "data: ")
	if !ok {
		data = a.body
	}
	data, _, _ = strings.Cut(data, "\n")
	var got struct {
		Result struct {
			IsError           bool
			Content           []struct{ Text string }
			StructuredContent map[string]any
		}
		Error *struct{ Message string }
	}
	if err := json.Unmarshal([]byte(strings.TrimSpace(data)), &got); err != nil {
		t.Fatalf("%s: %d %v: %s", name, a.status, err, a.body)
	}
	out := toolAnswer{status: a.status, isError: got.Result.IsError || got.Error != nil, body: got.Result.StructuredContent}
	for _, c := range got.Result.Content {
		out.text += c.Text
	}
	if got.Error != nil {
		out.text = got.Error.Message
	}
	return out
}

// cli calls a tool through the command line.
func cli(t *testing.T, x tenant, name string, args map[string]any) (text string, code int) {
	t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	return telltale(t, x, "diagnose", "call", name, string(raw))
}

// together runs checks side by side; each may end itself with Fatal.
func together(checks ...func()) {
	var all sync.WaitGroup
	for _, c := range checks {
		all.Go(c)
	}
	all.Wait()
}

// eventDoc is what REST says of an event.
type eventDoc struct {
	ID         string            `json:"event_id"`
	Node       string            `json:"node"`
	Name       string            `json:"name"`
	Kind       string            `json:"kind"`
	State      string            `json:"state"`
	Scope      map[string]string `json:"scope"`
	First      time.Time         `json:"first_seen"`
	Last       time.Time         `json:"last_seen"`
	Cumulative uint64            `json:"cumulative_count"`
}

// events lists a tenant's events of one kind that bear a label. Whatever else
// happens on this machine is listed, too: it reads all pages.
func events(t *testing.T, x tenant, kind, label, value string) (out []eventDoc) {
	t.Helper()
	for cursor, pages := "", 0; pages < 100; pages++ {
		var page struct {
			Events []eventDoc
			Next   string `json:"next_cursor"`
		}
		if status := rest(t, x, "read", http.MethodGet, "/events?limit=200&kinds="+kind+cursor, nil, &page); status != http.StatusOK {
			t.Fatalf("GET events: %d", status)
		}
		for _, e := range page.Events {
			if label == "" || e.Scope[label] == value {
				out = append(out, e)
			}
		}
		if page.Next == "" {
			break
		}
		cursor = "&cursor=" + url.QueryEscape(page.Next)
	}
	return out
}

func sprintJSON(v any) string {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return fmt.Sprint(err)
	}
	return string(b)
}

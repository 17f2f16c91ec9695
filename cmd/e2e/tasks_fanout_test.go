package e2e_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// TestFanOutOverTwoServers asks fifty nodes that are spread over two servers,
// at either of them: 45 answer, two were dead before, one dies meanwhile and
// two say nothing. A second tenant's nodes with the same labels are not there.
func TestFanOutOverTwoServers(t *testing.T) {
	t.Parallel()
	a := newServer(t, dbtest.DSN(t))
	a.start()
	b := a.twin()
	b.start()
	acme, globex := a.tenant("acme", "role=web"), a.tenant("globex", "role=web")
	simulate(t, a, acme, "left-", "--n", "24", "--mute", "1", "--log-level", "error")
	simulate(t, b, acme, "right-", "--n", "23", "--mute", "1", "--log-level", "error")
	gone := simulate(t, a, acme, "gone-", "--n", "2")
	dying := simulate(t, b, acme, "dying-")
	simulate(t, a, globex, "foreign-", "--n", "3", "--log-level", "error")
	connected(t, acme, 50)
	connected(t, globex, 3)
	channels := func(s *server) float64 { return s.metric("telltale_ingest_task_channels") }
	poll(t, 20*time.Second, "task channels", func() bool { return channels(a)+channels(b) == 53 })
	gone.kill()
	connected(t, acme, 48)

	type got struct {
		what string
		task taskDoc
	}
	answers := make(chan got, 2)
	request := map[string]any{"kind": "trace_slow_io", "labels": map[string]string{"role": "web"}, "arguments": map[string]any{"duration_s": 2}}
	began := time.Now()
	go func() {
		var doc taskDoc
		rest(t, a.at(acme), "diagnose", http.MethodPost, "/tasks", request, &doc)
		answers <- got{"REST at the left", doc}
	}()
	var mcp toolAnswer
	go func() {
		mcp = tool(t, b.at(acme), "diagnose", "trace_slow_io", map[string]any{"selector": map[string]string{"role": "web"}, "duration_s": 2})
		answers <- got{"MCP at the right", getTask(t, a.at(acme), mcp.word("ticket_id"))}
	}()
	// While it runs: most have answered, the rest is under way. Each server
	// shows it, whoever was asked.
	var tickets []string
	poll(t, 10*time.Second, "two running tasks", func() bool {
		var page struct{ Tasks []taskDoc }
		rest(t, b.at(acme), "read", http.MethodGet, "/tasks?state=active", nil, &page)
		tickets = tickets[:0]
		for _, task := range page.Tasks {
			tickets = append(tickets, task.Ticket)
		}
		return len(tickets) == 2
	})
	poll(t, 10*time.Second, "one run of each on the node that dies", func() bool {
		n := 0
		for _, ticket := range tickets {
			for _, r := range getTask(t, b.at(acme), ticket).Runs {
				if r.Name == dying.name && r.Status == "RUNNING" {
					n++
				}
			}
		}
		return n == 2
	})
	dying.kill()
	for _, at := range []tenant{a.at(acme), b.at(acme)} {
		for _, ticket := range tickets {
			poll(t, 10*time.Second, "partial answer of "+ticket, func() bool {
				doc := getTask(t, at, ticket)
				if doc.Status != "RUNNING" {
					t.Fatalf("with two mute nodes the task is %s: %s", doc.Status, sprintJSON(doc.Coverage))
				}
				with := 0
				for _, r := range doc.Runs {
					if r.Result != nil && len(r.Result.Rows) > 0 {
						with++
					}
				}
				return with >= 45
			})
		}
	}
	for range 2 {
		var g got
		select {
		case g = <-answers:
		case <-time.After(40 * time.Second):
			t.Fatal("a call hangs")
		}
		t.Logf("%s after %v", g.what, time.Since(began).Round(10*time.Millisecond))
		wholeFanOut(t, g.what, g.task, dying.name)
	}
	if mcp.isError || !strings.Contains(mcp.text, "coverage: 45 of 50 nodes answered") {
		t.Errorf("MCP: %s", mcp.text)
	}
	if strings.Contains(mcp.text, "foreign-") || strings.Contains(sprintJSON(mcp.body), "foreign-") {
		t.Errorf("another tenant's node: %s", mcp.text)
	}
	for _, ticket := range tickets {
		var p problem
		if rest(t, b.at(globex), "diagnose", http.MethodGet, "/tasks/"+ticket, nil, &p); p.Status != http.StatusNotFound {
			t.Errorf("globex reads acme's ticket: %+v", p)
		}
	}
	status, doc := 0, taskDoc{}
	request["arguments"] = map[string]any{"duration_s": 1}
	status = rest(t, b.at(globex), "diagnose", http.MethodPost, "/tasks", request, &doc)
	if status != http.StatusOK || doc.Coverage.Asked != 3 || doc.Coverage.Answered != 3 {
		t.Errorf("globex's own fan-out: %d %s", status, sprintJSON(doc.Coverage))
	}
}

// wholeFanOut holds one merged answer against what was planted.
func wholeFanOut(t *testing.T, what string, doc taskDoc, dying string) {
	t.Helper()
	if doc.Status != "COMPLETED" || doc.Coverage.Asked != 50 || doc.Coverage.Answered != 45 || len(doc.Coverage.NotCovered) != 5 {
		t.Errorf("%s: %s with coverage %s", what, doc.Status, sprintJSON(doc.Coverage))
	}
	reasons := map[string]string{}
	for _, n := range doc.Coverage.NotCovered {
		reasons[n.Name] = n.Reason
	}
	for name, want := range map[string]string{"gone-0001": "offline", "gone-0002": "offline", dying: "node_disconnected", "left-0024": "timed_out", "right-0023": "timed_out"} {
		if reasons[name] != want {
			t.Errorf("%s: %s is not covered for %q, want %q", what, name, reasons[name], want)
		}
	}
	completed, rows := 0, 0
	for _, r := range doc.Runs {
		if strings.HasPrefix(r.Name, "foreign-") {
			t.Errorf("%s: a run on %s of another tenant", what, r.Name)
		}
		if r.Status == "COMPLETED" {
			completed++
			rows += len(r.Result.Rows)
		}
	}
	if completed != 45 || rows < 45 {
		t.Errorf("%s: %d runs completed with %d rows", what, completed, rows)
	}
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	found "github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// eventsOf is a small history in memory, three events a page. A cursor holds
// the start of the span, as that of the service does.
type eventsOf []found.Event

func someEvents() eventsOf {
	var list eventsOf
	for i := range 7 {
		e := found.Event{ID: fmt.Sprintf("0195a000-0000-7000-8000-%012d", i), Name: "node-1", Kind: "slow_io", Severity: inspector.Warning, State: inspector.EventOpen, Origin: found.FromProbe, First: time.Now(),
			Scope: map[string]string{"device": "vda", "cgroup": "/" + strings.Repeat("a-very-long-slice/", 8) + fmt.Sprint("unit-", i)}}
		if i == 6 {
			e.Origin = found.FromTask
		}
		list = append(list, e)
	}
	return list
}

func (l eventsOf) List(_ context.Context, _ tenants.Scope, q found.ListQuery) (found.Page, error) {
	start, from := 0, q.From.UnixNano()
	if _, err := fmt.Sscanf(q.Cursor, "%d,%d", &start, &from); q.Cursor != "" && err != nil {
		return found.Page{}, fault.Bad("cursor", "not a cursor of this list")
	}
	match := eventsOf{}
	for _, e := range l {
		if q.Origin == "" || e.Origin == q.Origin {
			match = append(match, e)
		}
	}
	end := min(start+3, len(match))
	p := found.Page{Window: tenants.Window{From: time.Unix(0, from).UTC()}, Events: match[start:end]}
	if end < len(match) {
		p.Truncated = &tenants.Truncated{Returned: end - start, NextCursor: fmt.Sprintf("%d,%d", end, from)}
	}
	return p, nil
}

func (l eventsOf) Get(context.Context, tenants.Scope, found.ID) (found.Detail, error) {
	return found.Detail{}, fault.New(fault.NotFound, "unknown_event", "no such event")
}

func (l eventsOf) Promote(context.Context, tenants.Scope, found.Finding) (found.Promoted, error) {
	return found.Promoted{}, fault.New(fault.NotFound, "unknown_ticket", "no such task")
}

func (l eventsOf) Subscribe(tenants.TenantID) (<-chan found.Change, func()) {
	return make(chan found.Change), func() {}
}

// tickets answers for each ticket a task on one node in the state that the
// ticket's last letter says.
type tickets struct{}

func (tickets) Do(context.Context, tenants.Scope, tasks.Request, tasks.DoOptions) (tasks.Task, error) {
	return tasks.Task{}, &fault.Error{Kind: fault.NotFound, Reason: inspector.ReasonPidGone, Field: "pid", Msg: "no process 17"}
}

func (tickets) Get(_ context.Context, _ tenants.Scope, id tasks.ID) (tasks.Task, error) {
	t := tasks.Task{Ticket: id.String(), Kind: "monitor_process_io", Status: tasks.Completed, Runs: []tasks.Run{{Node: "n1", Name: "node-1"}}}
	if id[15] != 0 {
		t.Status, t.Runs[0].Reason = tasks.Failed, inspector.ReasonPidGone
	}
	t.Runs[0].Status = t.Status
	if id[14] != 0 {
		t.Runs = append(t.Runs, t.Runs[0])
	}
	return t, nil
}

func (t tickets) Cancel(ctx context.Context, scope tenants.Scope, id tasks.ID) (tasks.Task, error) {
	return t.Get(ctx, scope, id)
}

func (tickets) Subscribe(tenants.TenantID, tasks.ID) (<-chan struct{}, func()) {
	return make(chan struct{}), func() {}
}

// A span that moves with the clock, such as the last hour, is turned page by
// page.
func TestEventsOfTheLastHour(t *testing.T) {
	url := serve(t)
	r := cli(t, url, "good", "", "events", "--since", "1h")
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	if r.code != 0 || len(lines) != 8 {
		t.Fatalf("exit %d\n%s%s", r.code, r.out, r.err)
	}
	for _, l := range lines {
		if len([]rune(l)) > 200 {
			t.Errorf("%d characters: %s", len(l), l)
		}
	}
	if !strings.Contains(lines[0], "ORIGIN") || !strings.Contains(lines[7], "promoted") || !strings.Contains(lines[7], "unit-6") || strings.Contains(lines[6], "promoted") {
		t.Errorf("%s", r.out)
	}
	r = cli(t, url, "good", "", "events", "--since", "1h", "--json")
	if n := strings.Count(r.out, "\n"); n != 7 || !strings.Contains(r.out, strings.Repeat("a-very-long-slice/", 8)) {
		t.Errorf("%d lines: %s", n, r.out)
	}
	r = cli(t, url, "good", "", "events", "--origin", "task")
	if n := strings.Count(r.out, "slow_io"); n != 1 {
		t.Errorf("%d of origin task: %s", n, r.out)
	}
	// What a script does: next_cursor back, the rest unchanged.
	var page struct {
		Window    tenants.Window `json:"window"`
		Truncated *tenants.Truncated
	}
	first := time.Time{}
	for cursor, pages := "", 0; ; pages++ {
		args := `{"from":"1h","cursor":"` + cursor + `"}`
		r := cli(t, url, "good", "", "call", "list_events", "--json", args)
		page.Truncated = nil
		if err := json.Unmarshal([]byte(r.out), &page); err != nil || r.code != 0 {
			t.Fatalf("%v, exit %d: %s%s", err, r.code, r.out, r.err)
		}
		if first.IsZero() {
			first = page.Window.From
		}
		if !page.Window.From.Equal(first) {
			t.Errorf("page %d begins at %s, the first at %s", pages, page.Window.From, first)
		}
		if page.Truncated == nil {
			if pages != 2 {
				t.Errorf("%d pages", pages+1)
			}
			break
		}
		cursor = page.Truncated.NextCursor
	}
}

// A call says by its exit code whether the task failed, and by its text for
// what reason.
func TestCallOfTasks(t *testing.T) {
	url := serve(t)
	const ticket = "0195a000-0000-7000-8000-00000000"
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"refused":              {[]string{"call", "monitor_process_io", `{"node":"node-1","pid":17}`}, 1, []string{"NOT_FOUND pid_gone (pid): no process 17"}},
		"refused, as JSON":     {[]string{"call", "--json", "monitor_process_io", `{"node":"node-1","pid":17}`}, 1, []string{`"reason": "pid_gone"`}},
		"completed":            {[]string{"call", checkTask, `{"ticket_id":"` + ticket + `0000"}`}, 0, []string{"COMPLETED"}},
		"failed":               {[]string{"call", checkTask, `{"ticket_id":"` + ticket + `0001"}`}, 1, []string{"FAILED", "pid_gone"}},
		"failed, as JSON":      {[]string{"call", checkTask, "--json", `{"ticket_id":"` + ticket + `0001"}`}, 1, []string{`"status": "FAILED"`}},
		"failed on many nodes": {[]string{"call", checkTask, `{"ticket_id":"` + ticket + `0101"}`}, 0, []string{"FAILED"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := cli(t, url, "good", "", c.args...)
			if r.code != c.code {
				t.Errorf("exit %d, want %d", r.code, c.code)
			}
			for _, w := range c.want {
				if !strings.Contains(r.out+r.err, w) {
					t.Errorf("no %q: %s%s", w, r.out, r.err)
				}
			}
		})
	}
}

const checkTask = "check_task_result"

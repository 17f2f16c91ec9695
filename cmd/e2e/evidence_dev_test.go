package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestEvidence asks this machine for evidence of faults that it injects: a
// lossy link, a throttled disk, spinning programs. Then it asks wrongly, and
// last it kills the agent.
func TestEvidence(t *testing.T) {
	needProbe(t)
	s := startDev(t, newDataDir(t), nil)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.warnings())
		}
	})
	acme, globex := s.tenant(t, "acme"), s.tenant(t, "globex")
	host := nodes(t, acme)[0]
	s.await(40*time.Second, "all modules opened", func() bool {
		list := capabilities(t, acme, host)
		return len(list) > 0 && !slices.ContainsFunc(list, func(c capability) bool { return c.Reason == "not opened yet" })
	})
	broken := brokenDisk(t)
	disks := [3]*disk{} // one each: the events of one device within a minute are one record
	for i := range disks {
		disks[i] = throttledDisk(t)
	}
	t.Run("names the fault", func(t *testing.T) { faultsAreNamed(t, acme, host, disks[0]) })
	t.Run("ticket", func(t *testing.T) { ticketPath(t, acme, host, disks[1]) })
	t.Run("explain", func(t *testing.T) { causeIsNamed(t, acme, host, disks[2]) })
	t.Run("bad input", func(t *testing.T) { badInput(t, s, acme, globex, host) })
	t.Run("killed agent", func(t *testing.T) { killedRealAgent(t, s, acme, host, broken) })
}

// faultsAreNamed injects three faults at once and asks for each over the
// command line, and then over REST.
func faultsAreNamed(t *testing.T, acme tenant, host node, d *disk) {
	const sources = "../../agent/symbols/testdata/"
	inC := spinner(t, "cspin", "gcc", "-O2", sources+"spin.c")
	inGo := spinner(t, "gospin", "go", "build", sources+"gospin/main.go")
	lossyLink(t)
	d.reader(t, "tt-evidence")

	link := map[string]any{"node": host.Node, "duration_s": 3, "port": lossyPort}
	slow := map[string]any{"node": host.Node, "duration_s": 4, "device": d.name}
	spin := func(pid int) map[string]any { return map[string]any{"node": host.Node, "duration_s": 2, "pid": pid} }
	says := func(name string, args map[string]any, words ...string) {
		text, code := cli(t, acme, name, args)
		if code != 0 {
			t.Errorf("%s: exit %d: %s", name, code, text)
			return
		}
		for _, w := range words {
			if !regexp.MustCompile(w).MatchString(text) {
				t.Errorf("%s does not say %s:\n%s", name, w, text)
			}
		}
	}
	began := time.Now()
	together(
		func() {
			says("trace_tcp_retransmits", link, `remote=10\.88\.0\.2\b`, fmt.Sprintf(`remote_port=%d\b`, lossyPort), fmt.Sprintf(`pid=%d\b`, os.Getpid()), `COMPLETED`)
		},
		func() { says("trace_slow_io", slow, `device=`+d.name+`\b`, `COMPLETED`, `tt-evidence`) },
		func() {
			says("profile_on_cpu", spin(inC), `(?m)^\s*\d+\.\d % .*\bhot\b`, `COMPLETED`)
			says("profile_on_cpu", spin(inGo), `(?m)^\s*\d+\.\d % .*\bmain\.hot\b`, `COMPLETED`)
		},
	)
	t.Logf("three tools in %v", time.Since(began).Round(10*time.Millisecond))

	over := func(kind string, args map[string]any) *runDoc {
		delete(args, "node")
		status, doc := startTask(t, acme, kind, host.Name, args)
		if status != http.StatusOK || doc.Status != "COMPLETED" || len(doc.Runs) != 1 || doc.Runs[0].Result == nil {
			t.Errorf("%s over REST: %d %s", kind, status, sprintJSON(doc))
			return nil
		}
		return &doc.Runs[0]
	}
	row := func(kind string, args map[string]any, labels map[string]string) {
		r := over(kind, args)
		if r == nil {
			return
		}
		for _, row := range r.Result.Rows {
			same := row.Count > 0
			for k, v := range labels {
				same = same && row.Labels[k] == v
			}
			if same {
				return
			}
		}
		t.Errorf("%s over REST has no row with %v: %s", kind, labels, sprintJSON(r))
	}
	function := func(pid int, name string) {
		r := over("profile_on_cpu", spin(pid))
		if r == nil {
			return
		}
		if p := r.Result.Profile; p == nil || len(p.Top) == 0 || p.Top[0].Function != name || p.Top[0].Share < 0.4 {
			t.Errorf("the profile over REST does not name %s first: %s", name, sprintJSON(r))
		}
	}
	together(
		func() {
			row("trace_tcp_retransmits", link, map[string]string{"remote": "10.88.0.2", "remote_port": strconv.Itoa(lossyPort), "local": "10.88.0.1"})
		},
		func() { row("trace_slow_io", slow, map[string]string{"device": d.name, "operation": "read"}) },
		func() { function(inGo, "main.hot"); function(inC, "hot") },
	)
}

// ticketPath follows one long task to its end and cancels another one, while
// the events of the slow disk come in.
func ticketPath(t *testing.T, acme tenant, host node, d *disk) {
	text, code := cli(t, acme, "trace_slow_io", map[string]any{"node": host.Node, "device": d.name, "duration_s": 9})
	ticket := ticketIn(t, text)
	if code != 0 || !strings.Contains(text, "ACCEPTED") {
		t.Fatalf("a task of 9 s: exit %d: %s", code, text)
	}
	text, code = cli(t, acme, "monitor_device_io", map[string]any{"node": host.Node, "device": d.name, "duration_s": 60})
	other := ticketIn(t, text)
	if code != 0 || !strings.Contains(text, "ACCEPTED") {
		t.Fatalf("a task of 60 s: exit %d: %s", code, text)
	}
	check := func(ticket string) toolAnswer {
		return tool(t, acme, "read", "check_task_result", map[string]any{"ticket_id": ticket})
	}
	d.reader(t, "tt-ticket")
	// The event comes within two seconds of its request's end.
	var seen eventDoc
	poll(t, 20*time.Second, "slow_io of "+d.name, func() bool {
		if list := events(t, acme, "slow_io", "device", d.name); len(list) > 0 {
			seen = list[0]
			return true
		}
		return false
	})
	late := time.Since(seen.First)
	t.Logf("slow_io was listed %v after it was seen", late.Round(time.Millisecond))
	if late > 2*time.Second+slack {
		t.Errorf("slow_io was listed %v after it was seen, want within 2 s", late)
	}
	list, code := telltale(t, acme, "read", "events", "--kind", "slow_io", "--node", host.Name)
	if code != 0 || !strings.Contains(list, "device="+d.name) || !strings.Contains(list, seen.ID) {
		t.Errorf("telltale events: exit %d: %s", code, list)
	}

	poll(t, 9*time.Second, "partial result", func() bool {
		a := check(ticket)
		if a.isError || a.word("status") != "RUNNING" {
			t.Fatalf("the ticket of a running task: %s", a.text)
		}
		return strings.Contains(a.text, "device="+d.name)
	})
	for _, again := range []bool{false, true} { // the second time changes nothing
		text, code := cli(t, acme, "cancel_task", map[string]any{"ticket_id": other})
		if code != 0 || !strings.Contains(text, "CANCELLED") {
			t.Errorf("cancel (again: %v): exit %d: %s", again, code, text)
		}
	}
	if a := check(other); a.word("status") != "CANCELLED" || !strings.Contains(a.text, d.name) {
		t.Errorf("the cancelled task, which keeps what it found: %s", a.text)
	}
	poll(t, 20*time.Second, "completion", func() bool { return check(ticket).word("status") == "COMPLETED" })
	if a := check(ticket); !strings.Contains(a.text, "device="+d.name) || !strings.Contains(a.text, "tt-ticket") {
		t.Errorf("the completed task: %s", a.text)
	}
	// A call of a task that is over: the same answer, and a cancel that leaves it.
	if text, code := cli(t, acme, "cancel_task", map[string]any{"ticket_id": ticket}); code != 0 || !strings.Contains(text, "COMPLETED") {
		t.Errorf("cancel of a completed task: exit %d: %s", code, text)
	}
}

// slack is what a busy machine may add to a bound of the product.
const slack = 3 * time.Second

var ticketWords = regexp.MustCompile(`ticket_id: ([0-9a-f-]{36})`)

func ticketIn(t *testing.T, text string) string {
	t.Helper()
	m := ticketWords.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no ticket in: %s", text)
	}
	return m[1]
}

// killedRealAgent kills the agent while a task runs. What was told before is
// there once afterwards.
func killedRealAgent(t *testing.T, s *stack, acme tenant, host node, d *disk) {
	of := func() []eventDoc { return events(t, acme, "io_error", "device", d.name) }
	d.fail(t, 0)
	poll(t, 10*time.Second, "the error of "+d.name, func() bool { return len(of()) > 0 })
	poll(t, 10*time.Second, "the agent's note of it", func() bool {
		b, _ := os.ReadFile(filepath.Join(s.dir, "agents", "local", "events.json"))
		return strings.Contains(string(b), `"`+d.name+`"`)
	})
	_, doc := startTask(t, acme, "trace_network_drops", host.Node, map[string]any{"duration_s": 60})
	if doc.Status != "ACCEPTED" {
		t.Fatalf("%s", sprintJSON(doc))
	}
	agent, err := os.FindProcess(s.AgentPIDs[0])
	if err != nil {
		t.Fatal(err)
	}
	if exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", agent.Pid)); filepath.Base(exe) != "telltale-agent" {
		t.Fatalf("process %d is %q", agent.Pid, exe)
	}
	if err := agent.Kill(); err != nil {
		t.Fatal(err)
	}
	got := ended(t, acme, doc.Ticket, 20*time.Second)
	// The supervisor starts it again at once, so that it is back in time to say
	// so; on a busy machine its lease may be over first.
	if r := got.Runs[0]; !(got.Status == "FAILED" && r.Reason == "agent_restarted") && !(got.Status == "NODE_DISCONNECTED" && r.Reason == "node_disconnected") || r.Next == "" {
		t.Errorf("the task of a killed agent: %s", sprintJSON(got))
	}
	// It is at work again, and goes on with the record that it had.
	s.await(40*time.Second, "a second error of "+d.name, func() bool {
		d.fail(t, 0)
		list := of()
		return len(list) > 1 || list[0].Cumulative > 1
	})
	if list := of(); len(list) != 1 {
		t.Errorf("errors of %s within a minute are one record: %s", d.name, sprintJSON(list))
	}
}

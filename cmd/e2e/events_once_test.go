package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// TestEventsExactlyOnce lets real programs crash under a real agent, and kills
// the agent before the server has an event, and when it has it and the agent
// does not know. Each is there once, and nothing old is announced again.
func TestEventsExactlyOnce(t *testing.T) {
	needProbe(t)
	t.Parallel()
	s := newServer(t, dbtest.DSN(t))
	s.start()
	acme := s.tenant("acme", "role=db")
	line := newRelay(t, s.grpc)
	dir := filepath.Join(t.TempDir(), "agent")
	log := &lockedBuffer{}
	var agent *exec.Cmd
	run := func() {
		agent = exec.Command(filepath.Join(bin, "telltale-agent"), "run", "--dir", dir, "--server", line.addr, "--ca", s.ca, "--token", acme.EnrolToken, "--name", "local",
			"--modules-off", "network,storage", "--interval", "60s")
		agent.Stdout, agent.Stderr = log, log
		agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		start(t, agent)
	}
	kill := func() {
		_ = agent.Process.Kill()
		_ = agent.Wait()
		line.cut()
	}
	of := func(name string) []eventDoc { return events(t, acme, "process_crash", "comm", name) }
	listed := func(name string) time.Duration {
		t.Helper()
		var e eventDoc
		poll(t, 20*time.Second, "the crash of "+name+" in the list", func() bool {
			list := of(name)
			if len(list) > 0 {
				e = list[0]
			}
			return len(list) > 0
		})
		return time.Since(e.First)
	}
	// What crashes before the programs are loaded is seen by nobody: crash
	// until one is.
	ready := func(name string) {
		t.Helper()
		poll(t, 60*time.Second, "the probe, seen by a crash of "+name, func() bool {
			crash(t, name)
			return len(of(name)) > 0
		})
	}
	run()
	ready("tt-ready")

	var late []time.Duration
	for _, name := range []string{"tt-one", "tt-two", "tt-three"} {
		crash(t, name)
		late = append(late, listed(name))
	}
	t.Logf("from the crash to the list: %v", late)
	for _, d := range late {
		if d > 2*time.Second+slack {
			t.Errorf("an event took %v from the kernel to the list, want within 2 s", d)
		}
	}

	// The server has it and says so, which the agent does not hear.
	line.freeze(false, true)
	crash(t, "tt-taken")
	listed("tt-taken")
	kill()
	run()
	ready("tt-again")

	// The agent has noted it; the server hears nothing.
	line.freeze(true, false)
	crash(t, "tt-unsent")
	poll(t, 10*time.Second, "the agent's note of it", func() bool {
		b, _ := os.ReadFile(filepath.Join(dir, "events.json"))
		return strings.Contains(string(b), "tt-unsent")
	})
	if len(of("tt-unsent")) > 0 {
		t.Fatal("the frozen line lets events through")
	}
	kill()
	run()
	listed("tt-unsent")
	ready("tt-last") // what was to be told again has been told by now

	for _, name := range []string{"tt-one", "tt-two", "tt-three", "tt-taken", "tt-unsent"} {
		if list := of(name); len(list) != 1 || list[0].Cumulative != 1 {
			t.Errorf("%s crashed once: %s", name, sprintJSON(list))
		}
	}
	for _, e := range events(t, acme, "agent_budget", "", "") { // two kills are no reason to go without the probe
		if e.Scope["resource"] == "crashes" {
			t.Errorf("%s", sprintJSON(e))
		}
	}
}

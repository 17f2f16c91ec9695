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

// TestEventsExactlyOnce lets real disks fail under a real agent, and kills the
// agent before the server has an event, and when it has it and the agent
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
			"--modules-off", "network,process", "--interval", "60s")
		agent.Stdout, agent.Stderr = log, log
		agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		start(t, agent)
	}
	kill := func() {
		_ = agent.Process.Kill()
		_ = agent.Wait()
		line.cut()
	}
	of := func(d *disk) []eventDoc { return events(t, acme, "io_error", "device", d.name) }
	listed := func(d *disk) time.Duration {
		t.Helper()
		var e eventDoc
		poll(t, 20*time.Second, "the error of "+d.name+" in the list", func() bool {
			list := of(d)
			if len(list) > 0 {
				e = list[0]
			}
			return len(list) > 0
		})
		return time.Since(e.First)
	}
	// What fails before the programs are loaded is seen by nobody: fail until
	// one error is.
	ready := func(d *disk) {
		t.Helper()
		poll(t, 60*time.Second, "the probe, seen by an error of "+d.name, func() bool {
			d.fail(t, 0)
			return len(of(d)) > 0
		})
	}
	var probe [3]*disk
	for i := range probe {
		probe[i] = brokenDisk(t)
	}
	var at [3]*disk
	for i := range at {
		at[i] = brokenDisk(t)
	}
	taken, unsent := brokenDisk(t), brokenDisk(t)
	run()
	ready(probe[0])

	var late []time.Duration
	for _, d := range at {
		d.fail(t, 0)
		late = append(late, listed(d))
	}
	t.Logf("from the error to the list: %v", late)
	for _, d := range late {
		if d > 2*time.Second+slack {
			t.Errorf("an event took %v from the kernel to the list, want within 2 s", d)
		}
	}

	// The server has it and says so, which the agent does not hear.
	line.freeze(false, true)
	taken.fail(t, 0)
	listed(taken)
	kill()
	run()
	ready(probe[1])

	// The agent has noted it; the server hears nothing.
	line.freeze(true, false)
	unsent.fail(t, 0)
	poll(t, 10*time.Second, "the agent's note of it", func() bool {
		b, _ := os.ReadFile(filepath.Join(dir, "events.json"))
		return strings.Contains(string(b), `"`+unsent.name+`"`)
	})
	if len(of(unsent)) > 0 {
		t.Fatal("the frozen line lets events through")
	}
	kill()
	run()
	listed(unsent)
	ready(probe[2]) // what was to be told again has been told by now

	for _, d := range append(at[:], taken, unsent) {
		if list := of(d); len(list) != 1 || list[0].Cumulative != 1 {
			t.Errorf("%s failed once: %s", d.name, sprintJSON(list))
		}
	}
	for _, d := range probe {
		if list := of(d); len(list) != 1 {
			t.Errorf("the errors of %s are one record: %s", d.name, sprintJSON(list))
		}
	}
	for _, e := range events(t, acme, "agent_budget", "", "") { // two kills are no reason to go without the probe
		if e.Scope["resource"] == "crashes" {
			t.Errorf("%s", sprintJSON(e))
		}
	}
}

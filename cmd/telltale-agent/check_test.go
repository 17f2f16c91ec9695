package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/collectors"
	"github.com/telltale-dev/telltale/agent/runner"
)

func TestCheckTable(t *testing.T) {
	report := checkReport{Capabilities: []checkCapability{
		{"network", "opens", "full", "bpf", ""},
		{"process", "oom_kills", "degraded", "proc", "the agent lacks CAP_BPF (mend: `sudo setcap cap_bpf+ep x`); /proc counts"},
		{"storage", "errors", "off", "", "no hook"},
	}, Lacking: []string{"CAP_BPF"}, Grant: "sudo setcap cap_bpf+ep x"}
	var plain, coloured bytes.Buffer
	printReport(&plain, report, false)
	want := `COMPONENT  SIGNAL     LEVEL     SOURCE  REASON
network    opens      full      bpf
process    oom_kills  degraded  proc    the agent lacks CAP_BPF; /proc counts
storage    errors     off       -       no hook

The agent lacks CAP_BPF. This gives its programs what they need:
  sudo setcap cap_bpf+ep x
`
	if d := cmp.Diff(want, plain.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	printReport(&coloured, report, true)
	if !strings.Contains(coloured.String(), "\x1b[33mdegraded") {
		t.Error("a terminal gets no colour")
	}
}

func TestCheckReportsEverySignalOnce(t *testing.T) {
	e, out, errOut := testEnv(nil)
	if code := check(e, []string{"--json", "--dir", t.TempDir()}); code != 0 {
		t.Fatalf("exit code %d: %s", code, errOut)
	}
	var report checkReport
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, m := range collectors.List(collectors.Config{}, slog.New(slog.DiscardHandler)) {
		for _, s := range m.Signals {
			want = append(want, m.Component+" "+s)
		}
	}
	for _, c := range report.Capabilities {
		got = append(got, c.Component+" "+c.Signal)
		if c.Level != "full" && c.Reason == "" {
			t.Errorf("%+v: what is not full needs a reason", c)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("signals (-want +got):\n%s", d)
	}
	if strings.Contains(out.String(), "\x1b[") {
		t.Error("JSON with colours")
	}
}

func TestCheckRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, args := range [][]string{{"--jsn"}, {"extra"}, {"--tasks-allow", "rm_rf"}} {
		e, _, errOut := testEnv(nil)
		if code := check(e, args); code != 2 || errOut.Len() == 0 {
			t.Errorf("%v: exit code %d, %q", args, code, errOut)
		}
	}
}

func TestCheckNamesTheModuleThatDoesNotOpen(t *testing.T) {
	report, err := preflight([]runner.Module{{Component: "storage", Signals: []string{"io"}, Open: func() (runner.Collector, error) {
		return nil, errors.New("no room")
	}}})
	if err == nil || !strings.Contains(err.Error(), "storage") {
		t.Errorf("error %v", err)
	}
	want := []checkCapability{{"storage", "io", "off", "", "no room"}}
	if d := cmp.Diff(want, report.Capabilities); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// The check says of every task whether the node does it, and shows the breaker.
func TestCheckOfTasksAndProtection(t *testing.T) {
	dir := t.TempDir()
	for range runner.DefaultCrashes + 1 {
		runner.OpenBreaker(dir, runner.DefaultCrashes, slog.New(slog.DiscardHandler))
	}
	report := func(args ...string) (r checkReport, text string) {
		e, out, errOut := testEnv(nil)
		if code := check(e, append([]string{"--json", "--dir", dir}, args...)); code != 0 {
			t.Fatalf("exit code %d: %s", code, errOut)
		}
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		var plain bytes.Buffer
		printReport(&plain, r, false)
		return r, plain.String()
	}
	tripped, text := report()
	if tripped.Protection.Tripped == "" || tripped.Protection.TrippedUntil == nil || !strings.Contains(text, "three crashes in ten minutes") || !strings.Contains(text, "Budget: 20 % of one core") {
		t.Errorf("protection %+v\n%s", tripped.Protection, text)
	}
	for _, k := range tripped.Tasks {
		if k.Component != "host" && (k.Level != "off" || !strings.Contains(k.Reason, "three crashes")) {
			t.Errorf("while the breaker is tripped: %+v", k)
		}
	}
	if len(tripped.Tasks) == 0 {
		t.Fatal("no task is listed")
	}
	if err := os.Remove(tripped.Protection.LifeFile); err != nil {
		t.Fatal(err)
	}
	one := tripped.Tasks[0].Task
	allowed, _ := report("--tasks-allow", one, "--modules-off", "storage")
	for _, k := range allowed.Tasks {
		switch {
		case k.Task == one && strings.Contains(k.Reason, "tasks-allow"), k.Task != one && !strings.Contains(k.Reason, "tasks-allow"):
			t.Errorf("with only %s allowed: %+v", one, k)
		case k.Level != "full" && k.Reason == "":
			t.Errorf("%+v: what is not full needs a reason", k)
		}
	}
}

const unprivilegedCheck = "TELLTALE_TEST_UNPRIVILEGED"

// As an ordinary user the check prints the one line that gives the agent
// what it needs.
func TestCheckAsOrdinaryUser(t *testing.T) {
	if os.Getenv(unprivilegedCheck) == "" && os.Geteuid() == 0 {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestCheckAsOrdinaryUser$", "-test.v")
		cmd.Env, cmd.Dir = append(os.Environ(), unprivilegedCheck+"=1"), "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestCheckAsOrdinaryUser") {
			t.Fatalf("as an ordinary user: %v\n%s", err, out)
		}
		return
	}
	if len(bpfload.Lacking()) == 0 {
		t.Skip("this user holds the capabilities")
	}
	e, out, errOut := testEnv(nil)
	if code := check(e, nil); code != 0 {
		t.Fatalf("exit code %d: %s", code, errOut)
	}
	if strings.Count(out.String(), "sudo setcap cap_bpf,cap_perfmon+ep /") != 1 || !strings.Contains(out.String(), "degraded") {
		t.Errorf("the check printed:\n%s", out)
	}
}

const grantedCheck = "TELLTALE_TEST_GRANTED"

// The line that the check prints is enough: with just these two capabilities
// an ordinary user gets what root gets.
func TestGrantedCapabilitiesSuffice(t *testing.T) {
	if os.Getenv(grantedCheck) != "" {
		os.Exit(check(env{os.Stdout, os.Stderr, os.LookupEnv}, []string{"--json"}))
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: it gives capabilities to another user")
	}
	report := func(cred *syscall.SysProcAttr) map[string]string {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestGrantedCapabilitiesSuffice$")
		cmd.Env, cmd.Dir, cmd.SysProcAttr = append(os.Environ(), grantedCheck+"=1"), "/", cred
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		var r checkReport
		if err := json.Unmarshal(out, &r); err != nil {
			t.Fatal(err)
		}
		sources := map[string]string{}
		for _, c := range r.Capabilities {
			sources[c.Component+" "+c.Signal] = c.Level + " " + c.Source
		}
		return sources
	}
	const capPerfmon, capBPF = 38, 39
	root := report(nil)
	granted := report(&syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: 65534, Gid: 65534},
		AmbientCaps: []uintptr{capPerfmon, capBPF},
	})
	if d := cmp.Diff(root, granted); d != "" {
		t.Errorf("sources (-root +granted):\n%s", d)
	}
}

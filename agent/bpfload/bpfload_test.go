package bpfload

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// tracepoint is a program on a tracepoint that adds one to slot 0 of the map
// "hits", or does nothing when the tracepoint is empty.
func tracepoint(on string, body ...asm.Instruction) *ebpf.ProgramSpec {
	if body == nil {
		body = asm.Instructions{
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, 0).WithReference("hits"),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), asm.Add.Imm(asm.R1, 1),
			asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("out"), asm.Return(),
		}
	}
	return &ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: on, License: "Dual MIT/GPL", Instructions: body}
}

// specimen holds a program that runs, one that the verifier rejects, and one
// whose tracepoint no kernel has.
func specimen() (*ebpf.CollectionSpec, []Program) {
	return &ebpf.CollectionSpec{
		Maps: map[string]*ebpf.MapSpec{"hits": {Name: "hits", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 1}},
		Programs: map[string]*ebpf.ProgramSpec{
			"good":   tracepoint("sched_process_exit"),
			"unsafe": tracepoint("sched_process_exit", asm.LoadMem(asm.R0, asm.R5, 0, asm.DWord), asm.Return()),
			"future": tracepoint("telltale_no_such_tracepoint"),
			"unused": tracepoint("sched_process_exit"),
		},
	}, []Program{{Name: "good"}, {Name: "unsafe"}, {Name: "future"}, {Name: "kept_off"}, {Name: "forgotten"}}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it loads BPF programs")
	}
}

func hits(t *testing.T, s *Set) uint64 {
	t.Helper()
	n, err := Sums(s.Map("hits"), 1)
	if err != nil {
		t.Fatal(err)
	}
	return n[0]
}

func TestOneBadProgramHarmsNoOther(t *testing.T) {
	needRoot(t)
	spec, programs := specimen()
	s := Open(spec, programs, map[string]string{"kept_off": "by configuration"}, slog.New(slog.DiscardHandler))
	defer s.Close()
	for program, want := range map[string]Class{"unsafe": Rejected, "future": Missing, "kept_off": Disabled, "forgotten": Failed} {
		f := s.Failure(program)
		if f == nil || f.Class != want || f.Reason == "" || len(f.Reason) > maxReason {
			t.Errorf("%s: %+v, want class %v with a bounded reason", program, f, want)
		}
	}
	if f := s.Failure("unsafe"); f != nil && !strings.Contains(f.Reason, "R5 !read_ok") {
		t.Errorf("the verifier's last words are missing: %s", f.Reason)
	}
	if f := s.Failure("good"); f != nil {
		t.Fatalf("good: %v", f)
	}
	if s.Program("unused") != nil {
		t.Error("a program that nobody named was loaded")
	}
	before := hits(t, s)
	if err := exec.Command("/bin/true").Run(); err != nil {
		t.Fatal(err)
	}
	if hits(t, s) == before {
		t.Error("the good program did not run")
	}
	if err := s.Detach("good", "the test is over"); err != nil {
		t.Fatal(err)
	}
	before = hits(t, s)
	if err := exec.Command("/bin/true").Run(); err != nil {
		t.Fatal(err)
	}
	if hits(t, s) != before || s.Running("good") {
		t.Error("a detached program still runs")
	}
	if err := s.Detach("good", "again"); err != nil {
		t.Errorf("detaching twice: %v", err)
	}
}

func TestCapabilities(t *testing.T) {
	s := Absent([]Program{{Name: "a"}, {Name: "b"}}, map[string]string{"b": "by configuration"}, errors.New("no BTF"))
	for _, c := range []struct {
		fallback string
		programs []string
		want     inspector.Capability
	}{
		{"", []string{"runs"}, inspector.Capability{Level: inspector.Full, Source: inspector.SourceBPF}},
		{"/proc has some", []string{"runs", "a"}, inspector.Capability{Level: inspector.Degraded, Source: inspector.SourceProc, Reason: "no BTF; /proc has some"}},
		{"", []string{"a"}, inspector.Capability{Level: inspector.Off, Reason: "no BTF"}},
		{"/proc has some", []string{"b"}, inspector.Capability{Level: inspector.Off, Reason: "by configuration"}},
	} {
		c.want.Component, c.want.Signal = "x", "y"
		if got := s.Capability("x", "y", c.fallback, c.programs...); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.programs, got, c.want)
		}
	}
}

func TestClassify(t *testing.T) {
	needRoot(t) // without privileges every EPERM means their lack
	for _, c := range []struct {
		at   stage
		err  error
		want Class
	}{
		{atMap, fmt.Errorf("map: %w", unix.EPERM), NoPrivilege},
		{atLoad, fmt.Errorf("program: %w", unix.EPERM), Refused},
		{atAttach, unix.ENOENT, Missing},
		{atLoad, ebpf.ErrNotSupported, Missing},
		{atLoad, &ebpf.VerifierError{Cause: unix.EACCES, Log: strings.Split(strings.Repeat("long line \xff of the verifier\n", 500), "\n")}, Rejected},
		{atMap, unix.ENOMEM, Failed},
	} {
		f := classify(c.at, c.err)
		if f.Class != c.want || len(f.Reason) > 2*maxReason || strings.Contains(f.Reason, "\n") || !utf8.ValidString(f.Reason) || !errors.Is(f, c.err) {
			t.Errorf("%v when %v: %+v, want class %v", c.err, c.at, f, c.want)
		}
	}
}

const child = "TELLTALE_TEST_UNPRIVILEGED"

// As an ordinary user everything fails at the maps, for one stated reason.
func TestNoPrivilege(t *testing.T) {
	if os.Getenv(child) == "" && os.Geteuid() == 0 {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestNoPrivilege$", "-test.v")
		cmd.Env, cmd.Dir = append(os.Environ(), child+"=1"), "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestNoPrivilege") {
			t.Fatalf("as an ordinary user: %v\n%s", err, out)
		}
		return
	}
	spec, programs := specimen()
	s := Open(spec, programs, nil, slog.New(slog.DiscardHandler))
	defer s.Close()
	f := s.Failure("good")
	if f == nil || f.Class != NoPrivilege || f.Reason != "the agent lacks CAP_PERFMON and CAP_BPF (mend: `"+Grant()+"`)" || Grant() == "" {
		t.Errorf("%+v", f)
	}
	if s.Map("hits") != nil {
		t.Error("there is a map")
	}
}

func TestReasonWithoutPrivileges(t *testing.T) {
	names := []string{"CAP_PERFMON", "CAP_BPF"}
	for grant, want := range map[string]string{
		"sudo setcap x /bin/a":          "the agent lacks CAP_PERFMON and CAP_BPF (mend: `sudo setcap x /bin/a`)",
		"":                              "the agent lacks CAP_PERFMON and CAP_BPF, and whatever starts it withholds them",
		"sudo setcap x '/`/a'":          "the agent lacks CAP_PERFMON and CAP_BPF",
		strings.Repeat("x", maxGrant+1): "the agent lacks CAP_PERFMON and CAP_BPF",
	} {
		if got := lacks(names, grant); got != want {
			t.Errorf("%q: %q, want %q", grant, got, want)
		}
	}
}

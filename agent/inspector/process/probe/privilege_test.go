package probe

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
)

// powerlessEnv marks the test's own process that gives its privileges up.
const powerlessEnv = "TELLTALE_TEST_POWERLESS"

// An agent that may load no program says so, and what would help.
func TestProfileWithoutPrivileges(t *testing.T) {
	needRoot(t)
	if os.Getenv(powerlessEnv) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestProfileWithoutPrivileges$", "-test.v")
		cmd.Env = append(os.Environ(), powerlessEnv+"=1")
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil || bytes.Contains(out, []byte("--- SKIP")) {
			t.Fatal(err)
		}
		return
	}
	runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&hdr, &none[0]); err != nil {
		t.Fatal(err)
	}
	r, err := profile(t, map[string]any{"pid": os.Getpid(), "duration_s": 1})
	var no *inspector.Refusal
	if r != nil || !errors.As(err, &no) || no.Kind != "FAILED_PRECONDITION" || no.Reason != inspector.ReasonFeatureOff || no.Msg == "" || no.Next == "" {
		t.Errorf("%v, %v", r, err)
	}
	t.Log(no)
}

// With the privileges of the probe alone the names may be fewer, and the notes
// say so.
func TestProfileWithoutPtrace(t *testing.T) {
	needRoot(t)
	if os.Getenv(powerlessEnv) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestProfileWithoutPtrace$", "-test.v")
		cmd.Env = append(os.Environ(), powerlessEnv+"=1")
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil || bytes.Contains(out, []byte("--- SKIP")) {
			t.Fatal(err)
		}
		return
	}
	program := buildC(t, "hidden")
	for _, dir := range []string{filepath.Dir(program), filepath.Dir(filepath.Dir(program))} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := spin(t, program, asNobody)
	args, err := process.Tasks()[0].Check(map[string]any{"pid": p.Pid, "duration_s": 2})
	if err != nil {
		t.Fatal(err)
	}
	run := Tasks(Config{}, logOf(t))[process.ProfileOnCPU]
	var r *inspector.TaskResult
	done := make(chan struct{})
	go func() { // the test itself keeps the right to end the spinner
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var probe [2]unix.CapUserData
		for _, c := range []uint{unix.CAP_BPF, unix.CAP_PERFMON} {
			probe[c/32].Effective |= 1 << (c % 32)
			probe[c/32].Permitted |= 1 << (c % 32)
		}
		if err = unix.Capset(&hdr, &probe[0]); err == nil {
			r, err = run(t.Context(), args, nil)
		}
	}()
	<-done
	if err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(r.Notes, " ")
	if r.Profile.Samples == 0 || r.Rows[0].Labels["comm"] != "hidden" {
		t.Errorf("%+v %v", r.Profile, r.Rows)
	}
	// Some kernels show the map of memory for CAP_PERFMON; then files that
	// anybody may read have names.
	if top(r, "hot").Self == 0 && !strings.Contains(notes, "CAP_SYS_PTRACE") {
		t.Errorf("%+v %v", r.Profile, r.Notes)
	}
	t.Log(r.Profile.Top[0], notes)
}

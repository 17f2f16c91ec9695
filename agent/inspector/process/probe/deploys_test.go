package probe

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
)

// install makes a program of its own from one that every machine has.
func install(t *testing.T, path, mark string) {
	t.Helper()
	b, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", append(b, mark...), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func runFor(t *testing.T, name string, arg ...string) int {
	t.Helper()
	cmd := exec.Command(name, arg...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// deployed picks what was told of files below a folder, in order.
func deployed(h *heard, dir string) (out []inspector.Occurrence) {
	for _, o := range h.of(process.NewExecutable) {
		if strings.HasPrefix(o.Labels[process.LabelExe], dir) {
			out = append(out, o)
		}
	}
	return out
}

func untilDeployed(t *testing.T, h *heard, dir string, n int) inspector.Occurrence {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for len(deployed(h, dir)) < n {
		if time.Now().After(deadline) {
			t.Fatalf("%+v, want %d", deployed(h, dir), n)
		}
		pause()
	}
	return deployed(h, dir)[n-1]
}

func TestNewExecutables(t *testing.T) {
	needRoot(t)
	dir, err := os.MkdirTemp("", "deploy-") // a short path, so that labels hold it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cfg := Config{StateDir: t.TempDir()}
	at := func(name string) string { return filepath.Join(dir, name) }
	soon := func(s *eventsSizes) { s.settled = 1500 * time.Millisecond }
	install(t, at("before"), "")
	runFor(t, at("before"), "60")

	h := &heard{}
	begin := func() *watcher {
		h = &heard{}
		cfg.Emit = h.emit
		cfg.Kernel = labKernel
		w, err := openWatcher(cfg, 0, soon, logOf(t))
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	w := begin()
	waitFor(t, "the first look", func() bool { _, err := os.Stat(filepath.Join(cfg.StateDir, "executables.json")); return err == nil })
	runFor(t, at("before"), "60") // what ran at first start is known
	install(t, at("app"), "v1")
	if err := exec.Command(at("app"), "0").Run(); err != nil { // ends too soon to be told
		t.Fatal(err)
	}
	pid := runFor(t, at("app"), "60")
	o := untilDeployed(t, h, dir, 1)
	if o.Labels[process.LabelExe] != at("app") || o.Labels[process.LabelChange] != process.ChangeNew || len(o.Labels) != 2 || o.Sample.Labels["pid"] != fmt.Sprint(pid) {
		t.Errorf("%+v %+v", o, o.Sample)
	}
	runFor(t, at("app"), "61") // the same file
	install(t, at("app"), "version2")
	pid = runFor(t, at("app"), "60")
	o = untilDeployed(t, h, dir, 2)
	s := o.Sample
	if o.Labels[process.LabelChange] != process.ChangeReplaced || s.Labels["pid"] != fmt.Sprint(pid) || s.Labels["old_inode"] == "" || s.Values["size_bytes"]-s.Values["old_size_bytes"] != 6 {
		t.Errorf("%+v %+v", o, s)
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}

	install(t, at("meanwhile"), "")
	runFor(t, at("meanwhile"), "60")
	w = begin()
	o = untilDeployed(t, h, dir, 1)
	if o.Labels[process.LabelExe] != at("meanwhile") || o.Labels[process.LabelChange] != process.ChangeNew {
		t.Errorf("%+v", o)
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	if got := deployed(h, dir); len(got) != 1 {
		t.Errorf("told again after a restart: %+v", got)
	}
}

// A program that goes on as a child of what was started is seen there.
func TestNewDaemon(t *testing.T) {
	needRoot(t)
	dir, err := os.MkdirTemp("", "deploy-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	shell, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	daemon := filepath.Join(dir, "daemon")
	if err := os.WriteFile(daemon, shell, 0o755); err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	h, _ := watchChildren(t, os.Getpid(), Config{StateDir: state}, func(s *eventsSizes) { s.settled = time.Second })
	waitFor(t, "the first look", func() bool { _, err := os.Stat(filepath.Join(state, "executables.json")); return err == nil })
	r, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close() // lets the child go
	cmd := exec.Command(daemon, "-c", "(read forever; exit 0) <&3 & exit 0")
	cmd.ExtraFiles = []*os.File{r}
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	if o := untilDeployed(t, h, dir, 1); o.Sample.Labels["pid"] == fmt.Sprint(cmd.Process.Pid) {
		t.Errorf("%+v is of the process that ended", o.Sample)
	}
}

func TestKnownExecutablesAreBounded(t *testing.T) {
	x := newExecutables(3)
	see := func(path string, inode uint64, want string) {
		t.Helper()
		if got, old := x.see(executable{Path: path, Inode: inode}); got != want || (old != nil) != (want == process.ChangeReplaced) {
			t.Errorf("%s %d is %q, want %q", path, inode, got, want)
		}
	}
	see("/a", 1, process.ChangeNew)
	see("/a", 1, "")
	see("/a", 2, process.ChangeReplaced)
	see("/a", 1, "") // two containers with files of their own take turns
	see("/a", 2, "")
	see("/b", 1, process.ChangeNew)
	see("/c", 1, process.ChangeNew) // /a 1 goes
	see("/a", 1, process.ChangeReplaced)
	if x.order.Len() != 3 || len(x.files) != 3 || x.forgot != 2 {
		t.Errorf("%d, %d known, %d forgotten", x.order.Len(), len(x.files), x.forgot)
	}
}

func TestBrokenStateTellsNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "executables.json"), []byte(`{"path":"/x","inode":1}`+"\n{half"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := newDeploys(Config{StateDir: dir}, nil, settled, logOf(t))
	d.begin(t.Context(), func(o inspector.Occurrence) { t.Errorf("told %+v", o) })
	if d.known.order.Len() < 2 {
		t.Error("what runs was not taken in")
	}
	again := newDeploys(Config{StateDir: dir}, nil, settled, logOf(t))
	if !again.load() || again.known.order.Len() != d.known.order.Len() {
		t.Errorf("%d are read of %d", again.known.order.Len(), d.known.order.Len())
	}
}

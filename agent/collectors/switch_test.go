package collectors

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/runner"
)

// windows counts what a runner pushes, by component.
type windows struct {
	mu sync.Mutex
	n  map[string]int
}

func (w *windows) Push(win *inspector.Window) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := win.Layout.Check(); err != nil || !win.Start.Before(win.End) {
		w.n["malformed "+win.Layout.Component]++
	}
	w.n[win.Layout.Component]++
}

func (w *windows) of(component string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n[component]
}

// bpfDescriptors counts this process's open BPF programs and links.
func bpfDescriptors(t *testing.T) int {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range infos {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // closed meanwhile
		}
		if strings.Contains(string(b), "prog_id:") || strings.Contains(string(b), "link_id:") {
			n++
		}
	}
	return n
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited 30 s in vain: %s", what)
		}
		<-tick.C
	}
}

// All real modules run side by side; switching the probe's off unloads every
// program, and releasing them loads the programs again.
func TestSwitchesUnloadPrograms(t *testing.T) {
	sink := &windows{n: map[string]int{}}
	modules := List(Config{}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	r := runner.New(runner.Config{Interval: 200 * time.Millisecond, Deadline: 10 * time.Second}, modules, sink, slog.New(slog.NewTextHandler(t.Output(), nil)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := bpfDescriptors(t); n != 0 {
			t.Errorf("%d BPF descriptors outlive the runner", n)
		}
	}()
	for _, m := range modules {
		waitFor(t, "a window of "+m.Component, func() bool { return sink.of(m.Component) > 0 })
		if n := sink.of("malformed " + m.Component); n != 0 {
			t.Errorf("%s made %d malformed windows", m.Component, n)
		}
	}
	if os.Geteuid() == 0 && bpfDescriptors(t) == 0 {
		t.Error("no program is loaded")
	}
	probe := []string{"network", "process", "storage"}
	r.SetOff(probe)
	waitFor(t, "the programs are unloaded", func() bool { return bpfDescriptors(t) == 0 })
	waitFor(t, "the report says off", func() bool {
		for _, c := range r.Capabilities() {
			if c.Component != "host" && (c.Level != inspector.Off || !strings.Contains(c.Reason, "server")) {
				return false
			}
		}
		return true
	})
	before := sink.of("host")
	waitFor(t, "host goes on", func() bool { return sink.of("host") > before })
	before = sink.of("network")
	r.SetOff(nil)
	waitFor(t, "network measures again", func() bool { return sink.of("network") > before })
}

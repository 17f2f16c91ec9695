package runner

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// fake is a collector whose calls the test steers.
type fake struct {
	name    string
	collect func(ctx context.Context, now time.Time) error

	mu        sync.Mutex
	opened    int
	closed    int
	inFlight  int
	maxFlight int
}

func (f *fake) module() Module {
	return Module{Component: f.name, Signals: []string{"one"}, Open: func() (Collector, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.opened++
		return f, nil
	}}
}

func (f *fake) Component() string { return f.name }

func (f *fake) Capabilities() []inspector.Capability {
	return []inspector.Capability{{Component: f.name, Signal: "one", Level: inspector.Full, Source: inspector.SourceBPF}}
}

func (f *fake) Collect(ctx context.Context, now time.Time) ([]*inspector.Window, error) {
	f.mu.Lock()
	f.inFlight++
	f.maxFlight = max(f.maxFlight, f.inFlight)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.inFlight--
		f.mu.Unlock()
	}()
	if f.collect != nil {
		if err := f.collect(ctx, now); err != nil {
			return nil, err
		}
	}
	return []*inspector.Window{{Layout: inspector.NewLayout(f.name, nil), End: now}}, nil
}

func (f *fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed++
	return nil
}

func (f *fake) counts() (opened, closed int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opened, f.closed
}

// sink remembers window ends by component.
type sink struct {
	mu   sync.Mutex
	ends map[string][]time.Time
}

func (s *sink) Push(w *inspector.Window) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ends == nil {
		s.ends = map[string][]time.Time{}
	}
	s.ends[w.Layout.Component] = append(s.ends[w.Layout.Component], w.End)
}

func (s *sink) of(component string) []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ends[component]
}

// run starts a runner inside a synctest bubble and returns what stops it.
func run(t *testing.T, cfg Config, s *sink, modules ...Module) (*Runner, func() error) {
	t.Helper()
	r := New(cfg, modules, s, slog.New(slog.NewTextHandler(io.Discard, nil)))
	return r, start(t, r)
}

func start(t *testing.T, r *Runner) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	synctest.Wait()
	return func() error {
		cancel()
		return <-done
	}
}

func after(d time.Duration) {
	time.Sleep(d) // the bubble's clock: no real time passes
	synctest.Wait()
}

func report(r *Runner, component string) inspector.Capability {
	for _, c := range r.Capabilities() {
		if c.Component == component {
			return c
		}
	}
	return inspector.Capability{}
}

func TestTicksAreAlignedAndEndClean(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(3 * time.Second) // begin between two ticks
		f, s := &fake{name: "a"}, &sink{}
		_, stop := run(t, Config{}, s, f.module())
		after(30 * time.Second)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		ends := s.of("a")
		if len(ends) != 3 {
			t.Fatalf("%d windows in 30 s, want 3", len(ends))
		}
		for _, e := range ends {
			if e.Truncate(10*time.Second) != e {
				t.Errorf("window ends at %v, not on a full ten seconds", e)
			}
		}
		if opened, closed := f.counts(); opened != 1 || closed != 1 {
			t.Errorf("opened %d, closed %d times; want once each", opened, closed)
		}
	})
}

func TestStuckCollectorIsNamedAndHarmsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		bad := &fake{name: "bad", collect: func(context.Context, time.Time) error { <-release; return nil }}
		good, s := &fake{name: "good"}, &sink{}
		var mu sync.Mutex
		var told []inspector.Capability
		r, stop := run(t, Config{OnCapabilities: func(c []inspector.Capability) {
			mu.Lock()
			defer mu.Unlock()
			told = c
		}}, s, bad.module(), good.module())
		after(45 * time.Second)
		if n := len(s.of("good")); n != 4 {
			t.Errorf("good collector made %d windows beside a stuck one, want 4", n)
		}
		if c := report(r, "bad"); c.Level != inspector.Off || !strings.Contains(c.Reason, "stuck") {
			t.Errorf("stuck collector reports %+v", c)
		}
		mu.Lock()
		if len(told) != 2 || told[0].Level != inspector.Off {
			t.Errorf("the change was told as %+v", told)
		}
		mu.Unlock()
		if c := r.Counts(); c.Overruns != 3 || c.Panics != 0 {
			t.Errorf("counts %+v, want 3 overruns", c)
		}
		if bad.maxFlight != 1 {
			t.Errorf("%d calls in flight at once", bad.maxFlight)
		}
		close(release)
		after(10 * time.Second)
		if c := report(r, "bad"); c.Level != inspector.Full {
			t.Errorf("released collector reports %+v", c)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCollectorThatNeverLetsGoIsNamedAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		bad := &fake{name: "bad", collect: func(context.Context, time.Time) error { <-release; return nil }}
		_, stop := run(t, Config{}, &sink{}, bad.module())
		after(10 * time.Second)
		if err := stop(); err == nil || !strings.Contains(err.Error(), "bad") {
			t.Errorf("Run returned %v, want an error that names the collector", err)
		}
		close(release)
	})
}

func TestPanicIsCountedAndTheCollectorOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := true
		f := &fake{name: "a", collect: func(context.Context, time.Time) error {
			if first {
				first = false
				panic("torn map")
			}
			return nil
		}}
		s := &sink{}
		r, stop := run(t, Config{}, s, f.module())
		after(10 * time.Second)
		if c := report(r, "a"); c.Level != inspector.Off || !strings.Contains(c.Reason, "torn map") {
			t.Errorf("after the panic: %+v", c)
		}
		if c := r.Counts(); c.Panics != 1 {
			t.Errorf("counts %+v, want one panic", c)
		}
		after(90 * time.Second)
		if opened, closed := f.counts(); opened != 2 || closed != 1 {
			t.Errorf("opened %d, closed %d times; want 2 and 1", opened, closed)
		}
		if c := report(r, "a"); c.Level != inspector.Full || len(s.of("a")) == 0 {
			t.Errorf("after the pause: %+v, %d windows", c, len(s.of("a")))
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestSwitches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, s := &fake{name: "a"}, &fake{name: "b"}, &sink{}
		r, stop := run(t, Config{Off: []string{"b"}}, s, a.module(), b.module())
		if c := report(r, "b"); c.Reason != localOff {
			t.Errorf("locally off: %+v", c)
		}
		r.SetOff([]string{"a", "nobody"})
		after(0)
		if c := report(r, "a"); c.Level != inspector.Off || c.Reason != remoteOff {
			t.Errorf("remotely off: %+v", c)
		}
		if opened, closed := a.counts(); opened != 1 || closed != 1 {
			t.Errorf("a opened %d, closed %d times; want once each", opened, closed)
		}
		after(20 * time.Second)
		if n := len(s.of("a")); n != 0 {
			t.Errorf("a made %d windows while off", n)
		}
		r.SetOff(nil)
		after(10 * time.Second)
		if c := report(r, "a"); c.Level != inspector.Full {
			t.Errorf("released: %+v", c)
		}
		if c := report(r, "b"); c.Reason != localOff {
			t.Errorf("the server switched on what the node keeps off: %+v", c)
		}
		if opened, _ := b.counts(); opened != 0 {
			t.Errorf("b was opened")
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestModuleThatDoesNotOpenIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		f := &fake{name: "a"}
		m := f.module()
		open := m.Open
		m.Open = func() (Collector, error) {
			if tries++; tries == 1 {
				return nil, errors.New("no room")
			}
			return open()
		}
		s := &sink{}
		r, stop := run(t, Config{}, s, m)
		if c := report(r, "a"); c.Level != inspector.Off || !strings.Contains(c.Reason, "no room") {
			t.Errorf("after the failure: %+v", c)
		}
		after(80 * time.Second)
		if tries != 2 || report(r, "a").Level != inspector.Full || len(s.of("a")) == 0 {
			t.Errorf("%d tries, %+v, %d windows", tries, report(r, "a"), len(s.of("a")))
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

package runner

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// What was off before Run is never opened, not even for a moment: a probe that
// harms its machine would do so at every boot.
func TestOffBeforeRunIsNeverOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, s := &fake{name: "a"}, &fake{name: "b"}, &sink{}
		r := New(Config{}, []Module{a.module(), b.module()}, s, slog.New(slog.NewTextHandler(io.Discard, nil)))
		r.SetOff([]string{"a"})
		stop := start(t, r)
		after(30 * time.Second)
		if opened, _ := a.counts(); opened != 0 {
			t.Errorf("a was opened %d times", opened)
		}
		if c := report(r, "a"); c.Level != inspector.Off || c.Reason != remoteOff {
			t.Errorf("a reports %+v", c)
		}
		if len(s.of("b")) == 0 {
			t.Error("b was kept off, too")
		}
		r.SetOff(nil)
		after(0)
		if c := report(r, "a"); c.Level != inspector.Full {
			t.Errorf("released: %+v", c)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// While nobody knows what is to be off, nothing is opened, and the report
// says why; the list ends it for those that it does not name.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &fake{name: "a"}, &fake{name: "b"}
		r := New(Config{Off: []string{"c"}}, []Module{a.module(), b.module(), (&fake{name: "c"}).module()}, &sink{}, slog.New(slog.NewTextHandler(io.Discard, nil)))
		r.Hold("the list is damaged")
		stop := start(t, r)
		after(30 * time.Second)
		for _, f := range []*fake{a, b} {
			if opened, _ := f.counts(); opened != 0 || !strings.Contains(report(r, f.name).Reason, "damaged") {
				t.Errorf("%s opened %d times, reports %+v", f.name, opened, report(r, f.name))
			}
		}
		if c := report(r, "c"); c.Reason != localOff {
			t.Errorf("the node's own switch reports %+v", c)
		}
		r.SetOff([]string{"a"})
		after(0) // no tick needed
		if c := report(r, "a"); c.Reason != remoteOff {
			t.Errorf("a reports %+v", c)
		}
		if opened, _ := b.counts(); opened != 1 || report(r, "b").Level != inspector.Full {
			t.Errorf("b opened %d times, reports %+v", opened, report(r, "b"))
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// A module that waits for its turn to open and is switched off meanwhile is
// not opened.
func TestSwitchedOffWhileItWaitsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var waiting []*fake
		var modules []Module
		for _, name := range []string{"a", "b"} {
			f := &fake{name: name}
			m := f.module()
			ready := m.Open
			m.Open = func() (Collector, error) { <-release; return ready() }
			waiting, modules = append(waiting, f), append(modules, m)
		}
		r := New(Config{}, modules, &sink{}, slog.New(slog.NewTextHandler(io.Discard, nil)))
		stop := start(t, r)
		after(time.Second) // one of the two opens, the other waits
		r.SetOff([]string{"a", "b"})
		close(release)
		after(0)
		opened := 0
		for _, f := range waiting {
			n, closed := f.counts()
			if opened += n; n != closed {
				t.Errorf("%s opened %d times and closed %d times", f.name, n, closed)
			}
			if c := report(r, f.name); c.Reason != remoteOff {
				t.Errorf("%s reports %+v", f.name, c)
			}
		}
		if opened != 1 {
			t.Errorf("%d modules were opened, want the one that was opening", opened)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

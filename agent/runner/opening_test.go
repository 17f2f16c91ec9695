package runner

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestModulesOpenOneAfterAnother keeps the start's peak of memory low, and
// shows that a module which hangs while it opens holds nobody up for long.
func TestModulesOpenOneAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		open, most := 0, 0
		slow := func(name string) Module {
			f := &fake{name: name}
			m := f.module()
			ready := m.Open
			m.Open = func() (Collector, error) {
				mu.Lock()
				open++
				most = max(most, open)
				mu.Unlock()
				after(100 * time.Millisecond)
				mu.Lock()
				open--
				mu.Unlock()
				return ready()
			}
			return m
		}
		s := &sink{}
		_, stop := run(t, Config{}, s, slow("a"), slow("b"), slow("c"))
		after(15 * time.Second)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if most != 1 {
			t.Errorf("%d modules were opening at once, want 1", most)
		}

		release := make(chan struct{})
		hung := slow("hung")
		hung.Open = func() (Collector, error) { <-release; return &fake{name: "hung"}, nil }
		good := &sink{}
		_, stop = run(t, Config{}, good, hung, slow("good"))
		after(30 * time.Second)
		if n := len(good.of("good")); n < 2 {
			t.Errorf("%d windows beside a module that hangs while it opens, want 2 or more", n)
		}
		close(release)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

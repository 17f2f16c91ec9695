package runner

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Each reason stands by itself: a module works again when the last is gone.
func TestProtect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := &fake{name: "a"}, &sink{}
		r, stop := run(t, Config{}, s, a.module())
		r.Protect("breaker", map[string]string{"a": "crashes"})
		r.Protect("budget", map[string]string{"a": "too much CPU", "nobody": "x"})
		after(0)
		if c := report(r, "a"); c.Reason != "crashes" || r.Off("a", nil) != "crashes" {
			t.Errorf("protected: %+v", c)
		}
		r.SetOff(nil) // the server cannot switch it on
		after(0)
		r.Protect("breaker", nil)
		after(0)
		if c := report(r, "a"); c.Reason != "too much CPU" {
			t.Errorf("one reason left: %+v", c)
		}
		r.Protect("budget", map[string]string{"a": ""})
		after(0)
		if opened, _ := a.counts(); opened != 2 || r.Off("a", []string{"one"}) != "" {
			t.Errorf("opened %d times, off for %q", opened, r.Off("a", nil))
		}
		if r.Off("nobody", nil) == "" {
			t.Error("a module that is not there is not off")
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestStuckIsToldOnceAndItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		bad := &fake{name: "bad", collect: func(context.Context, time.Time) error { <-release; return nil }}
		var mu sync.Mutex
		var told []string
		tell := func(c string, _ time.Time, stuck bool) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprint(c, stuck))
		}
		_, stop := run(t, Config{OnStuck: tell}, &sink{}, bad.module(), (&fake{name: "good"}).module())
		after(2 * time.Minute)
		mu.Lock()
		if len(told) != 1 || told[0] != "badtrue" {
			t.Errorf("told %v", told)
		}
		mu.Unlock()
		close(release)
		after(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(told) != 2 || told[1] != "badfalse" {
			t.Errorf("told %v", told)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

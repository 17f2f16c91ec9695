package runner

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestThreeCrashesTripTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		start := func() *Breaker { return OpenBreaker(dir, DefaultCrashes, quiet()) }
		for i := range 3 {
			if r := start().Reason(); r != "" {
				t.Fatalf("start %d: %s", i+1, r)
			}
			after(time.Minute) // and it crashes
		}
		b := start()
		if r := b.Reason(); !strings.Contains(r, "three crashes in ten minutes") || !strings.Contains(r, filepath.Join(dir, lifeFile)) {
			t.Fatalf("after three crashes: %q", r)
		}
		s, err := ReadBreaker(dir, DefaultCrashes)
		if err != nil || s.Reason != b.Reason() || s.Crashes != 3 || time.Until(s.Until) != trippedFor {
			t.Errorf("the check says %+v, %v", s, err)
		}
		// A clean restart does not end it, its time does.
		after(10 * time.Minute)
		b.Clean()
		b = start()
		if b.Reason() == "" {
			t.Error("a restart ended the trip")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		armed := make(chan time.Time, 1)
		go func() { done <- b.Run(ctx, func() { armed <- time.Now() }) }()
		began := time.Now()
		at := <-armed
		if d := at.Sub(began); d < 20*time.Minute || d > 20*time.Minute+2*breakerLook {
			t.Errorf("armed again after %v more", d)
		}
		cancel()
		<-done
		b.Clean()
		// It is armed again: it takes three more crashes.
		for i := range 3 {
			if r := start().Reason(); r != "" {
				t.Errorf("crash %d after the trip: %s", i, r)
			}
			after(time.Second)
		}
		if start().Reason() == "" {
			t.Error("it does not trip a second time")
		}
	})
}

func TestBreakerForgivesWhatIsLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		for range 10 {
			b := OpenBreaker(dir, DefaultCrashes, quiet())
			if r := b.Reason(); r != "" {
				t.Fatal(r)
			}
			after(6 * time.Minute) // one crash in six minutes
		}
		for range 10 {
			b := OpenBreaker(dir, DefaultCrashes, quiet())
			if r := b.Reason(); r != "" {
				t.Fatal(r)
			}
			b.Clean()
		}
		for range 10 {
			if r := OpenBreaker(dir, 0, quiet()).Reason(); r != "" {
				t.Fatalf("switched off: %s", r)
			}
		}
	})
}

func TestRemovingTheFileArmsTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		for range 3 {
			OpenBreaker(dir, DefaultCrashes, quiet())
		}
		b := OpenBreaker(dir, DefaultCrashes, quiet())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		var armed atomic.Bool
		if b.Reason() == "" {
			t.Error("not tripped")
		}
		go func() { done <- b.Run(ctx, func() { armed.Store(true) }) }()
		after(time.Minute)
		if armed.Load() {
			t.Error("armed too soon")
		}
		if err := os.Remove(filepath.Join(dir, lifeFile)); err != nil {
			t.Fatal(err)
		}
		after(2 * breakerLook)
		if !armed.Load() {
			t.Error("the file is gone and the probe is still off")
		}
		cancel()
		<-done
		if s, err := ReadBreaker(dir, DefaultCrashes); err != nil || s.Reason != "" {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

func TestBreakerWithoutAFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, lifeFile), []byte(`{"runn`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadBreaker(dir, DefaultCrashes); err == nil {
		t.Error("a damaged file reads well")
	}
	if r := OpenBreaker(dir, DefaultCrashes, quiet()).Reason(); r != "" {
		t.Errorf("a damaged file trips: %s", r)
	}
	gone := filepath.Join(dir, "no such directory")
	if r := OpenBreaker(gone, DefaultCrashes, quiet()).Reason(); r != "" {
		t.Errorf("no directory trips: %s", r)
	}
	if s, err := ReadBreaker(gone, DefaultCrashes); err != nil || s.Reason != "" {
		t.Errorf("%+v, %v", s, err)
	}
}

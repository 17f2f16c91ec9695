package bpfload

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The kernel's types are parsed once for those that load at about the same
// time, and given back a minute after the last one.
func TestKernelIsKeptForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKernel()
		first, err := k.Types()
		if err != nil {
			t.Skip(err) // this kernel has none
		}
		for range 3 {
			time.Sleep(keepKernel - time.Second)
			if again, _ := k.Types(); again != first {
				t.Fatal("parsed again while in use")
			}
		}
		time.Sleep(keepKernel + time.Second)
		synctest.Wait()
		if k.cache != nil {
			t.Error("kept though nobody asks")
		}
		if again, err := k.Types(); err != nil || again == first {
			t.Errorf("after a pause: %v", err)
		}
		time.Sleep(2 * keepKernel)
	})
}

func TestSetsShareTheKernel(t *testing.T) {
	needRoot(t)
	k := NewKernel()
	types, err := k.Types()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		spec, programs := specimen()
		s := k.Open(spec, programs, nil, slog.New(slog.DiscardHandler))
		if f := s.Failure("good"); f != nil || s.Took() == 0 {
			t.Errorf("%v after %v", f, s.Took())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if again, _ := k.Types(); again != types {
		t.Error("a set parsed the kernel's types again")
	}
	var none *Kernel
	if types, err := none.Types(); types == nil || err != nil {
		t.Errorf("without sharing: %v", err)
	}
}

func TestSlowIsToldFromASecondOn(t *testing.T) {
	if s := Slow("loading", 900*time.Millisecond); s != "" {
		t.Error(s)
	}
	if s := Slow("Loading the programs", 1840*time.Millisecond); !strings.Contains(s, "Loading the programs took 1.8 s") {
		t.Error(s)
	}
}

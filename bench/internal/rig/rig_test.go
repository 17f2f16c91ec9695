package rig

import (
	"os"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// TestNumbersAreTaken holds the made-up windows to what the server takes: the
// product's own series, every value in range.
func TestNumbersAreTaken(t *testing.T) {
	for _, n := range []int{0, 32, 200, 250} {
		m, err := NewNumbers(n)
		if err != nil {
			t.Fatal(err)
		}
		total := 0
		for i := range len(m.Layouts) * (variantsKept + 1) {
			w := m.Window(i, time.Now(), time.Second)
			if w.Layout != m.Layouts[i%len(m.Layouts)] || n > 0 && len(w.Values) != n {
				t.Fatalf("window %d of %d series has %d values of %s", i, n, len(w.Values), w.Layout.Component)
			}
			packed := inspector.AppendValues(nil, w.Layout.Series, w.Values)
			if _, refused, err := inspector.DecodeValues(packed, w.Layout.Series); err != nil || refused != 0 {
				t.Fatalf("window %d: %d refused, %v", i, refused, err)
			}
			if i < len(m.Layouts) {
				total += len(w.Values)
			}
		}
		if total > 1000 { // what one node may report
			t.Errorf("%d series a node", total)
		}
	}
}

func TestProcessFiguresAreOurs(t *testing.T) {
	began := time.Now()
	for OwnCPU() < 200*time.Millisecond && time.Since(began) < 10*time.Second {
	}
	s, err := readStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if d := (OwnCPU() - s.own).Abs(); s.parent != os.Getppid() || d > 100*time.Millisecond {
		t.Errorf("parent %d, want %d; %v away from the process's own account", s.parent, os.Getppid(), d)
	}
	m, err := ReadMemory(os.Getpid())
	if err != nil || m.Peak < m.RSS || m.RSS < m.Anon || m.Anon == 0 {
		t.Errorf("memory %+v, %v", m, err)
	}
}

func TestOrderStatistics(t *testing.T) {
	d := []time.Duration{5, 1, 4, 2, 3}
	if q := Quantile(d, 0.5); q != 3 {
		t.Errorf("median of 1 to 5 is %d", q)
	}
	if q := Quantile(d, 1); q != 5 {
		t.Errorf("last of 1 to 5 is %d", q)
	}
	if m := Median([]float64{4, 1, 3, 2}); m != 2.5 {
		t.Errorf("median of 1 to 4 is %v", m)
	}
	if Quantile(nil, 0.5) != 0 || Median(nil) != 0 {
		t.Error("nothing has a median")
	}
}

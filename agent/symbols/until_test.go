package symbols

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func TestNamingHasItsTime(t *testing.T) {
	for name, tt := range map[string]struct {
		deadline, cancelled, want time.Duration
	}{
		"alone":           {time.Hour, time.Hour, maxNaming},
		"before the end":  {4 * time.Second, time.Hour, 3 * time.Second},
		"after the end":   {-time.Second, time.Hour, afterEnd},
		"when given up":   {time.Hour, 2 * time.Second, 2*time.Second + afterEnd},
		"given up before": {time.Hour, 0, afterEnd},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(tt.deadline))
				defer cancel()
				defer time.AfterFunc(tt.cancelled, cancel).Stop()
				if tt.cancelled == 0 {
					cancel()
				}
				began := time.Now()
				naming, done := Until(ctx)
				defer done()
				<-naming.Done()
				if took := time.Since(began); took != tt.want {
					t.Errorf("it has %v, want %v", took, tt.want)
				}
			})
		})
	}
}

// What is nearest to an address is known when the whole table was looked at,
// so a table that was not has no names.
func TestNamesStopWithTheirTime(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	path := filepath.Join(t.TempDir(), "kallsyms")
	if err := os.WriteFile(path, []byte("ffffffff81000000 T first\nffffffff81000100 T second\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := KernelAt(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := k.Names(ended, []uint64{0xffffffff81000010}); len(got) != 0 {
		t.Errorf("kernel: %v", got)
	}
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	im, err := NewImage(f)
	if err != nil {
		t.Fatal(err)
	}
	text := im.elf.Section(".text").Addr + 0x100
	if got := im.Names(ended, []uint64{text}); len(got) != 0 {
		t.Errorf("program: %v", got)
	}
	if got := im.Names(t.Context(), []uint64{text}); len(got) != 1 {
		t.Errorf("program with time: %v", got)
	}
}

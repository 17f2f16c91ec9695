package probe

import (
	"log/slog"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/bpfload"
)

// BenchmarkPipePingPong is the scheduler programs' worst case: two threads on
// one CPU that do nothing but wake each other. Compare the two sub-benchmarks;
// the second prints what the kernel measured for each program.
func BenchmarkPipePingPong(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root: loads eBPF programs into the kernel")
	}
	b.Run("off", pingPong)
	b.Run("on", func(b *testing.B) {
		c := benchCollector(b)
		defer c.Close()
		pingPong(b)
	})
	b.Run("measured", func(b *testing.B) {
		c := benchCollector(b)
		defer c.Close()
		stats, err := bpfload.EnableStats()
		if err != nil {
			b.Fatal(err)
		}
		defer stats.Close()
		pingPong(b)
		costs, err := c.Costs()
		if err != nil {
			b.Fatal(err)
		}
		for _, k := range costs {
			if k.Runs > 0 {
				b.ReportMetric(float64(k.Time.Nanoseconds())/float64(k.Runs), k.Program+"-ns/run")
			}
		}
	})
}

func benchCollector(b *testing.B) *Collector {
	b.Helper()
	c, err := New(Config{}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func pingPong(b *testing.B) {
	var there, back [2]int
	for _, p := range []*[2]int{&there, &back} {
		if err := unix.Pipe(p[:]); err != nil {
			b.Fatal(err)
		}
		defer unix.Close(p[0])
		defer unix.Close(p[1])
	}
	pin := func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
		var one unix.CPUSet
		one.Set(0)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			b.Error(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		pin()
		var buf [1]byte
		for range b.N {
			if n, err := unix.Read(there[0], buf[:]); n != 1 || err != nil {
				return
			}
			if _, err := unix.Write(back[1], buf[:]); err != nil {
				return
			}
		}
	}()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		pin()
		var buf [1]byte
		b.ResetTimer()
		for range b.N {
			if _, err := unix.Write(there[1], buf[:]); err != nil {
				return
			}
			if n, err := unix.Read(back[0], buf[:]); n != 1 || err != nil {
				return
			}
		}
		b.StopTimer()
	}()
	<-finished
	<-done
}

package probe

import (
	"log/slog"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
	"github.com/telltale-dev/telltale/agent/symbols"
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

// BenchmarkProfiled runs the spinner's work alone and under a profile of it.
// Compare the two; the kernel's own measure of the program is the third.
func BenchmarkProfiled(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root: loads eBPF programs into the kernel")
	}
	work := func(b *testing.B) {
		var sink uint64
		for range b.N {
			for i := range uint64(100_000) {
				sink += i * i
			}
		}
		if sink == 1 {
			b.Log(sink)
		}
	}
	sampled := func(b *testing.B) *sampling {
		p := &profiler{log: slog.New(slog.DiscardHandler)}
		files := symbols.NewFiles("")
		b.Cleanup(func() { _ = files.Close() })
		t, err := p.target(inspector.Args{process.ArgPid: int64(os.Getpid())}, files)
		if err != nil {
			b.Fatal(err)
		}
		s, err := p.sample(t, 99)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(s.Close)
		b.ResetTimer()
		return s
	}
	b.Run("off", work)
	b.Run("on", func(b *testing.B) {
		sampled(b)
		work(b)
	})
	b.Run("measured", func(b *testing.B) {
		s := sampled(b)
		stats, err := bpfload.EnableStats()
		if err != nil {
			b.Fatal(err)
		}
		defer stats.Close()
		work(b)
		costs, err := s.set.Costs()
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

package probe

import (
	"log/slog"
	"os"
	"testing"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
)

// BenchmarkDirectReads reads blocks of a loop device whose file is in memory,
// the shortest request there is, and prints what the kernel measured for each
// program.
func BenchmarkDirectReads(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root: loads eBPF programs into the kernel and sets up loop devices")
	}
	l := newLoop(b, 16<<20)
	b.Run("off", func(b *testing.B) { l.read(b, b.N) })
	c, err := New(Config{Emit: func(inspector.Occurrence) {}}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.Run("on", func(b *testing.B) { l.read(b, b.N) })
	stats, err := bpfload.EnableStats()
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	b.Run("measured", func(b *testing.B) {
		l.read(b, b.N)
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

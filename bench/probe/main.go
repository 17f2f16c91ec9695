// Command probe measures what the eBPF programs cost: TCP ping-pong,
// connect/close and a pipe ping-pong with and without them in alternating
// rounds of one process, and the nanoseconds of each program's run. It needs
// root and loads only loopback.
//
// It owns its workloads (internal/load). Start reading at run.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/collectors"
	"github.com/telltale-dev/telltale/agent/runner"
	"github.com/telltale-dev/telltale/bench/internal/load"
	"github.com/telltale-dev/telltale/bench/internal/rig"
)

func main() {
	rounds := flag.Int("rounds", 15, "alternating rounds with and without the programs")
	length := flag.Duration("round", 500*time.Millisecond, "length of half a round")
	floor := flag.Float64("floor", 0.80, "fail below this ratio; 0: only print")
	results := flag.String("results", "", "`FILE` to append the result lines to")
	flag.Parse()
	if err := run(*rounds, *length, *floor, rig.NewTable(*results)); err != nil {
		fmt.Fprintln(os.Stderr, "bench/probe:", err)
		os.Exit(1)
	}
}

// comparison is one line of the result.
type comparison struct {
	name    string
	modules []string // empty: all that have programs
	target  float64
	work    func(time.Duration) (load.Rate, error)
}

func run(rounds int, length time.Duration, floor float64, table *rig.Table) error {
	if lacking := bpfload.Lacking(); len(lacking) > 0 {
		return fmt.Errorf("this user lacks %s", strings.Join(lacking, " and "))
	}
	fmt.Printf("probe: %s, %d CPUs, %d rounds of 2 × %v, medians, load before %s\n", kernel(), runtime.NumCPU(), rounds, length, rig.Load())
	var errs []error
	for _, c := range []comparison{
		{"tcp ping-pong, network module", []string{"network"}, 0.95, load.PingPong},
		{"tcp connect/close, network module", []string{"network"}, 0.93, load.ConnectClose},
		{"tcp ping-pong, all modules", nil, 0.90, load.PingPong},
		{"pipe ping-pong on one CPU, all modules", nil, 0.83, load.PipePingPong},
	} {
		m, err := c.measure(rounds, length)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Printf("  %-38s off %7.0f/s  on %7.0f/s  ratio %.3f, half of the rounds in %.3f to %.3f; by processor time %.3f\n",
			c.name, m.off.Wall, m.on.Wall, m.ratio.Wall, m.low, m.high, m.ratio.CPU)
		errs = append(errs, table.Add(c.name+", on/off", fmt.Sprintf("%.3f", m.ratio.Wall), fmt.Sprintf("≥ %.2f", c.target), m.ratio.Wall >= c.target))
		if m.ratio.Wall < floor {
			errs = append(errs, fmt.Errorf("%s: ratio %.3f is below the floor %.2f", c.name, m.ratio.Wall, floor))
		}
	}
	if err := events(length); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// comparedRates are the medians over the rounds, and the quartiles of the
// ratio: a wide span means a noisy machine.
type comparedRates struct {
	off, on, ratio load.Rate
	low, high      float64
}

// measure alternates between off and on; which comes first alternates too,
// so that a drift of the machine meets both.
func (c comparison) measure(rounds int, length time.Duration) (m comparedRates, err error) {
	var offs, ons, ratios []load.Rate
	for i := range rounds + 1 {
		var pair [2]load.Rate
		for half := range 2 {
			with := half ^ i&1
			if pair[with], err = c.half(with == 1, length); err != nil {
				return m, err
			}
		}
		if i == 0 {
			continue // warm-up
		}
		offs, ons = append(offs, pair[0]), append(ons, pair[1])
		ratios = append(ratios, load.Rate{Wall: pair[1].Wall / pair[0].Wall, CPU: pair[1].CPU / pair[0].CPU})
	}
	var walls []float64
	for _, r := range ratios {
		walls = append(walls, r.Wall)
	}
	slices.Sort(walls)
	return comparedRates{median(offs), median(ons), median(ratios), walls[len(walls)/4], walls[len(walls)*3/4]}, nil
}

func (c comparison) half(with bool, length time.Duration) (load.Rate, error) {
	if with {
		open, err := openModules(c.modules)
		if err != nil {
			return load.Rate{}, err
		}
		defer closeAll(open)
	}
	runtime.GC() // what loading left behind is not the workload's
	return c.work(length)
}

// openModules opens the named modules, or all.
func openModules(names []string) ([]runner.Collector, error) {
	var open []runner.Collector
	for _, m := range collectors.List(collectors.Config{}, slog.New(slog.DiscardHandler)) {
		if len(names) > 0 && !slices.Contains(names, m.Component) {
			continue
		}
		c, err := m.Open()
		if err != nil {
			closeAll(open)
			return nil, fmt.Errorf("open %s: %w", m.Component, err)
		}
		open = append(open, c)
	}
	return open, nil
}

func closeAll(open []runner.Collector) {
	for _, c := range open {
		if err := c.Close(); err != nil {
			fmt.Fprintf(os.Stderr, "close %s: %v\n", c.Component(), err)
		}
	}
}

// events prints each program's cost over both workloads. The kernel's own
// measuring is in the figures, some 20 ns a run.
func events(length time.Duration) error {
	stats, err := bpfload.EnableStats()
	if err != nil {
		return fmt.Errorf("the kernel does not measure programs: %w", err)
	}
	defer stats.Close()
	open, err := openModules(nil)
	if err != nil {
		return err
	}
	defer closeAll(open)
	for _, work := range []func(time.Duration) (load.Rate, error){load.PingPong, load.ConnectClose} {
		if _, err := work(length); err != nil {
			return err
		}
	}
	fmt.Println("  cost of a run, the kernel's measuring included:")
	for _, c := range open {
		costly, ok := c.(interface {
			Costs() ([]bpfload.Cost, error)
		})
		if !ok {
			continue
		}
		costs, err := costly.Costs()
		if err != nil {
			return err
		}
		slices.SortFunc(costs, func(a, b bpfload.Cost) int { return strings.Compare(a.Program, b.Program) })
		for _, p := range costs {
			if p.Runs == 0 {
				fmt.Printf("    %-10s %-22s did not run\n", c.Component(), p.Program)
				continue
			}
			fmt.Printf("    %-10s %-22s %6.0f ns × %d\n", c.Component(), p.Program, float64(p.Time.Nanoseconds())/float64(p.Runs), p.Runs)
		}
	}
	return nil
}

// median takes the median of each figure on its own.
func median(v []load.Rate) load.Rate {
	var walls, cpus []float64
	for _, r := range v {
		walls, cpus = append(walls, r.Wall), append(cpus, r.CPU)
	}
	return load.Rate{Wall: rig.Median(walls), CPU: rig.Median(cpus)}
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown kernel"
	}
	return "Linux " + unix.ByteSliceToString(u.Release[:])
}

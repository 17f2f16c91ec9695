// Command trace measures what the tasks' programs cost the work they look at,
// beside bpftrace and libbpf-tools that look at the same: rounds without
// anything, with our task and with the other tool in turn. For
// profile_on_cpu the rounds without are compared with each other too. Then
// it prints the nanoseconds of each program's run.
//
// It needs root and runs the tasks in its own process. Start reading at run;
// watcher.go starts and ends who looks.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/bench/internal/load"
	"github.com/telltale-dev/telltale/bench/internal/rig"
)

func main() {
	rounds := flag.Int("rounds", 4, "rounds of every comparison")
	length := flag.Duration("round", 500*time.Millisecond, "length of a third of a round; a profile has twice the rounds")
	floor := flag.Float64("floor", 0.2, "fail when ours is below this ratio: something broke; 0: only print")
	only := flag.String("only", "", "only the tasks whose name contains this `WORD`")
	results := flag.String("results", "", "`FILE` to append the result lines to")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *only, *rounds, *length, *floor, rig.NewTable(*results)); err != nil {
		fmt.Fprintln(os.Stderr, "bench/trace:", err)
		os.Exit(1)
	}
}

type object = map[string]any

// comparison is a task on its worst stimulus, beside another tool.
type comparison struct {
	task   string
	args   object
	what   string // the stimulus
	work   func(time.Duration) (load.Rate, error)
	theirs []string // command; empty: nobody to compare with, the task's programs are only timed
	ready  string   // what it says when it looks
}

// bpftrace tells once that it runs; it looks a moment later.
func bpftrace(program string) []string {
	return []string{"bpftrace", "-e", `BEGIN { printf("ready\n"); } ` + program}
}

func comparisons(disk *load.Disk, lossy *load.Lossy) []comparison {
	return []comparison{
		{task: "trace_network_drops", what: "datagrams to a full socket", work: load.Overflow,
			theirs: bpftrace(`tracepoint:skb:kfree_skb { @[args->reason, args->location, pid] = count(); }`), ready: "ready"},
		{task: "trace_tcp_retransmits", what: "a stream that loses each 100th segment", work: lossy.Stream,
			theirs: bpftrace(`tracepoint:tcp:tcp_retransmit_skb { @[ntop(args->saddr), ntop(args->daddr), args->sport, args->dport] = count(); }`), ready: "ready"},
		{task: "monitor_tcp_connections", what: "connect/close", work: load.ConnectClose, theirs: []string{"tcpstates"}, ready: "SKADDR"},
		{task: "trace_slow_io", args: object{"device": disk.Name}, what: "direct reads of a loop device", work: disk.Reads,
			theirs: []string{"biolatency", "-Q"}, ready: "Tracing block"},
		{task: "monitor_device_io", args: object{"device": disk.Name}, what: "the same reads", work: disk.Reads},
		{task: "monitor_process_io", args: object{"pid": os.Getpid()}, what: "the same reads", work: disk.Reads},
		{task: "monitor_interface_traffic", args: object{"interface": "lo"}, what: "tcp ping-pong", work: load.PingPong},
	}
}

func run(ctx context.Context, only string, rounds int, length time.Duration, floor float64, table *rig.Table) (err error) {
	if lacking := bpfload.Lacking(); len(lacking) > 0 {
		return fmt.Errorf("this user lacks %s", strings.Join(lacking, " and "))
	}
	fmt.Printf("trace: %d rounds of 3 × %v, medians, load before %s\n", rounds, length, rig.Load())
	disk, err := load.NewDisk("/dev/shm", 4<<20)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	lossy, err := load.NewLossy()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lossy.Close()) }()
	if strings.Contains("profile_on_cpu", only) {
		if err := profiled(ctx, 2*rounds, length, table); err != nil {
			return fmt.Errorf("profile_on_cpu: %w", err)
		}
	}
	var errs []error
	for _, c := range comparisons(disk, lossy) {
		if !strings.Contains(c.task, only) {
			continue
		}
		if c.theirs != nil {
			errs = append(errs, c.compare(ctx, rounds, length, floor, table))
		}
		if err := c.events(ctx, length); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.task, err))
		}
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
	}
	fmt.Printf("  load after %s\n", rig.Load())
	return errors.Join(errs...)
}

// compare alternates between nobody, our task and their tool. Who is first
// moves on each round, so that a drift of the machine meets all.
func (c comparison) compare(ctx context.Context, rounds int, length time.Duration, floor float64, table *rig.Table) error {
	watchers := []func(context.Context) (watcher, error){
		nobody,
		func(ctx context.Context) (watcher, error) { return startTask(ctx, c.task, c.args) },
		func(ctx context.Context) (watcher, error) { return startTool(ctx, c.ready, c.theirs) },
	}
	name := c.theirs[0]
	rates := make([][]float64, len(watchers))
	for i := range rounds + 1 {
		for k := range watchers {
			who := (i + k) % len(watchers)
			r, err := under(ctx, watchers[who], c.work, length)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", c.task, []string{"alone", "ours", name}[who], err)
			}
			if i > 0 { // the first is for warming up
				rates[who] = append(rates[who], r.Wall)
			}
		}
	}
	ours, theirs := ratios(rates[1], rates[0]), ratios(rates[2], rates[0])
	fmt.Printf("  %-24s %-38s alone %8.0f/s  ours %.3f (half of the rounds in %.3f to %.3f)  %s %.3f (%.3f to %.3f)\n",
		c.task, c.what, rig.Median(rates[0]), rig.Median(ours), ours[len(ours)/4], ours[len(ours)*3/4], name, rig.Median(theirs), theirs[len(theirs)/4], theirs[len(theirs)*3/4])
	err := table.Add(fmt.Sprintf("%s, with/without", c.task), fmt.Sprintf("%.3f, %s %.3f", rig.Median(ours), name, rig.Median(theirs)), "", true)
	if m := rig.Median(ours); m < floor {
		err = errors.Join(err, fmt.Errorf("%s: ratio %.3f is below the floor %.2f", c.task, m, floor))
	}
	return err
}

// under works while somebody looks.
func under(ctx context.Context, start func(context.Context) (watcher, error), work func(time.Duration) (load.Rate, error), length time.Duration) (load.Rate, error) {
	w, err := start(ctx)
	if err != nil {
		return load.Rate{}, err
	}
	runtime.GC() // what loading left behind is not the workload's
	r, err := work(length)
	return r, errors.Join(err, w.stop())
}

// ratios sorts what they are.
func ratios(of, to []float64) []float64 {
	out := make([]float64, len(of))
	for i := range of {
		out[i] = of[i] / to[i]
	}
	slices.Sort(out)
	return out
}

// profiled lets a program compute alone, alone again and under our profile,
// and once more under bpftrace's. Processor time counts: at 99 samples a
// second every slice of wall time holds one.
func profiled(ctx context.Context, rounds int, length time.Duration, table *rig.Table) error {
	args := object{"pid": os.Getpid(), "hz": 99}
	watchers := []func(context.Context) (watcher, error){
		nobody, nobody,
		func(ctx context.Context) (watcher, error) { return startTask(ctx, "profile_on_cpu", args) },
		func(ctx context.Context) (watcher, error) {
			return startTool(ctx, "ready", bpftrace(fmt.Sprintf(`profile:hz:99 /pid == %d/ { @[ustack, kstack] = count(); }`, os.Getpid())))
		},
	}
	rates := make([][]float64, len(watchers))
	for i := range rounds + 1 {
		for k := range watchers {
			who := (i + k) % len(watchers)
			r, err := under(ctx, watchers[who], load.Spin, length)
			if err != nil {
				return err
			}
			if i > 0 {
				rates[who] = append(rates[who], r.CPU)
			}
		}
	}
	noise, ours, theirs := ratios(rates[1], rates[0]), ratios(rates[2], rates[0]), ratios(rates[3], rates[0])
	m, low, high := rig.Median(ours), noise[len(noise)/4], noise[len(noise)*3/4]
	fmt.Printf("  %-24s %-38s ours %.4f (%.4f to %.4f)  bpftrace %.4f (%.4f to %.4f)  alone against alone %.4f to %.4f\n", "profile_on_cpu at 99 Hz", "a computation, by processor time",
		m, ours[len(ours)/4], ours[len(ours)*3/4], rig.Median(theirs), theirs[len(theirs)/4], theirs[len(theirs)*3/4], low, high)
	limit := min(low, 0.995) // a machine without noise would have none to be within
	c := comparison{task: "profile_on_cpu", args: args, what: "a computation", work: load.Spin}
	return errors.Join(
		table.Add("profile_on_cpu at 99 Hz, with/without", fmt.Sprintf("%.4f, bpftrace %.4f", m, rig.Median(theirs)), fmt.Sprintf("≥ %.3f noise", limit), m >= limit),
		c.events(ctx, length))
}

// events prints what a run of each program of the task takes, the kernel's
// own measuring, some 20 ns, included.
func (c comparison) events(ctx context.Context, length time.Duration) error {
	w, err := startTask(ctx, c.task, c.args)
	if err != nil {
		return err
	}
	p, err := rig.OpenPrograms(os.Getpid())
	if err != nil {
		return errors.Join(err, w.stop())
	}
	_, err = c.work(length)
	costs, failed := p.Costs()
	if err := errors.Join(err, failed, p.Close(), w.stop()); err != nil {
		return err
	}
	slices.SortFunc(costs, func(a, b bpfload.Cost) int { return strings.Compare(a.Program, b.Program) })
	if len(costs) == 0 {
		fmt.Printf("    %-26s no program ran on %s\n", c.task, c.what)
	}
	for _, k := range costs {
		fmt.Printf("    %-26s %-16s %6.0f ns × %d\n", c.task, k.Program, float64(k.Time.Nanoseconds())/float64(k.Runs), k.Runs)
	}
	return nil
}

// Command ingest measures the way of windows from the agent's uplink to the
// commit and back: mutual TLS, checks, row-level security, partitions, two
// tenants, a synchronous commit before each acknowledgement. It fails when a
// single window is lost, stored twice or kept out.
//
// It starts a stack of its own on loopback. Its limit is a raw COPY of the
// same rows on the same cluster (database.go). Start reading at run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/telltale-dev/telltale/bench/internal/rig"
)

type options struct {
	bin, results   string
	profile        string
	agents, series int
	length         time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "`DIR` of the built programs")
	flag.StringVar(&o.results, "results", "", "`FILE` to append the result lines to")
	flag.IntVar(&o.agents, "agents", 50, "agents that push, over both tenants")
	flag.IntVar(&o.series, "series", 200, "series of each window, at most 250")
	flag.DurationVar(&o.length, "for", 20*time.Second, "how long they push")
	flag.StringVar(&o.profile, "profile", "", "`FILE` for a processor profile of the server under load")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench/ingest:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	s, err := rig.Start(ctx, o.bin, "--no-agent", "--agents", "2")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	numbers, err := rig.NewNumbers(o.series)
	if err != nil {
		return err
	}
	b := &bench{options: o, stack: s, numbers: numbers, table: rig.NewTable(o.results)}
	fmt.Printf("ingest: %d agents, %s, %v, load before %s\n", o.agents, numbers.Describe(), o.length, rig.Load())
	if err := b.enrol(ctx); err != nil {
		return err
	}
	defer b.fleet.Close()
	if err := b.measure(ctx); err != nil {
		return err
	}
	if err := b.verify(ctx); err != nil {
		return err
	}
	return b.report(ctx)
}

// bench is one measurement under way.
type bench struct {
	options
	stack   *rig.Stack
	numbers *rig.Numbers
	table   *rig.Table
	fleet   *rig.Fleet
	busy    []*rig.Agent // push all the time
	probes  []*rig.Agent // push one window at a time, for the latency

	enrolRate  float64
	idle, full []time.Duration // push to acknowledgement, without and under load
	elapsed    time.Duration
	windows    int
	samples    uint64
	used       rig.Usage
	own        time.Duration // processor time of this load generator
	disk, wal  int64
	memory     rig.Memory // of the server under load
}

// enrol makes the nodes, half in each tenant, and opens their streams.
func (b *bench) enrol(ctx context.Context) error {
	began := time.Now()
	for i, slug := range []string{"acme", "globex"} {
		agents, err := b.stack.Enrol(ctx, slug, "load-", (b.agents+i)/2+1)
		if err != nil {
			return err
		}
		b.probes = append(b.probes, agents[0])
		b.busy = append(b.busy, agents[1:]...)
	}
	all := append(append([]*rig.Agent{}, b.probes...), b.busy...)
	b.enrolRate = float64(len(all)) / time.Since(began).Seconds()
	var err error
	b.fleet, err = rig.Connect(ctx, all)
	return err
}

// A window covers this much made-up time, so that the fastest agent's windows
// of one run stay within the age that the server stores.
const (
	windowLength = 500 * time.Millisecond
	history      = 5 * time.Hour
	backlog      = 12_800 // windows that all agents together keep queued: no stream runs dry
	probeWindows = 20
)

// clock gives an agent's windows advancing times.
type clock struct{ at, end time.Time }

func newClock() *clock { now := time.Now(); return &clock{now.Add(-history), now} }

func (c *clock) next() (time.Time, error) {
	c.at = c.at.Add(windowLength)
	if c.at.After(c.end) {
		return c.at, errors.New("an agent was faster than the made-up time allows: measure for a shorter time")
	}
	return c.at, nil
}

// measure runs the idle probes, a warm-up and then the timed load.
func (b *bench) measure(ctx context.Context) error {
	clocks := map[*rig.Agent]*clock{}
	for _, a := range b.fleet.Agents {
		clocks[a] = newClock()
	}
	for range probeWindows {
		d, err := b.once(ctx, b.probes[0], clocks[b.probes[0]])
		if err != nil {
			return err
		}
		b.idle = append(b.idle, d)
	}
	if _, err := b.load(ctx, clocks, max(b.length/10, time.Second)); err != nil { // layouts, plans, partitions
		return err
	}
	db, err := b.stack.Database(ctx)
	if err != nil {
		return err
	}
	defer db.Close(context.WithoutCancel(ctx))
	before, err := b.read(ctx, db)
	if err != nil {
		return err
	}
	profiled := b.profiled(ctx)
	b.full, err = b.load(ctx, clocks, b.length)
	if err = errors.Join(err, <-profiled); err != nil {
		return err
	}
	after, err := b.read(ctx, db)
	if err != nil {
		return err
	}
	b.elapsed, b.windows, b.samples = after.at.Sub(before.at), after.windows-before.windows, after.samples-before.samples
	b.used, b.own, b.disk, b.wal = after.used.Sub(before.used), after.own-before.own, after.disk-before.disk, after.wal-before.wal
	b.memory, err = rig.ReadMemory(b.stack.PID)
	return err
}

// profiled takes the profile that is asked for while the load lasts, and tells
// when it is there.
func (b *bench) profiled(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	if b.profile == "" {
		done <- nil
		return done
	}
	go func() { done <- b.stack.Profile(ctx, max(1, int(b.length/time.Second)-1), b.profile) }()
	return done
}

// load lets every agent push for a while and waits until all of it is
// acknowledged, which the timed span includes.
func (b *bench) load(ctx context.Context, clocks map[*rig.Agent]*clock, length time.Duration) ([]time.Duration, error) {
	timed, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var work sync.WaitGroup
	errs := make([]error, len(b.busy)+len(b.probes))
	for i, a := range b.busy {
		work.Go(func() { errs[i] = b.keepBusy(timed, a, clocks[a]) })
	}
	latencies := make([][]time.Duration, len(b.probes))
	for i, a := range b.probes {
		work.Go(func() {
			for timed.Err() == nil {
				d, err := b.once(ctx, a, clocks[a])
				if err != nil {
					errs[len(b.busy)+i] = err
					return
				}
				latencies[i] = append(latencies[i], d)
			}
		})
	}
	work.Wait()
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return nil, err
	}
	return append(latencies[0], latencies[1]...), b.fleet.Settled(ctx, time.Minute)
}

// keepBusy fills the agent's queue up whenever the server has emptied it.
func (b *bench) keepBusy(ctx context.Context, a *rig.Agent, c *clock) error {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for ctx.Err() == nil {
		for n := a.Stats().QueueItems; n < max(16, backlog/len(b.busy)); n++ {
			at, err := c.next()
			if err != nil {
				return err
			}
			a.Push(b.numbers, at, windowLength)
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// once pushes one window on a stream with nothing else on it and waits for
// its acknowledgement.
func (b *bench) once(ctx context.Context, a *rig.Agent, c *clock) (time.Duration, error) {
	at, err := c.next()
	if err != nil {
		return 0, err
	}
	want := a.Stats().Acked + 1
	poll := time.NewTicker(200 * time.Microsecond)
	defer poll.Stop()
	began := time.Now()
	a.Push(b.numbers, at, windowLength)
	for a.Stats().Acked < want {
		select {
		case <-poll.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		if time.Since(began) > time.Minute {
			return 0, fmt.Errorf("%s: no acknowledgement within a minute", a.Name)
		}
	}
	return time.Since(began), nil
}

// report prints the lines of the table.
func (b *bench) report(ctx context.Context) error {
	limit, err := b.copyLimit(ctx)
	if err != nil {
		return fmt.Errorf("raw COPY: %w", err)
	}
	seconds, samples := b.elapsed.Seconds(), float64(b.samples)
	rate := float64(b.windows) / seconds
	perSample := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / samples }
	server := b.used.Server + b.used.Database
	perWindow := float64(server.Microseconds()) / float64(b.windows)
	fmt.Printf("  processor time: telltaled %v, postgres %v, this load generator %v, in %.1f s; load after %s\n",
		b.used.Server, b.used.Database, b.own.Round(10*time.Millisecond), seconds, rig.Load())
	fmt.Printf("  telltaled with %d streams: %d MiB resident\n", len(b.fleet.Agents), b.memory.RSS>>20)
	fmt.Printf("  raw COPY of %d of the rows over two connections: %.0f windows/s, %.1f µs of postgres a window; end to end %.1f µs of telltaled and postgres a window\n",
		limit.rows, limit.rate, limit.cpuMicros, perWindow)
	ratio := rate / limit.rate
	return errors.Join(
		b.table.Add("ingest, end to end", fmt.Sprintf("%.0f windows/s", rate), "", true),
		b.table.Add("ingest, end to end", fmt.Sprintf("%.2f M samples/s", samples/seconds/1e6), "", true),
		b.table.Add("ingest against raw COPY of the same rows", fmt.Sprintf("%.1f %%", 100*ratio), "≥ 25 %", ratio >= 0.25),
		b.table.Add("ingest against raw COPY, by processor time", fmt.Sprintf("%.1f %%", 100*limit.cpuMicros/perWindow), "", true),
		b.table.Add("server CPU a sample (telltaled + postgres)", fmt.Sprintf("%.3f µs", perSample(server)), "", true),
		b.table.Add("  of it telltaled", fmt.Sprintf("%.3f µs", perSample(b.used.Server)), "", true),
		b.table.Add("load generator CPU a sample", fmt.Sprintf("%.3f µs", perSample(b.own)), "", true),
		b.table.Add("on disk before compaction", fmt.Sprintf("%.2f bytes/sample", float64(b.disk)/samples), "", true),
		b.table.Add("WAL", fmt.Sprintf("%.2f bytes/sample", float64(b.wal)/samples), "", true),
		b.table.Add("commit-ack latency under full load, p50", rig.Millis(rig.Quantile(b.full, 0.50)), "", true),
		b.table.Add("commit-ack latency under full load, p95", rig.Millis(rig.Quantile(b.full, 0.95)), "", true),
		b.table.Add("commit-ack latency of a quiet server, p50", rig.Millis(rig.Quantile(b.idle, 0.50)), "", true),
		b.table.Add("enrolments", fmt.Sprintf("%.0f /s", b.enrolRate), "≥ 100 /s", b.enrolRate >= 100),
	)
}

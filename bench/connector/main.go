// Command connector measures the MCP endpoint under load: many connections of
// several tenants and tokens that list tools and read, in both eras of the
// protocol, as fast as they are answered.
//
// It starts a stack of its own with simulated nodes. First it asks each
// question alone and takes the processor time of telltaled for it; then all
// connections ask all questions at once. Load tool, server and database share
// the machine's CPUs. Start reading at run; questions.go holds what is asked.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/telltale-dev/telltale/bench/internal/rig"
)

const (
	settle     = 15 * time.Second // for the nodes' first windows
	warmUp     = 30               // calls of a question that are not counted
	slice      = 20               // calls of which processor time is taken at once
	perMinute  = 10_000_000       // quota of the tenants asked
	cpuLimit   = time.Millisecond
	rateLimit  = 2000.0
	delayLimit = 50 * time.Millisecond
)

func main() {
	bin := flag.String("bin", "bin", "`DIR` of the built programs")
	results := flag.String("results", "", "`FILE` to append the result lines to")
	conns := flag.Int("conns", 48, "connections that ask at once, each kept alive")
	nodes := flag.Int("n", 20, "simulated nodes")
	length := flag.Duration("for", 10*time.Second, "how long all connections ask")
	slices := flag.Int("slices", 25, "times 20 calls of which each question's processor time is taken")
	profile := flag.String("profile", "", "`FILE` for a processor profile of the server under load")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin, *conns, *nodes, *slices, *length, *profile, rig.NewTable(*results)); err != nil {
		fmt.Fprintln(os.Stderr, "bench/connector:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bin string, conns, nodes, slices int, length time.Duration, profile string, table *rig.Table) (err error) {
	fmt.Printf("connector: %d simulated nodes, %d connections, load before %s\n", nodes, conns, rig.Load())
	s, err := rig.Start(ctx, bin, "--no-agent", "--agents", fmt.Sprint(nodes))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	for _, t := range s.Tenants {
		if err := s.Quotas(ctx, t.Slug, perMinute); err != nil {
			return err
		}
	}
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return ctx.Err()
	}
	askers, err := meet(ctx, s)
	if err != nil {
		return err
	}
	if err := alone(ctx, s, askers[0], slices, table); err != nil {
		return err
	}
	return together(ctx, s, askers, conns, length, profile, table)
}

// alone asks one question after the other on one connection.
func alone(ctx context.Context, s *rig.Stack, a *asker, slices int, table *rig.Table) error {
	c := a.connect()
	defer c.close()
	for _, q := range questions {
		for range warmUp {
			if _, err := c.ask(ctx, q); err != nil {
				return err
			}
		}
		var cpu, took []time.Duration
		size := 0
		whole, err := s.Usage()
		if err != nil {
			return err
		}
		for range slices {
			before, err := rig.RunTime(s.PID)
			if err != nil {
				return err
			}
			for range slice {
				start := time.Now()
				if size, err = c.ask(ctx, q); err != nil {
					return err
				}
				took = append(took, time.Since(start))
			}
			after, err := rig.RunTime(s.PID)
			if err != nil {
				return err
			}
			cpu = append(cpu, (after-before)/slice)
		}
		end, err := s.Usage()
		if err != nil {
			return err
		}
		p95 := rig.Quantile(cpu, 0.95)
		fmt.Printf("  %-36s CPU of telltaled a call: least %s, median %s, p95 %s (of slices of %d calls); of postgres %s; took p50 %s, p95 %s; %.1f KiB\n", q.name,
			rig.Millis(rig.Quantile(cpu, 0)), rig.Millis(rig.Quantile(cpu, 0.5)), rig.Millis(p95), slice,
			rig.Millis(end.Sub(whole).Database/time.Duration(slices*slice)), rig.Millis(rig.Quantile(took, 0.5)), rig.Millis(rig.Quantile(took, 0.95)), float64(size)/1024)
		if err := table.Add(q.name+", server CPU p95", rig.Millis(p95), "≤ 1 ms", p95 <= cpuLimit); err != nil {
			return err
		}
	}
	return nil
}

// together lets all connections ask all questions.
func together(ctx context.Context, s *rig.Stack, askers []*asker, conns int, length time.Duration, profile string, table *rig.Table) error {
	all, ctx := errgroup.WithContext(ctx)
	until := time.Now().Add(time.Second + length)
	counted := time.Now().Add(time.Second) // before: connections, plans
	took := make([][]time.Duration, conns)
	before, err := s.Usage()
	if err != nil {
		return err
	}
	own := rig.OwnCPU()
	for i := range conns {
		all.Go(func() error {
			c := askers[i%len(askers)].connect()
			defer c.close()
			for n := i; time.Now().Before(until); n++ {
				start := time.Now()
				if _, err := c.ask(ctx, questions[n%len(questions)]); err != nil {
					return err
				}
				if start.After(counted) {
					took[i] = append(took[i], time.Since(start))
				}
			}
			return nil
		})
	}
	if profile != "" {
		all.Go(func() error { return s.Profile(ctx, max(1, int(length/time.Second)-1), profile) })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	after, err := s.Usage()
	if err != nil {
		return err
	}
	used, load := after.Sub(before), rig.OwnCPU()-own
	var every []time.Duration
	for _, t := range took {
		every = append(every, t...)
	}
	rate := float64(len(every)) / length.Seconds()
	each := func(d time.Duration) string {
		return rig.Millis(time.Duration(float64(d) / rate / (length + time.Second).Seconds()))
	}
	p99 := rig.Quantile(every, 0.99)
	fmt.Printf("  %d connections of %d tokens: %d calls in %v, p50 %s, p95 %s, p99 %s; CPU a call: telltaled %s, postgres %s, load tool %s; load after %s\n", conns, len(askers), len(every), length,
		rig.Millis(rig.Quantile(every, 0.5)), rig.Millis(rig.Quantile(every, 0.95)), rig.Millis(p99), each(used.Server), each(used.Database), each(load), rig.Load())
	return errors.Join(
		table.Add("MCP calls a second, mixed", fmt.Sprintf("%.0f (%.2f of target)", rate, rate/rateLimit), "≥ 2000", rate >= rateLimit),
		table.Add("  its p99", rig.Millis(p99), "≤ 50 ms", p99 <= delayLimit),
		table.Add("  its server CPU a call", each(used.Server), "", true))
}

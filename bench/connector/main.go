// Command connector measures the MCP endpoint under load: many connections of
// several tenants and tokens that list tools and read, in both eras of the
// protocol, as fast as they are answered.
//
// It starts a stack of its own with simulated nodes, which report all the
// while. First it asks each question alone and takes the processor time of
// telltaled for it; then so many connections ask all questions at once, and
// then fewer. Load tool, server, database and simulated nodes share the
// machine's CPUs; what each used, and what the rest of the machine used, is
// printed. The requests are made beforehand and sent whole over connections of
// the tool's own; of each answer status, framing, every byte, the wanted member
// and the absence of an error are looked at. Start reading at run; questions.go
// holds what is asked, rig.Wire how.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/telltale-dev/telltale/bench/internal/rig"
)

const (
	settle     = 15 * time.Second // for the nodes' first windows
	feed       = 8 * time.Second  // of it, while the cost of their reports is taken
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
	conns := counts{48, 16}
	flag.Var(&conns, "conns", "`NUMBERS` of connections that ask at once, each kept alive; measured one after the other")
	nodes := flag.Int("n", 20, "simulated nodes")
	length := flag.Duration("for", 10*time.Second, "how long all connections ask, each number of them")
	slices := flag.Int("slices", 25, "times 20 calls of which each question's processor time is taken")
	profile := flag.String("profile", "", "`FILE` for a processor profile of the server under the first load")
	flag.Parse()
	runtime.GOMAXPROCS(1) // enough for it; with more, idle threads of it look for work on the server's CPUs
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin, conns, *nodes, *slices, *length, *profile, rig.NewTable(*results)); err != nil {
		fmt.Fprintln(os.Stderr, "bench/connector:", err)
		os.Exit(1)
	}
}

// counts is a list of positive numbers.
type counts []int

// String implements flag.Value.
func (c *counts) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(*c), " ", ","), "[]")
}

// Set implements flag.Value.
func (c *counts) Set(list string) error {
	*c = nil
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 1 {
			return errors.New("want numbers such as 48,16")
		}
		*c = append(*c, n)
	}
	return nil
}

func run(ctx context.Context, bin string, conns counts, nodes, slices int, length time.Duration, profile string, table *rig.Table) (err error) {
	fmt.Printf("connector: %d simulated nodes, %s connections, load before %s\n", nodes, conns.String(), rig.Load())
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
	if err := background(ctx, s); err != nil {
		return err
	}
	askers, err := meet(ctx, s)
	if err != nil {
		return err
	}
	if err := alone(ctx, s, askers[0], slices, table); err != nil {
		return err
	}
	for _, n := range conns {
		if err := together(ctx, s, askers, n, length, profile, table); err != nil {
			return err
		}
		profile = ""
	}
	return nil
}

// background waits for the nodes' first windows, and says what their reports alone
// cost. It is part of every figure under load.
func background(ctx context.Context, s *rig.Stack) error {
	for _, wait := range []time.Duration{settle - feed, feed} {
		before, err := s.Usage()
		if err != nil {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
		after, err := s.Usage()
		if err != nil {
			return err
		}
		if wait == feed {
			used := after.Sub(before)
			part := func(d time.Duration) string { return fmt.Sprintf("%.1f %%", 100*d.Seconds()/feed.Seconds()) }
			fmt.Printf("  the nodes' reports alone, of a core: telltaled %s, postgres %s, simulated agents %s, everything else %s\n",
				part(used.Server), part(used.Database), part(used.Agents), part(used.Others()))
		}
	}
	return nil
}

// alone asks one question after the other on one connection.
func alone(ctx context.Context, s *rig.Stack, a *asker, slices int, table *rig.Table) error {
	c, err := a.connect(ctx, 0)
	if err != nil {
		return err
	}
	defer c.Close()
	var reads []time.Duration // of all kinds of calls
	for i, q := range questions {
		for range warmUp {
			if _, err := c.ask(i); err != nil {
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
				if size, err = c.ask(i); err != nil {
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
		if q.tool != "" {
			reads = append(reads, cpu...)
		}
		p95 := rig.Quantile(cpu, 0.95)
		fmt.Printf("  %-36s CPU of telltaled a call: least %s, median %s, p95 %s (of slices of %d calls); of postgres %s; took p50 %s, p95 %s; %.1f KiB\n", q.name,
			rig.Millis(rig.Quantile(cpu, 0)), rig.Millis(rig.Quantile(cpu, 0.5)), rig.Millis(p95), slice,
			rig.Millis(end.Sub(whole).Database/time.Duration(slices*slice)), rig.Millis(rig.Quantile(took, 0.5)), rig.Millis(rig.Quantile(took, 0.95)), float64(size)/1024)
		if err := table.Add(q.name+", server CPU p95", rig.Millis(p95), "≤ 1 ms", p95 <= cpuLimit); err != nil {
			return err
		}
	}
	p95 := rig.Quantile(reads, 0.95)
	return table.Add("tools/call of all kinds, server CPU p95", rig.Millis(p95), "≤ 1 ms", p95 <= cpuLimit)
}

// Command calls measures reading: MCP tool calls and REST requests against a
// tenant with many nodes that report all the time, one call after the other.
//
// It starts a stack of its own, enrols the nodes over mutual TLS, sends five
// minutes of history through the real way in and then keeps the nodes
// reporting every ten seconds. Start reading at run; questions.go holds what
// is asked.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/telltale-dev/telltale/bench/internal/rig"
)

const (
	interval = 10 * time.Second // between two windows of a node and component
	history  = 5 * time.Minute  // what a question without times covers
	quiet    = 5 * time.Second  // how long the feed alone is measured
	least    = 20               // calls of one kind, also when they are slow
	most     = 500
	// The tenant's quota is not what is measured.
	perMinute = 10_000_000
	tenant    = "acme"
)

func main() {
	bin := flag.String("bin", "bin", "`DIR` of the built programs")
	results := flag.String("results", "", "`FILE` to append the result lines to")
	nodes := flag.Int("n", 1000, "nodes of the tenant")
	length := flag.Duration("for", 4*time.Second, "how long each question is asked")
	only := flag.String("only", "", "ask only the questions whose name contains this `WORD`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin, *nodes, *length, *only, rig.NewTable(*results)); err != nil {
		fmt.Fprintln(os.Stderr, "bench/calls:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bin string, nodes int, length time.Duration, only string, table *rig.Table) (err error) {
	numbers, err := rig.NewNumbers(0)
	if err != nil {
		return err
	}
	fmt.Printf("calls: %d nodes in one tenant, %d components each, %s, load before %s\n", nodes, len(numbers.Layouts), numbers.Describe(), rig.Load())
	s, err := rig.Start(ctx, bin, "--no-agent", "--agents", "2")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	if err := s.Quotas(ctx, tenant, perMinute); err != nil {
		return err
	}
	agents, err := s.Enrol(ctx, tenant, "fleet-", nodes)
	if err != nil {
		return err
	}
	fleet, err := rig.Connect(ctx, agents)
	if err != nil {
		return err
	}
	defer fleet.Close()
	if err := backfill(ctx, fleet, numbers); err != nil {
		return err
	}
	feeding, stopFeed := context.WithCancel(ctx)
	var feeder sync.WaitGroup
	feeder.Go(func() { feed(feeding, fleet, numbers) })
	defer feeder.Wait()
	defer stopFeed()

	c := &caller{tenant: s.Tenant(tenant), nodes: nodes, node: agents[nodes/2].Name}
	base, err := baseline(ctx, s)
	if err != nil {
		return err
	}
	if err := ask(ctx, s, c, young, base, min(length, 2*time.Second), table); err != nil {
		return fmt.Errorf("%s: %w", young.name, err)
	}
	if err := analyse(ctx, s); err != nil {
		return err
	}
	for _, q := range questions {
		if !strings.Contains(q.name, only) {
			continue
		}
		if err := ask(ctx, s, c, q, base, length, table); err != nil {
			return fmt.Errorf("%s: %w", q.name, err)
		}
	}
	memory, err := rig.ReadMemory(s.PID)
	if err != nil {
		return err
	}
	fmt.Printf("  telltaled with %d streams: %d MiB resident; load after %s\n", nodes, memory.RSS>>20, rig.Load())
	stopFeed()
	feeder.Wait()
	if err := fleet.Settled(ctx, time.Minute); err != nil {
		return err
	}
	for _, a := range agents {
		err = errors.Join(err, a.Clean())
	}
	return errors.Join(err, table.Add(fmt.Sprintf("server memory with %d live streams", nodes), fmt.Sprintf("%d MiB", memory.RSS>>20), "", true))
}

// backfill sends every node's history, a node's components in turn.
func backfill(ctx context.Context, fleet *rig.Fleet, m *rig.Numbers) error {
	began := time.Now()
	start := began.Truncate(interval).Add(-history)
	for at := start; !at.After(began); at = at.Add(interval) {
		for _, a := range fleet.Agents {
			for range m.Layouts {
				a.Push(m, at, interval)
			}
		}
	}
	if err := fleet.Settled(ctx, 2*time.Minute); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	fmt.Printf("  %v of history of every node arrived in %.1f s\n", history, time.Since(began).Seconds())
	return nil
}

// feed makes every node report each interval, evenly spread, until ctx ends.
func feed(ctx context.Context, fleet *rig.Fleet, m *rig.Numbers) {
	pace := time.NewTicker(interval / 100)
	defer pace.Stop()
	for next := 0; ; {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return
		}
		for range (len(fleet.Agents) + 99) / 100 {
			a := fleet.Agents[next%len(fleet.Agents)]
			for range m.Layouts {
				a.Push(m, time.Now(), interval)
			}
			next++
		}
	}
}

// analyse gathers the planner's statistics, as autovacuum does some time
// after a fleet has grown.
func analyse(ctx context.Context, s *rig.Stack) error {
	db, err := s.Database(ctx)
	if err != nil {
		return err
	}
	defer db.Close(context.WithoutCancel(ctx))
	_, err = db.Exec(ctx, "analyze")
	return err
}

// baseline is what server and database use each second for the feed alone.
func baseline(ctx context.Context, s *rig.Stack) (rig.Usage, error) {
	before, err := s.Usage()
	if err != nil {
		return before, err
	}
	select {
	case <-time.After(quiet):
	case <-ctx.Done():
		return before, ctx.Err()
	}
	after, err := s.Usage()
	used := after.Sub(before)
	seconds := quiet / time.Second
	used = rig.Usage{Server: used.Server / seconds, Database: used.Database / seconds}
	fmt.Printf("  the feed alone: telltaled %.1f %%, postgres %.1f %% of a core\n", 100*used.Server.Seconds(), 100*used.Database.Seconds())
	return used, err
}

// ask asks one question for a while and adds its lines to the table.
func ask(ctx context.Context, s *rig.Stack, c *caller, q question, base rig.Usage, length time.Duration, table *rig.Table) error {
	for range 5 { // plans, caches
		if _, err := c.once(ctx, q); err != nil {
			return err
		}
	}
	before, err := s.Usage()
	if err != nil {
		return err
	}
	began, size := time.Now(), 0
	var took []time.Duration
	for len(took) < most && (time.Since(began) < length || len(took) < least) {
		start := time.Now()
		n, err := c.once(ctx, q)
		if err != nil {
			return err
		}
		took, size = append(took, time.Since(start)), size+n
	}
	span := time.Since(began)
	after, err := s.Usage()
	if err != nil {
		return err
	}
	used, n := after.Sub(before), time.Duration(len(took))
	feed := func(perSecond time.Duration) time.Duration { return time.Duration(span.Seconds() * float64(perSecond)) }
	server, database := max(0, used.Server-feed(base.Server))/n, max(0, used.Database-feed(base.Database))/n
	p95 := rig.Quantile(took, 0.95)
	fmt.Printf("  %-44s n=%-4d p50 %9s  p95 %9s  p99 %9s  CPU a call: telltaled %s, postgres %s  %6.1f KiB\n", q.name, len(took),
		rig.Millis(rig.Quantile(took, 0.50)), rig.Millis(p95), rig.Millis(rig.Quantile(took, 0.99)), rig.Millis(server), rig.Millis(database), float64(size)/float64(n)/1024)
	limit := ""
	if q.limit > 0 {
		limit = fmt.Sprintf("≤ %d ms", q.limit.Milliseconds())
	}
	err = table.Add(q.name+", p95", rig.Millis(p95), limit, p95 <= q.limit)
	if q.cpuLimit > 0 {
		err = errors.Join(err,
			table.Add("  its server CPU (telltaled)", rig.Millis(server), fmt.Sprintf("≤ %d ms", q.cpuLimit.Milliseconds()), server <= q.cpuLimit),
			table.Add("  its database CPU (postgres)", rig.Millis(database), "", true))
	}
	return err
}

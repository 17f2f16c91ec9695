package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/telltale-dev/telltale/bench/internal/rig"
)

const (
	waitSeconds = 8
	ramp        = 4 * time.Second // over which the calls begin
	rest        = 5 * time.Second // between connecting and measuring
	maxPerCall  = 64 << 10
	sampleEvery = 500 * time.Millisecond
)

// group is one tenant with its simulated nodes.
type group struct {
	tenant rig.Tenant
	sim    *rig.Child
}

// waiting lets every node of every tenant do one task at once, each call on a
// connection of its own that is kept alive, and watches the server's memory:
// what it needs is live after a collection, see rig.Live; its resident set has
// the garbage of the moment, too, and is printed beside it.
func waiting(ctx context.Context, c *rig.Cluster, tenants, nodes int, table *rig.Table) error {
	server := c.Servers[0]
	groups, err := enrol(ctx, c, tenants, nodes)
	if err != nil {
		return err
	}
	n := tenants * nodes
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}
	defer client.CloseIdleConnections()
	if err := pause(ctx, rest); err != nil {
		return err
	}
	bare, err := look(ctx, server)
	if err != nil {
		return err
	}
	if err := open(ctx, client, server, n); err != nil {
		return err
	}
	if err := pause(ctx, rest); err != nil {
		return err
	}
	before, err := look(ctx, server)
	if err != nil {
		return err
	}
	m := &waitingCalls{client: client, groups: groups, nodes: nodes}
	during, failures := m.run(ctx, server)
	if len(during) == 0 {
		return errors.Join(fmt.Errorf("never were all %d calls waiting", n), failures)
	}
	top := during[0]
	for _, d := range during {
		top.Heap, top.Stacks, top.rss = max(top.Heap, d.Heap), max(top.Stacks, d.Stacks), max(top.rss, d.rss)
	}
	each := func(to, from uint64) float64 { return (float64(to) - float64(from)) / float64(n) / 1024 }
	per, whole := each(top.Sum(), before.Sum()), each(top.Sum(), bare.Sum())
	answered := int(m.answered.Load())
	fmt.Printf("  server of %d nodes in %d tenants, live heap after a collection + stacks (resident set):\n    %s at rest, %s with %d idle connections, %s (highest of %d samples) with a call of %d s waiting on each\n",
		n, tenants, bare, before, n, top, len(during), waitSeconds)
	fmt.Printf("    a call: %.1f KiB of heap + %.1f of stacks; its idle connection: %.1f + %.1f; resident, garbage included: %.1f + %.1f\n",
		each(top.Heap, before.Heap), each(top.Stacks, before.Stacks), each(before.Heap, bare.Heap), each(before.Stacks, bare.Stacks), each(top.rss, before.rss), each(before.rss, bare.rss))
	fmt.Printf("  beyond the longest duration of a task: p50 %s, p95 %s, max %s; load after %s\n",
		rig.Millis(rig.Quantile(m.took, 0.5)), rig.Millis(rig.Quantile(m.took, 0.95)), rig.Millis(rig.Quantile(m.took, 1)), rig.Load())
	err = errors.Join(
		table.Add(fmt.Sprintf("live memory of each of %d waiting REST calls", n), fmt.Sprintf("%.1f KiB", per), "≤ 64 KiB", per*1024 <= maxPerCall),
		table.Add("  with its kept connection", fmt.Sprintf("%.1f KiB", whole), "≤ 64 KiB", whole*1024 <= maxPerCall),
		table.Add("  resident, garbage and connection included", fmt.Sprintf("%.1f KiB", each(top.rss, bare.rss)), "", true),
		table.Add("  answered", fmt.Sprintf("%d of %d", answered, n), fmt.Sprintf("≥ %d", n), answered == n),
	)
	if answered != n {
		err = errors.Join(err, failures)
	}
	return err
}

// memory is a server's at one moment.
type memory struct {
	rig.Live
	rss uint64
}

func look(ctx context.Context, server *rig.Replica) (m memory, err error) {
	resident, err := rig.ReadMemory(server.PID) // before the collection
	if err != nil {
		return m, err
	}
	m.rss = resident.RSS
	m.Live, err = rig.ReadLive(ctx, server.Mgmt)
	return m, err
}

func (m memory) String() string {
	return fmt.Sprintf("%.1f + %.1f MiB (%.1f)", mib(m.Heap), mib(m.Stacks), mib(m.rss))
}

func mib(n uint64) float64 { return float64(n) / (1 << 20) }

func enrol(ctx context.Context, c *rig.Cluster, tenants, nodes int) ([]group, error) {
	began := time.Now()
	groups := make([]group, tenants)
	for i := range groups {
		t, err := c.AddTenant(ctx, fmt.Sprintf("many-%d", i))
		if err != nil {
			return nil, err
		}
		sim, err := c.Agent(ctx, c.Servers[0], t, nodes, "simulate", "--n", fmt.Sprint(nodes), "--first", "0", "--prefix", "many-")
		if err != nil {
			return nil, err
		}
		groups[i] = group{t, sim}
	}
	for _, g := range groups {
		if err := connected(ctx, g.sim, nodes); err != nil {
			return nil, err
		}
	}
	fmt.Printf("  %d nodes of %d tenants enrolled and connected in %.1f s\n", tenants*nodes, tenants, time.Since(began).Seconds())
	return groups, nil
}

// open makes n connections at once and leaves them idle.
func open(ctx context.Context, client *http.Client, server *rig.Replica, n int) error {
	var all errgroup.Group
	var bodies sync.WaitGroup // none is given back before all are open
	bodies.Add(n)
	for range n {
		all.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, callLimit)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/readyz", nil)
			if err != nil {
				bodies.Done()
				return err
			}
			resp, err := client.Do(req)
			bodies.Done()
			if err != nil {
				return err
			}
			bodies.Wait()
			_, err = io.Copy(io.Discard, resp.Body)
			return errors.Join(err, resp.Body.Close())
		})
	}
	return all.Wait()
}

// waitingCalls are calls under way.
type waitingCalls struct {
	client *http.Client
	groups []group
	nodes  int

	inFlight, answered atomic.Int64

	mu   sync.Mutex
	took []time.Duration // beyond the node's own time
}

// run makes the calls and answers what was seen while all of them waited.
func (m *waitingCalls) run(ctx context.Context, server *rig.Replica) (seen []memory, err error) {
	n := len(m.groups) * m.nodes
	var all sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		all.Go(func() {
			if errs[i] = pause(ctx, ramp*time.Duration(i)/time.Duration(n)); errs[i] != nil {
				return
			}
			g := m.groups[i%len(m.groups)]
			m.inFlight.Add(1)
			start := time.Now()
			did, err := overRESTFor(ctx, g.tenant, m.client, fmt.Sprintf("many-%04d", i/len(m.groups)), waitSeconds)
			took := time.Since(start)
			m.inFlight.Add(-1)
			if errs[i] = err; err != nil {
				return
			}
			m.answered.Add(1)
			m.mu.Lock()
			m.took = append(m.took, took-did.own())
			m.mu.Unlock()
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if int(m.inFlight.Load()) < n {
				continue
			}
			if now, err := look(ctx, server); err == nil && int(m.inFlight.Load()) == n {
				seen = append(seen, now)
			}
		case <-done:
			return seen, first(errs)
		}
	}
}

// first is one error for many of the same kind.
func first(errs []error) error {
	n := 0
	var one error
	for _, err := range errs {
		if err != nil {
			n, one = n+1, err
		}
	}
	if one == nil {
		return nil
	}
	return fmt.Errorf("%d of %d calls failed, for example: %w", n, len(errs), one)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Command tasks measures what a task costs beyond its own duration: the time
// from the request to the answer over REST and MCP, on the server that holds
// the node and across two servers, and the memory of a thousand waiting calls.
//
// It starts a database with its ordinary safety, two `telltaled serve` and
// simulated nodes over mutual TLS: real streams and task channels, made-up
// findings. Start reading at run; waiting.go holds the thousand calls.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/telltale-dev/telltale/bench/internal/rig"
)

const (
	kind       = "monitor_tcp_connections" // needs no target
	period     = 1250 * time.Millisecond   // between two calls of one way
	callLimit  = 30 * time.Second
	oneReplica = 5 * time.Millisecond
	twoReplica = 20 * time.Millisecond
)

func main() {
	bin := flag.String("bin", "bin", "`DIR` of the built programs")
	results := flag.String("results", "", "`FILE` to append the result lines to")
	calls := flag.Int("calls", 40, "calls of each way, one after the other")
	busy := flag.Int("busy", 12, "tenants that ask in all ways at once, beside the one that asks alone; 0: none")
	tenants := flag.Int("tenants", 10, "tenants of the waiting calls; 0: none")
	nodes := flag.Int("n", 100, "nodes, and waiting calls, of each tenant; at most 128")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin, *calls, *busy, *tenants, *nodes, rig.NewTable(*results)); err != nil {
		fmt.Fprintln(os.Stderr, "bench/tasks:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bin string, calls, busy, tenants, nodes int, table *rig.Table) (err error) {
	fmt.Printf("tasks: %d calls of each way, each of 1 s, load before %s\n", calls, rig.Load())
	c, err := rig.StartCluster(ctx, bin, 2)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if calls > 0 {
		if err := overhead(ctx, c, "single", calls, 1, table); err != nil {
			return err
		}
		if busy > 0 {
			if err := overhead(ctx, c, "busy", max(1, calls/2), busy, table); err != nil {
				return err
			}
		}
	}
	if tenants > 0 {
		return waiting(ctx, c, tenants, nodes, table)
	}
	return nil
}

// way is one way to ask for a task: the adapter, and whether the server asked
// is the one that holds the node.
type way struct {
	name  string
	ask   func(ctx context.Context, t rig.Tenant, client *http.Client, node string) (task, error)
	at    int // server asked; the nodes are at the first
	limit time.Duration
	mu    sync.Mutex
	took  []time.Duration // beyond the duration that the node reported
	whole []time.Duration // beyond the second that was asked for
	parts [4][]time.Duration
}

// partNames are the parts of what a task takes beyond its duration, told by
// the clocks of caller, server and node, which are one.
var partNames = [4]string{"until the server makes it", "until the node begins", "from its end until that arrives", "until that is stored and answered"}

// overhead lets each of some tenants ask in all ways in turn, each of its own
// node. One tenant asks an idle server: no call begins or ends while another one
// does, and whatever has not run for a third of a second has left the CPU's
// caches. Several make a steady stream of tasks.
func overhead(ctx context.Context, c *rig.Cluster, slug string, calls, callers int, table *rig.Table) (err error) {
	ways := []*way{
		{name: "REST, server holds the node", ask: overREST, at: 0, limit: oneReplica},
		{name: "MCP, server holds the node", ask: overMCP, at: 0, limit: oneReplica},
		{name: "REST, across two servers", ask: overREST, at: 1, limit: twoReplica},
		{name: "MCP, across two servers", ask: overMCP, at: 1, limit: twoReplica},
	}
	state := "idle"
	if callers > 1 {
		state = fmt.Sprintf("%.0f tasks/s", float64(callers*len(ways))/period.Seconds())
	}
	fmt.Printf("  %s: %d tenants, %d ways\n", state, callers, len(ways))
	var list []rig.Tenant
	for i := range callers {
		t, err := c.AddTenant(ctx, fmt.Sprintf("%s-%d", slug, i))
		if err != nil {
			return err
		}
		sim, err := c.Agent(ctx, c.Servers[0], t, len(ways), "simulate", "--n", fmt.Sprint(len(ways)), "--prefix", "one-", "--first", "0")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, sim.Stop()) }()
		if err := connected(ctx, sim, len(ways)); err != nil {
			return err
		}
		list = append(list, t)
	}
	var all sync.WaitGroup
	n := callers * len(ways)
	errs := make([]error, n)
	began := time.Now()
	for i := range n {
		w, t := ways[i%len(ways)], list[i/len(ways)]
		all.Go(func() {
			begin := began.Add(period * time.Duration(i) / time.Duration(n))
			errs[i] = w.repeat(ctx, t.At(c.Servers[w.at]), fmt.Sprintf("one-%04d", i%len(ways)), begin, calls)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, w := range ways {
		p50, p95 := rig.Quantile(w.took, 0.5), rig.Quantile(w.took, 0.95)
		fmt.Printf("  %-34s n=%-3d beyond the node's own time least %9s  p25 %9s  p50 %9s  p95 %9s  max %9s; beyond the second asked for p50 %9s\n", w.name, len(w.took),
			rig.Millis(rig.Quantile(w.took, 0)), rig.Millis(rig.Quantile(w.took, 0.25)), rig.Millis(p50), rig.Millis(p95), rig.Millis(rig.Quantile(w.took, 1)), rig.Millis(rig.Quantile(w.whole, 0.5)))
		for i, part := range w.parts {
			fmt.Printf("    %s %s,", partNames[i], rig.Millis(rig.Quantile(part, 0.5)))
		}
		fmt.Println(" medians")
		if err := errors.Join(
			table.Add("task overhead, "+state+", "+w.name+", p50", rig.Millis(p50), fmt.Sprintf("≤ %d ms", w.limit.Milliseconds()), p50 <= w.limit),
			table.Add("  its p95", rig.Millis(p95), "", true),
		); err != nil {
			return err
		}
	}
	fmt.Printf("  load after %s\n", rig.Load())
	return nil
}

// connected waits until a simulation says that its nodes are.
func connected(ctx context.Context, sim *rig.Child, n int) error {
	word := fmt.Sprintf("%d agents connected", n)
	if err := sim.Await(ctx, 2*time.Minute, func() bool { return strings.Contains(sim.Output(), word) }); err != nil {
		return fmt.Errorf("the simulated nodes do not connect: %w; they say: %s", err, sim.Output())
	}
	return nil
}

// warmUp calls are not counted: plans, caches, connections.
const warmUp = 2

func (w *way) repeat(ctx context.Context, t rig.Tenant, node string, begin time.Time, calls int) error {
	at, err := url.Parse(t.RESTURL)
	if err != nil {
		return err
	}
	wire, err := rig.Dial(ctx, at.Host)
	if err != nil {
		return err
	}
	defer wire.Close()
	client := &http.Client{Transport: wire}
	for i := range calls + warmUp {
		select {
		case <-time.After(time.Until(begin.Add(time.Duration(i) * period))):
		case <-ctx.Done():
			return ctx.Err()
		}
		start := time.Now()
		did, err := w.ask(ctx, t, client, node)
		end := time.Now()
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		if i >= warmUp {
			w.mu.Lock()
			w.took, w.whole = append(w.took, end.Sub(start)-did.own()), append(w.whole, end.Sub(start)-time.Second)
			for i, span := range []span{{start, did.Created}, {did.Created, did.Window.From}, {did.Window.To, did.Ended}, {did.Ended, end}} {
				w.parts[i] = append(w.parts[i], span.To.Sub(span.From))
			}
			w.mu.Unlock()
		}
	}
	return nil
}

// span is a time by the node's clock.
type span struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// task is what an answer says of one task on one node: REST has the times in
// the result of the run, MCP in the window of the answer.
type task struct {
	Status  string    `json:"status"`
	Created time.Time `json:"created_at"`
	Ended   time.Time `json:"ended_at"`
	Window  span      `json:"window"`
	Runs    []struct {
		Result span `json:"result"`
	} `json:"runs"`
}

// own is how long the task ran by the word of its node.
func (t task) own() time.Duration { return t.Window.To.Sub(t.Window.From) }

func read(doc []byte) (t task, err error) {
	if err := json.Unmarshal(doc, &t); err != nil {
		return t, fmt.Errorf("%w in %.300s", err, doc)
	}
	if len(t.Runs) == 1 {
		t.Window = t.Runs[0].Result
	}
	if t.Status != "COMPLETED" || t.Window.From.IsZero() || t.own() <= 0 {
		return t, fmt.Errorf("the task did not complete: %.600s", doc)
	}
	return t, nil
}

type object = map[string]any

func overREST(ctx context.Context, t rig.Tenant, client *http.Client, node string) (task, error) {
	return overRESTFor(ctx, t, client, node, 1)
}

func overRESTFor(ctx context.Context, t rig.Tenant, client *http.Client, node string, seconds int) (task, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	doc, err := t.REST(ctx, client, http.MethodPost, "/tasks", t.Tokens["diagnose"], object{"kind": kind, "node": node, "arguments": object{"duration_s": seconds}})
	if err != nil {
		return task{}, err
	}
	return read(doc)
}

func overMCP(ctx context.Context, t rig.Tenant, client *http.Client, node string) (task, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	doc, _, err := t.Tool(ctx, client, t.Tokens["diagnose"], kind, object{"node": node, "duration_s": 1})
	if err != nil {
		return task{}, err
	}
	return read(doc)
}

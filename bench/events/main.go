// Command events measures how soon a node's trouble is listed, and what a
// storm of it costs the agent: crashes and failing requests one by one, then
// rates that hold in k of n windows, then storms of both.
//
// It starts a database, `telltaled serve` and the real agent with windows of
// a second, and injects the trouble itself: short-lived programs, a loop
// device whose file is gone, datagrams, refused connections. It needs root.
// Start reading at run; trouble.go injects, storm.go watches the agent.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/bench/internal/load"
	"github.com/telltale-dev/telltale/bench/internal/rig"
)

const (
	soon     = 2 * time.Second
	interval = time.Second
	poll     = 10 * time.Millisecond
	patience = 15 * time.Second // before an event counts as missing
)

func main() {
	bin := flag.String("bin", "bin", "`DIR` of the built programs")
	results := flag.String("results", "", "`FILE` to append the result lines to")
	crashes := flag.Int("crashes", 20, "crashes, and a quarter as many failing devices, one by one")
	storm := flag.Duration("storm", 10*time.Second, "length of each storm, and of the rest after them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin, *crashes, *storm, rig.NewTable(*results)); err != nil {
		fmt.Fprintln(os.Stderr, "bench/events:", err)
		os.Exit(1)
	}
}

// lab is the stack with its one node.
type lab struct {
	tenant rig.Tenant
	dir    string // for programs and disks
	agent  *rig.Child
}

func run(ctx context.Context, bin string, crashes int, storm time.Duration, table *rig.Table) (err error) {
	if lacking := bpfload.Lacking(); len(lacking) > 0 {
		return fmt.Errorf("this user lacks %s", strings.Join(lacking, " and "))
	}
	fmt.Printf("events: windows of %v, load before %s\n", interval, rig.Load())
	c, err := rig.StartCluster(ctx, bin, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	l := &lab{dir: filepath.Join(c.Dir, "lab")}
	if err := os.Mkdir(l.dir, 0o755); err != nil {
		return err
	}
	if l.tenant, err = c.AddTenant(ctx, "lab"); err != nil {
		return err
	}
	if l.agent, err = c.Agent(ctx, c.Servers[0], l.tenant, 1, "run", "--interval", interval.String(), "--name", "lab", "--log-level", "warn"); err != nil {
		return err
	}
	if err := l.ready(ctx); err != nil {
		return fmt.Errorf("%w; the agent says: %s", err, l.agent.Output())
	}
	if err := errors.Join(l.immediate(ctx, crashes, table), l.rates(ctx, table)); err != nil {
		return err
	}
	return l.storms(ctx, storm, table)
}

// event is what list_events says of one.
type event struct {
	Kind  string            `json:"kind"`
	Scope map[string]string `json:"scope"`
	First time.Time         `json:"first_seen"`
	Last  time.Time         `json:"last_seen"`
	Count uint64            `json:"cumulative_count"`
}

// list asks for the events of a kind, over MCP.
func (l *lab) list(ctx context.Context, kind string) ([]event, error) {
	doc, _, err := l.tenant.Tool(ctx, http.DefaultClient, l.tenant.Tokens["read"], "list_events", map[string]any{"kinds": []string{kind}, "limit": 200})
	if err != nil {
		return nil, err
	}
	var page struct{ Events []event }
	return page.Events, json.Unmarshal(doc, &page)
}

// all are the events of a kind over REST, whose page no budget of bytes cuts.
func (l *lab) all(ctx context.Context, kind string) ([]event, error) {
	doc, err := l.tenant.REST(ctx, http.DefaultClient, http.MethodGet, "/events?limit=200&kinds="+kind, l.tenant.Tokens["read"], nil)
	if err != nil {
		return nil, err
	}
	var page struct{ Events []event }
	return page.Events, json.Unmarshal(doc, &page)
}

// await polls until an event of a kind is listed that is the one, and says when.
func (l *lab) await(ctx context.Context, kind string, one func(event) bool) (event, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		list, err := l.list(ctx, kind)
		if ctx.Err() != nil {
			return event{}, time.Time{}, fmt.Errorf("no %s is listed within %v", kind, patience)
		}
		if err != nil {
			return event{}, time.Time{}, err
		}
		if i := slices.IndexFunc(list, one); i >= 0 {
			return list[i], time.Now(), nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// ready waits until a crash is listed: the programs are loaded, the stream is
// open and nothing of the start is measured. It crashes as long as none is.
func (l *lab) ready(ctx context.Context) error {
	program, err := l.program("tt-hello")
	if err != nil {
		return err
	}
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		if err := crash(ctx, program); err != nil {
			return err
		}
		if list, err := l.list(ctx, "process_crash"); err != nil || len(list) > 0 {
			return err
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("the agent sees no crash")
}

// immediate lets programs crash and devices fail, each with a name of its own,
// and takes the time from the kernel's sighting to the first list that has it.
func (l *lab) immediate(ctx context.Context, crashes int, table *rig.Table) error {
	var late []time.Duration
	for i := range crashes {
		name := fmt.Sprintf("tt-crash-%d", i)
		program, err := l.program(name)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := crash(ctx, program); err != nil {
			return err
		}
		ended := time.Now()
		e, listed, err := l.await(ctx, "process_crash", func(e event) bool { return filepath.Base(e.Scope["exe"]) == name || e.Scope["comm"] == name })
		if err != nil {
			return err
		}
		if e.First.Before(began.Add(-time.Millisecond)) || e.First.After(ended.Add(time.Millisecond)) {
			return fmt.Errorf("%s crashed between %v and %v and was seen at %v", name, began, ended, e.First)
		}
		late = append(late, listed.Sub(e.First))
	}
	if err := tell(table, "process_crash", late); err != nil {
		return err
	}
	late, err := l.failingDisks(ctx, max(1, crashes/4))
	if err != nil {
		return err
	}
	return tell(table, "io_error", late)
}

// failingDisks reads once from each of some devices whose file is gone. All
// are kept until the end: the kernel gives a number again, and what happens
// again within a minute only adds to an event.
func (l *lab) failingDisks(ctx context.Context, n int) (late []time.Duration, err error) {
	for range n {
		d, err := load.NewDisk(l.dir, 1<<20)
		if err != nil {
			return nil, err
		}
		defer d.Close()
		if err := d.Break(); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := d.Read(0); !errors.Is(err, syscall.EIO) {
			return nil, fmt.Errorf("the read of a broken device says %w", err)
		}
		e, listed, err := l.await(ctx, "io_error", func(e event) bool { return e.Scope["device"] == d.Name && !e.Last.Before(began) })
		if err != nil {
			return nil, err
		}
		late = append(late, listed.Sub(e.Last))
	}
	return late, nil
}

func tell(table *rig.Table, kind string, late []time.Duration) error {
	p50, p95 := rig.Quantile(late, 0.5), rig.Quantile(late, 0.95)
	fmt.Printf("  %-18s n=%-3d from the kernel to list_events p50 %s, p95 %s, max %s\n", kind, len(late), rig.Millis(p50), rig.Millis(p95), rig.Millis(rig.Quantile(late, 1)))
	return table.Add(fmt.Sprintf("event %s, kernel to list_events, p95", kind), rig.Millis(p95), "≤ 2 s", p95 <= soon)
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

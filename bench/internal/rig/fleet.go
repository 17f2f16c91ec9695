package rig

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/telltale-dev/telltale/agent/uplink"
)

// Agent is one enrolled node with the product's own uplink.
type Agent struct {
	*uplink.Uplink
	Tenant string // id
	Node   string // id
	Name   string
	Pushed int    // windows; whoever pushes counts
	Series uint64 // values in them
	Seen   uint64 // sum of their Samples
}

// Fleet is a set of agents with live streams.
type Fleet struct {
	Agents []*Agent
	stop   context.CancelFunc
	done   sync.WaitGroup
}

// enrolAtOnce bounds the enrolments in work.
const enrolAtOnce = 8

// Enrol makes n nodes in a tenant, named prefix and a number. It starts no
// stream.
func (s *Stack) Enrol(ctx context.Context, slug, prefix string, n int) ([]*Agent, error) {
	token, err := s.EnrolToken(ctx, slug, n)
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(s.CAFile)
	if err != nil {
		return nil, err
	}
	agents := make([]*Agent, n)
	facts := uplink.ReadFacts("bench")
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(enrolAtOnce)
	for i := range agents {
		g.Go(func() error {
			name := fmt.Sprintf("%s%04d", prefix, i)
			facts := facts
			facts.MachineID, facts.Hostname = fmt.Sprintf("%x-%s", name, slug), name
			id, err := uplink.Enrol(ctx, uplink.Enrolment{
				Server: s.GRPCAddr, CA: ca, Token: token, Dir: filepath.Join(s.Dir, "bench-agents", slug, name), Name: name, Facts: facts,
			})
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			link := uplink.New(uplink.Config{Facts: facts, QueueItems: 1024, QueueBytes: 16 << 20}, id, slog.New(slog.DiscardHandler))
			agents[i] = &Agent{Uplink: link, Tenant: id.Tenant, Node: id.Node, Name: name}
			return nil
		})
	}
	return agents, g.Wait()
}

// Connect opens the stream of every agent and returns when all are live.
// Streams last until Close.
func Connect(ctx context.Context, agents []*Agent) (*Fleet, error) {
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	f := &Fleet{Agents: agents, stop: stop}
	for _, a := range agents {
		f.done.Go(func() { _ = a.Run(run) }) // it always returns nil
	}
	return f, f.Await(ctx, time.Minute, "all streams are live", func(a *Agent) bool { return a.Stats().Connected })
}

// Await polls until ok of every agent.
func (f *Fleet) Await(ctx context.Context, limit time.Duration, what string, ok func(*Agent) bool) error {
	deadline := time.After(limit)
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for i := 0; i < len(f.Agents); {
		if ok(f.Agents[i]) {
			i++
			continue
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("within %v it did not come that %s", limit, what)
		}
	}
	return nil
}

// Settled waits until everything pushed is acknowledged.
func (f *Fleet) Settled(ctx context.Context, limit time.Duration) error {
	return f.Await(ctx, limit, "everything is acknowledged", func(a *Agent) bool { return a.Stats().QueueItems == 0 })
}

// Close ends the streams.
func (f *Fleet) Close() {
	f.stop()
	f.done.Wait()
}

// Push hands a window to the uplink and counts it. One goroutine at a time
// may push to an agent.
func (a *Agent) Push(m *Numbers, end time.Time, length time.Duration) {
	w := m.Window(a.Pushed, end, length)
	a.Pushed++
	a.Series += uint64(len(w.Values))
	a.Seen += w.Samples
	a.Uplink.Push(w)
}

// Clean reports what an agent lost or the server kept out, which would void a
// measurement.
func (a *Agent) Clean() error {
	st := a.Stats()
	var errs []error
	if len(st.Dropped) > 0 {
		errs = append(errs, fmt.Errorf("%s dropped windows: %v", a.Name, st.Dropped))
	}
	if st.Quarantined > 0 {
		errs = append(errs, fmt.Errorf("%s: the server kept %d windows out", a.Name, st.Quarantined))
	}
	if st.Acked != uint64(a.Pushed) {
		errs = append(errs, fmt.Errorf("%s pushed %d windows, %d were acknowledged", a.Name, a.Pushed, st.Acked))
	}
	return errors.Join(errs...)
}

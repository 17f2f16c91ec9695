package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/telltale-dev/telltale/agent/runner"
	"github.com/telltale-dev/telltale/agent/uplink"
)

// simulation is the configuration of `telltale-agent simulate`.
type simulation struct {
	admission
	n, first int
	interval time.Duration
	seed     int
	churn    time.Duration
	prefix   string
	logLevel string
	mute     int
	events   int

	facts uplink.Facts
	synth *synthesizer
	log   *slog.Logger
}

func (s *simulation) settings(e env) []setting {
	own := []setting{
		{name: "n", kind: "N", env: "TELLTALE_SIMULATE_N", def: "10", help: "how many agents", set: number(&s.n, 1, 100_000)},
		{name: "first", kind: "N", env: "TELLTALE_SIMULATE_FIRST", def: "1", help: "number of the first agent", set: number(&s.first, 0, 1_000_000)},
		{name: "interval", kind: "DURATION", def: "10s", help: "length of a window", set: span(&s.interval, 100*time.Millisecond, time.Hour)},
		{name: "seed", kind: "N", env: "TELLTALE_SIMULATE_SEED", def: "1", help: "the same seed gives the same numbers at the same time", set: number(&s.seed, 0, 1<<31-1)},
		{name: "churn", kind: "DURATION", env: "TELLTALE_SIMULATE_CHURN", def: "0s", help: "mean life of a stream before its agent reconnects; 0s: never", set: span(&s.churn, 0, 24*time.Hour)},
		{name: "mute", kind: "N", env: "TELLTALE_SIMULATE_MUTE", def: "0", help: "how many of the agents, the last ones, accept tasks and never say more", set: number(&s.mute, 0, 100_000)},
		{name: "events-per-min", kind: "N", env: "TELLTALE_SIMULATE_EVENTS", def: "0", help: "made-up events of each agent a minute", set: number(&s.events, 0, 600)},
		{name: "prefix", kind: "NAME", env: "TELLTALE_SIMULATE_PREFIX", def: "sim-", help: "what the agents' names begin with", set: text(&s.prefix)},
		{name: "log-level", kind: "LEVEL", def: "error", help: "debug, info, warn or error", set: text(&s.logLevel)},
	}
	for _, a := range s.admission.settings(e) {
		switch a.name {
		case "name":
			continue
		case "dir":
			a.def, a.help = filepath.Join(defaultDir(e), "simulate"), "directory of the agents' identities; they are used again"
		}
		own = append(own, a)
	}
	return own
}

// simulated is one synthetic agent.
type simulated struct {
	index int
	name  string
	link  *uplink.Uplink
	tasks *runner.Tasks // nil: mute
}

// enrolAtOnce bounds the enrolments in work.
const enrolAtOnce = 8

// simulate is `telltale-agent simulate`.
func simulate(ctx context.Context, e env, args []string) error {
	var s simulation
	_, err := load(e, "telltale-agent simulate", args, s.settings(e))
	if err != nil {
		return err
	}
	if s.log, err = logger(e, s.logLevel); err != nil {
		return err
	}
	s.facts = uplink.ReadFacts("sim-" + version)
	s.synth = newSynthesizer(uint64(s.seed), s.interval)
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("identity directory: %w", err)
	}
	unlock, err := uplink.Lock(s.dir)
	if err != nil {
		return err
	}
	defer unlock()
	agents, err := s.prepare(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	fmt.Fprintf(e.stdout, "simulate: %d agents enrolled\n", len(agents))
	var wg sync.WaitGroup
	for _, a := range agents {
		wg.Go(func() { s.connect(ctx, a) })
		wg.Go(func() { s.produce(ctx, a) })
		if s.events > 0 {
			wg.Go(func() { s.happen(ctx, a) })
		}
	}
	s.watch(ctx, e, agents)
	wg.Wait()
	fmt.Fprintf(e.stdout, "simulate: stopped; %s\n", total(agents))
	return nil
}

// prepare opens or enrols every agent, a few at a time.
func (s *simulation) prepare(ctx context.Context) ([]*simulated, error) {
	agents := make([]*simulated, s.n)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(enrolAtOnce)
	for i := range agents {
		g.Go(func() error {
			index := s.first + i
			a := &simulated{index: index, name: fmt.Sprintf("%s%04d", s.prefix, index)}
			dir := filepath.Join(s.dir, a.name)
			facts := s.synth.facts(index, a.name, s.facts)
			id, err := s.open(dir)
			if errors.Is(err, uplink.ErrNotEnrolled) {
				var enr uplink.Enrolment
				if enr, err = s.enrolment(dir, a.name, facts); err == nil {
					id, err = enrolPatiently(gctx, enr, 2*time.Minute, s.log)
				}
			}
			if err != nil {
				return fmt.Errorf("%s: %w", a.name, err)
			}
			log := s.log.With("agent", a.name)
			var handler uplink.TaskHandler = s.synth.mute()
			if i < s.n-s.mute {
				a.tasks = s.synth.tasks(index, quiet(log, s.logLevel))
				handler = a.tasks
			}
			a.link = uplink.New(uplink.Config{Server: s.server, Facts: facts, QueueItems: 512, QueueBytes: 1 << 20, Tasks: handler}, id, log)
			agents[i] = a
			return nil
		})
	}
	return agents, g.Wait()
}

// connect keeps the agent's stream, and cuts it now and then when asked to.
// Its tasks end before the stream does.
func (s *simulation) connect(ctx context.Context, a *simulated) {
	lctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	over := context.AfterFunc(ctx, func() {
		defer stop()
		if a.tasks == nil {
			return
		}
		if err := a.tasks.Run(ctx); err != nil {
			s.log.Error("tasks ended", "agent", a.name, "error", err)
		}
	})
	defer over()
	for lctx.Err() == nil {
		rctx, cancel := lctx, context.CancelFunc(func() {})
		if s.churn > 0 {
			life := time.Duration(rand.ExpFloat64() * float64(s.churn))
			rctx, cancel = context.WithTimeout(lctx, max(life, time.Second))
		}
		if err := a.link.Run(rctx); err != nil {
			s.log.Error("agent ended", "agent", a.name, "error", err)
		}
		cancel()
	}
}

// happen lets the agent see made-up events.
func (s *simulation) happen(ctx context.Context, a *simulated) {
	events := runner.NewEvents(runner.EventConfig{}, s.synth.registry, a.link.PushEvent, quiet(s.log, s.logLevel))
	done := make(chan error, 1)
	go func() { done <- events.Run(ctx) }()
	s.synth.happen(ctx, a.index, s.events, events.Emit)
	if err := <-done; err != nil {
		s.log.Error("events ended", "agent", a.name, "error", err)
	}
}

// produce pushes windows, each agent at its own point of the interval.
func (s *simulation) produce(ctx context.Context, a *simulated) {
	a.link.SetCapabilities(s.synth.capabilities(a.index))
	shift := s.interval * time.Duration(a.index%1000) / 1000
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		now := time.Now()
		next := now.Add(-shift).Truncate(s.interval).Add(s.interval + shift)
		timer.Reset(next.Sub(now))
		select {
		case <-timer.C:
			for _, w := range s.synth.windows(a.index, next) {
				a.link.Push(w)
			}
		case <-ctx.Done():
			return
		}
	}
}

// watch says when all are connected, and then how it goes.
func (s *simulation) watch(ctx context.Context, e env, agents []*simulated) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var ready atomic.Bool
	last := time.Now()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		t := total(agents)
		if !ready.Load() && t.connected == len(agents) {
			ready.Store(true)
			fmt.Fprintf(e.stdout, "simulate: %d agents connected\n", len(agents))
		}
		if time.Since(last) >= 30*time.Second {
			last = time.Now()
			fmt.Fprintf(e.stdout, "simulate: %s\n", t)
		}
	}
}

// totals adds up all agents.
type totals struct {
	connected                               int
	pushed, acked, dropped, failed, refused uint64
	channels                                int
	orders, events                          uint64
}

func total(agents []*simulated) (t totals) {
	for _, a := range agents {
		st := a.link.Stats()
		if st.Connected {
			t.connected++
		}
		if st.ChannelOpen {
			t.channels++
		}
		t.orders += st.Orders
		t.events += st.EventsPushed
		t.pushed += st.Pushed
		t.acked += st.Acked
		t.failed += st.Failures
		t.refused += st.Quarantined
		for _, n := range st.Dropped {
			t.dropped += n
		}
	}
	return t
}

func (t totals) String() string {
	return fmt.Sprintf("%d connected, %d windows pushed, %d reports acknowledged, %d dropped, %d kept out, %d failed attempts, %d task channels, %d tasks, %d events",
		t.connected, t.pushed, t.acked, t.dropped, t.refused, t.failed, t.channels, t.orders, t.events)
}

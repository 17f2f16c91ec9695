package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/telltale-dev/telltale/bench/internal/rig"
)

const lead = time.Second // before anything is counted: connections, plans

// together lets conns connections ask all questions.
func together(ctx context.Context, s *rig.Stack, askers []*asker, conns int, length time.Duration, profile string, table *rig.Table) error {
	all, ctx := errgroup.WithContext(ctx)
	counted := time.Now().Add(lead)
	until := counted.Add(length)
	took := make([][][]time.Duration, conns) // by connection and question
	var before, after rig.Usage
	for i := range conns {
		took[i] = make([][]time.Duration, len(questions))
		all.Go(func() error {
			c, err := askers[i%len(askers)].connect(ctx, i) // i, so that two tokens of a tenant ask about two nodes
			if err != nil {
				return err
			}
			defer c.Close()
			for n := i; ; n++ {
				q := n % len(questions)
				start := time.Now()
				if !start.Before(until) {
					return nil
				}
				if _, err := c.ask(q); err != nil {
					return err
				}
				if start.After(counted) {
					took[i][q] = append(took[i][q], time.Since(start))
				}
			}
		})
	}
	all.Go(func() (err error) { // the processor time of what is counted
		for _, at := range []struct {
			when time.Time
			to   *rig.Usage
		}{{counted, &before}, {until, &after}} {
			select {
			case <-time.After(time.Until(at.when)):
			case <-ctx.Done():
				return ctx.Err()
			}
			if *at.to, err = s.Usage(); err != nil {
				return err
			}
		}
		return nil
	})
	if profile != "" {
		all.Go(func() error { return s.Profile(ctx, max(1, int(length/time.Second)-1), profile) })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	return report(took, after.Sub(before), len(askers), length, table)
}

// report prints what each kind of call took and what everybody used for it.
func report(took [][][]time.Duration, used rig.Usage, tokens int, length time.Duration, table *rig.Table) error {
	var every []time.Duration
	fmt.Printf("  %d connections of %d tokens, %v:\n", len(took), tokens, length)
	line := func(name string, d []time.Duration) {
		fmt.Printf("    %-28s %6.0f calls/s, p50 %9s, p95 %9s, p99 %9s\n", name, float64(len(d))/length.Seconds(),
			rig.Millis(rig.Quantile(d, 0.5)), rig.Millis(rig.Quantile(d, 0.95)), rig.Millis(rig.Quantile(d, 0.99)))
	}
	for i, q := range questions {
		var kind []time.Duration
		for _, c := range took {
			kind = append(kind, c[i]...)
		}
		line(q.name, kind)
		every = append(every, kind...)
	}
	if len(every) == 0 {
		return errors.New("no call was answered")
	}
	line("all", every)
	each := func(d time.Duration) string { return rig.Millis(d / time.Duration(len(every))) }
	fmt.Printf("    CPU a call: telltaled %s, postgres %s, load tool %s, simulated agents %s, everything else %s; together %s, %.2f CPUs busy; load after %s\n",
		each(used.Server), each(used.Database), each(used.Own), each(used.Agents), each(used.Others()), each(used.Machine), used.Machine.Seconds()/length.Seconds(), rig.Load())
	rate, p99 := float64(len(every))/length.Seconds(), rig.Quantile(every, 0.99)
	by := fmt.Sprintf(", %d connections", len(took))
	return errors.Join(
		table.Add("MCP calls a second, mixed"+by, fmt.Sprintf("%.0f (%.2f of target)", rate, rate/rateLimit), "≥ 2000", rate >= rateLimit),
		table.Add("  its p99", rig.Millis(p99), "≤ 50 ms", p99 <= delayLimit),
		table.Add("  its server CPU a call", each(used.Server), "", true))
}

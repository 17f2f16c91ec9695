package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/telltale-dev/telltale/bench/internal/load"
	"github.com/telltale-dev/telltale/bench/internal/rig"
)

const (
	maxCPU   = 0.20 // of one core: the agent's default budget
	maxRSS   = 40 << 20
	programs = 64 // names that crash
	settle   = 5 * time.Second
)

// storms watches the agent through a storm of crashes of many programs and
// one of failing requests, both as fast as one core makes them, and then at
// rest.
func (l *lab) storms(ctx context.Context, length time.Duration, table *rig.Table) error {
	script := "ulimit -c 0; exec 2>/dev/null; while :; do for p; do $p -c 'kill -SEGV $$'; printf x; done; done"
	var names []string
	for i := range programs {
		path, err := l.program(fmt.Sprintf("tt-storm-%d", i))
		if err != nil {
			return err
		}
		names = append(names, path)
	}
	made := 0
	crashes, err := l.under(ctx, table, "crashes", func() (err error) {
		made, err = shell(ctx, length, script, names...)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Printf("    %.0f crashes a second of %d programs, %d in all; %s\n", float64(made)/length.Seconds(), programs, made, crashes)
	d, err := load.NewDisk(l.dir, 1<<20)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Break(); err != nil {
		return err
	}
	failed := 0
	errs, err := l.under(ctx, table, "failing requests", func() error {
		for end := time.Now().Add(length); time.Now().Before(end) && ctx.Err() == nil; failed++ {
			if err := d.Read(failed); !errors.Is(err, syscall.EIO) {
				return fmt.Errorf("the read of a broken device says %w", err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Printf("    %.0f requests failed a second; %s\n", float64(failed)/length.Seconds(), errs)
	if err := pause(ctx, settle); err != nil { // counts of open records follow within seconds
		return err
	}
	for _, kind := range []string{"process_crash", "io_error", "event_loss"} {
		listed, err := l.all(ctx, kind)
		if err != nil {
			return err
		}
		var total uint64
		of := map[string]uint64{} // component that lost, if it is that kind
		for _, e := range listed {
			total += e.Count
			if c := e.Scope["component"]; c != "" {
				of[c] += e.Count
			}
		}
		fmt.Printf("    listed: %s %d in %d records %s\n", kind, total, len(listed), strings.TrimPrefix(fmt.Sprint(of), "map"))
	}
	var rss []float64
	for end := time.Now().Add(length); time.Now().Before(end); {
		m, err := rig.ReadMemory(l.agent.PID)
		if err != nil {
			return fmt.Errorf("the agent is gone: %w", err)
		}
		rss = append(rss, float64(m.RSS))
		if err := pause(ctx, 250*time.Millisecond); err != nil {
			return err
		}
	}
	size := rig.Median(rss)
	return table.Add("agent memory at rest after the storms", fmt.Sprintf("%.1f MiB", size/(1<<20)), "≤ 40 MiB", size <= maxRSS)
}

// under measures what the agent uses while something happens. Whether it gave
// anything up for it is told by the event agent_budget.
func (l *lab) under(ctx context.Context, table *rig.Table, what string, work func() error) (string, error) {
	own0, err := rig.CPU(l.agent.PID)
	if err != nil {
		return "", err
	}
	all0, err := rig.MachineCPU()
	if err != nil {
		return "", err
	}
	var all errgroup.Group
	began := time.Now()
	all.Go(work)
	if err := all.Wait(); err != nil {
		return "", err
	}
	took := time.Since(began)
	own1, err := rig.CPU(l.agent.PID)
	if err != nil {
		return "", fmt.Errorf("the agent is gone: %w", err)
	}
	all1, err := rig.MachineCPU()
	if err != nil {
		return "", err
	}
	m, err := rig.ReadMemory(l.agent.PID)
	if err != nil {
		return "", err
	}
	shed, err := l.list(ctx, "agent_budget")
	if err != nil {
		return "", err
	}
	cpu := (own1 - own0).Seconds() / took.Seconds()
	said := fmt.Sprintf("agent %.1f %% of a core, machine busy to %.0f %%, agent resident %.1f MiB, %d budget events",
		100*cpu, 100*(all1-all0).Seconds()/took.Seconds()/float64(runtime.NumCPU()), float64(m.RSS)/(1<<20), len(shed))
	return said, table.Add("agent CPU in a storm of "+what, fmt.Sprintf("%.1f %% of a core", 100*cpu), "≤ 20 %", cpu <= maxCPU)
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/telltale-dev/telltale/bench/internal/load"
	"github.com/telltale-dev/telltale/bench/internal/rig"
)

// program copies the shell under a name of its own, so that its crash is an
// event of its own.
func (l *lab) program(name string) (string, error) {
	b, err := os.ReadFile("/bin/sh")
	if err != nil {
		return "", err
	}
	path := filepath.Join(l.dir, name)
	return path, os.WriteFile(path, b, 0o755)
}

// crash lets a shell end by a signal, without a core file.
func crash(ctx context.Context, program string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := exec.CommandContext(ctx, program, "-c", "ulimit -c 0; kill -SEGV $$").Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && strings.Contains(exit.Error(), "segmentation") {
		return nil
	}
	return fmt.Errorf("%s did not crash: %v", program, err)
}

// rateKind is a rule that some work brings about.
type rateKind struct {
	kind  string
	k     int // windows until it holds
	scope map[string]string
	work  func(time.Duration) (load.Rate, error)
}

const trouble = 5 * time.Second // of each rate: more than k windows

// rates brings about all kinds at once and takes the time from the end of the
// window that completes k of n to the first list that has it.
func (l *lab) rates(ctx context.Context, table *rig.Table) error {
	kinds := []rateKind{
		{kind: "packet_drop_burst", k: 2, scope: map[string]string{"reason": "SOCKET_RCVBUFF"}, work: load.Overflow},
		{kind: "reset_burst", k: 2, work: load.Resets},
		{kind: "exec_burst", k: 2, work: func(d time.Duration) (load.Rate, error) {
			return load.Rate{}, execs(ctx, d)
		}},
	}
	var all errgroup.Group
	late := make([]time.Duration, len(kinds))
	for i, r := range kinds {
		all.Go(func() error {
			work := make(chan error, 1)
			began := time.Now()
			go func() { _, err := r.work(trouble); work <- err }()
			e, listed, err := l.await(ctx, r.kind, func(e event) bool { return r.is(e) && !e.Last.Before(began) })
			// first_seen is the end of the first window in which it held, last_seen
			// that of the k-th, or of a later one if it was told so late.
			kth := e.First.Add(time.Duration(r.k-1) * interval * 3 / 2)
			if e.Last.Before(kth) {
				kth = e.Last
			}
			late[i] = listed.Sub(kth)
			return errors.Join(err, <-work)
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	for i, r := range kinds {
		fmt.Printf("  %-18s from the end of window %d to list_events %s\n", r.kind, r.k, rig.Millis(late[i]))
	}
	worst := rig.Quantile(late, 1)
	return table.Add("events by rule, k-th window to list_events, worst", rig.Millis(worst), "≤ 2 s", worst <= soon)
}

func (r rateKind) is(e event) bool {
	for k, v := range r.scope {
		if e.Scope[k] != v {
			return false
		}
	}
	return true
}

// execs starts programs as fast as one shell can.
func execs(ctx context.Context, length time.Duration) error {
	_, err := shell(ctx, length, "while :; do /bin/true; done")
	return err
}

// shell runs a script for a while and counts the bytes it says.
func shell(ctx context.Context, length time.Duration, script string, args ...string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	if ctx.Err() != nil { // its time was over, or all is
		return out.Len(), nil
	}
	return out.Len(), fmt.Errorf("the script ended: %w", err)
}

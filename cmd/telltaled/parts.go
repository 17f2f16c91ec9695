package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// part is one long-lived piece of the server.
type part struct {
	name   string
	within time.Duration // it has this long to end once asked
	run    func(context.Context) error
}

// runParts starts the parts in order and runs them until ctx ends or one of
// them does; then it stops them in reverse order, each within its time. A part
// that overruns is named and left: the process is about to end.
func runParts(ctx context.Context, log *slog.Logger, parts []part) error {
	type running struct {
		part
		stop context.CancelFunc
		done chan error
	}
	ended := make(chan string, len(parts))
	var up []running
	for _, p := range parts {
		// Not derived from ctx: the order of the stops is ours.
		own, stop := context.WithCancel(context.WithoutCancel(ctx))
		r := running{p, stop, make(chan error, 1)}
		go func() {
			r.done <- r.run(own)
			ended <- r.name
		}()
		up = append(up, r)
	}
	var failed []error
	select {
	case <-ctx.Done():
	case name := <-ended:
		if ctx.Err() == nil {
			failed = append(failed, fmt.Errorf("%s ended, so the server stops", name))
		}
	}
	for i := len(up) - 1; i >= 0; i-- {
		r := up[i]
		r.stop()
		select {
		case err := <-r.done:
			if err != nil && !errors.Is(err, context.Canceled) {
				failed = append(failed, fmt.Errorf("%s: %w", r.name, err))
			}
			log.Debug("stopped", "part", r.name)
		case <-time.After(r.within):
			failed = append(failed, fmt.Errorf("%s did not stop within %s", r.name, r.within))
		}
	}
	return errors.Join(failed...)
}

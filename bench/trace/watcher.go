package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/telltale-dev/telltale/agent/collectors"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
	"github.com/telltale-dev/telltale/bench/internal/rig"
)

const (
	taskSeconds = 30                     // every task is cancelled long before
	startWithin = 30 * time.Second       // of a tool, on a busy machine
	attach      = 250 * time.Millisecond // from loaded programs, or a tool's word, to looking
)

// watcher looks at what happens until it is stopped.
type watcher interface {
	stop() error
}

type idle struct{}

func (idle) stop() error { return nil }

func nobody(context.Context) (watcher, error) { return idle{}, nil }

// running is a task of the product in this process.
type running struct {
	cancel context.CancelFunc
	ended  chan error
}

func startTask(ctx context.Context, kind string, args object) (*running, error) {
	var words inspector.Registry
	all.Register(&words)
	k, ok := words.Task(kind)
	if !ok {
		return nil, fmt.Errorf("no task %s", kind)
	}
	raw := object{inspector.ArgDuration: taskSeconds}
	for name, v := range args {
		raw[name] = v
	}
	checked, err := k.Check(raw)
	if err != nil {
		return nil, err
	}
	var do inspector.TaskRun
	for _, m := range collectors.List(collectors.Config{}, slog.New(slog.DiscardHandler)) {
		if f := m.Tasks[kind]; f != nil {
			do = f
		}
	}
	if do == nil {
		return nil, fmt.Errorf("nobody does %s", kind)
	}
	ctx, cancel := context.WithTimeout(ctx, taskSeconds*time.Second)
	r := &running{cancel: cancel, ended: make(chan error, 1)}
	go func() {
		_, err := do(ctx, checked, func(*inspector.TaskResult) {})
		r.ended <- err
	}()
	if err := r.loaded(ctx); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	return r, nil
}

// loaded waits until this process holds programs, which nothing else in it
// loads.
func (r *running) loaded(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		p, err := rig.OpenPrograms(os.Getpid())
		if err == nil {
			if err := p.Close(); err != nil {
				return err
			}
			return pause(ctx, attach)
		}
		if !errors.Is(err, rig.ErrNoPrograms) {
			return err
		}
		select {
		case <-tick.C:
		case err := <-r.ended:
			r.ended <- err
			return fmt.Errorf("ended at once: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stop cancels the task, which then returns what it has.
func (r *running) stop() error {
	r.cancel()
	if err := <-r.ended; err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// tool is another tracer, with a tracefs of its own.
type tool struct {
	cmd  *exec.Cmd
	kill context.CancelFunc
	rest chan struct{} // closed when its output has ended
}

const ownTracefs = `mount -t tracefs tracefs /sys/kernel/tracing && mount -t debugfs debugfs /sys/kernel/debug; exec stdbuf -oL "$@"`

func startTool(ctx context.Context, ready string, command []string) (*tool, error) {
	ctx, kill := context.WithTimeout(ctx, 2*startWithin)
	t := &tool{cmd: exec.CommandContext(ctx, "unshare", append([]string{"-m", "/bin/sh", "-c", ownTracefs, "sh"}, command...)...), kill: kill, rest: make(chan struct{})}
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, in := io.Pipe()
	t.cmd.Stdout, t.cmd.Stderr = in, in
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the kernel ties the child's death signal to this thread
		err := t.cmd.Start()
		started <- err
		if err == nil {
			_ = t.cmd.Wait() // how it ends when it is told to does not matter
		}
		in.Close()
	}()
	if err := <-started; err != nil {
		kill()
		return nil, err
	}
	looks, said := make(chan bool, 1), &strings.Builder{}
	go func() {
		defer close(t.rest)
		told := false
		for in := bufio.NewScanner(out); in.Scan(); {
			if told {
				continue // the pipe must not fill
			}
			said.WriteString(in.Text() + "\n")
			if told = strings.Contains(in.Text(), ready); told {
				looks <- true
			}
		}
		if !told {
			looks <- false
		}
	}()
	select {
	case ok := <-looks:
		if !ok {
			return nil, errors.Join(fmt.Errorf("%s does not look; it says: %s", command[0], said), t.stop())
		}
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), t.stop())
	}
	return t, pause(ctx, 2*attach)
}

// stop interrupts it.
func (t *tool) stop() error {
	defer t.kill()
	_ = t.cmd.Process.Signal(os.Interrupt) // fails only when it has ended
	<-t.rest
	return nil
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

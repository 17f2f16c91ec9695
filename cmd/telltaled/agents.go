package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// agentGroup is the agents of a dev stack, as child processes.
type agentGroup struct {
	dir      string // where their identities and output live
	binary   string
	server   string
	caFile   string
	children []agentChild
	failed   chan error // first child that would not stay up
}

// agentChild is one process: the real agent, or one that simulates n.
type agentChild struct {
	tenant readyTenant
	n      int
	real   bool
}

// devAgents says which agents run: a real one in acme unless switched off,
// and simulated ones so that there are --agents in all and at least one in
// each tenant.
func devAgents(d *devRun, doc readyDoc) *agentGroup {
	g := &agentGroup{dir: d.dir, binary: "telltale-agent", server: doc.GRPCAddr, caFile: doc.CAFile, failed: make(chan error, 1)}
	if self, err := os.Executable(); err == nil {
		g.binary = filepath.Join(filepath.Dir(self), "telltale-agent")
	}
	acme, globex := doc.Tenants[0], doc.Tenants[1]
	simulated := d.o.agents - 1
	inGlobex := max(1, (simulated+1)/2)
	inAcme := max(0, simulated-inGlobex)
	if d.o.noAgent {
		inAcme = max(1, inAcme)
	} else {
		g.children = append(g.children, agentChild{tenant: acme, n: 1, real: true})
	}
	if inAcme > 0 {
		g.children = append(g.children, agentChild{tenant: acme, n: inAcme})
	}
	g.children = append(g.children, agentChild{tenant: globex, n: inGlobex})
	return g
}

func (g *agentGroup) summary() string {
	var parts []string
	for _, c := range g.children {
		parts = append(parts, fmt.Sprintf("%d %s in %s", c.n, pick(c.real, "real", "simulated"), c.tenant.Slug))
	}
	return strings.Join(parts, ", ")
}

func (g *agentGroup) total() (n int) {
	for _, c := range g.children {
		n += c.n
	}
	return n
}

// privileges is a note with the one command that gives the probe what it
// lacks here; empty when it lacks nothing or does not run.
func (g *agentGroup) privileges(ctx context.Context) string {
	if !slices.ContainsFunc(g.children, func(c agentChild) bool { return c.real }) {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, g.binary, "check", "--json").Output()
	var report struct {
		Lacking []string `json:"lacking"`
		Grant   string   `json:"grant"`
	}
	if err != nil || json.Unmarshal(out, &report) != nil || report.Grant == "" {
		return ""
	}
	return fmt.Sprintf("\n  The probe is degraded: it lacks %s. Give it once, then start again:\n      %s\n", strings.Join(report.Lacking, ", "), report.Grant)
}

type tenantCount struct {
	slug string
	n    int
}

func (g *agentGroup) perTenant() []tenantCount {
	var out []tenantCount
	for _, c := range g.children {
		if len(out) > 0 && out[len(out)-1].slug == c.tenant.Slug {
			out[len(out)-1].n += c.n
			continue
		}
		out = append(out, tenantCount{c.tenant.Slug, c.n})
	}
	return out
}

// args returns the command lines that a child runs one after the other; the
// last one stays.
func (g *agentGroup) args(c agentChild) [][]string {
	common := []string{"--server", g.server, "--ca", g.caFile, "--token", c.tenant.agentToken}
	if !c.real {
		dir := filepath.Join(g.dir, "agents", "simulated-"+c.tenant.Slug)
		return [][]string{append([]string{"simulate", "--n", strconv.Itoa(c.n), "--dir", dir}, common...)}
	}
	dir := filepath.Join(g.dir, "agents", "local")
	run := []string{"run", "--dir", dir, "--server", g.server}
	if _, err := os.Stat(filepath.Join(dir, "identity.json")); err == nil {
		return [][]string{run}
	}
	return [][]string{append([]string{"enrol", "--dir", dir}, common...), run}
}

// runningAgents are started children.
type runningAgents struct {
	mu   sync.Mutex
	pid  []int // of each child, in their order
	done sync.WaitGroup
}

// start launches every child; they end when ctx does, or with this process.
func (g *agentGroup) start(ctx context.Context) (*runningAgents, error) {
	log, err := os.OpenFile(filepath.Join(g.dir, "agents.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(g.binary); err != nil {
		log.Close()
		return nil, fmt.Errorf("the agent is not beside the server: %w; run 'make build'", err)
	}
	r := &runningAgents{pid: make([]int, len(g.children))}
	up := make(chan error, len(g.children))
	for i := range g.children {
		r.done.Go(func() { g.run(ctx, i, log, r, up) })
	}
	go func() { r.done.Wait(); log.Close() }()
	for range g.children {
		if err := <-up; err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *runningAgents) wait() { r.done.Wait() }

func (r *runningAgents) pids() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]int{}, r.pid...)
}

// run keeps one child running. It tells up about the first start.
func (g *agentGroup) run(ctx context.Context, child int, log io.Writer, r *runningAgents, up chan<- error) {
	c := g.children[child]
	// The kernel ties a child's death signal to the thread that started it.
	runtime.LockOSThread()
	told := false
	tell := func(err error) {
		if !told {
			told = true
			up <- err
		}
	}
	for wait := time.Second; ctx.Err() == nil; wait = min(2*wait, 30*time.Second) {
		var tail bytes.Buffer
		var err error
		steps := g.args(c)
		for i, args := range steps {
			tail.Reset()
			cmd := exec.CommandContext(ctx, g.binary, args...)
			cmd.Stdout, cmd.Stderr = log, io.MultiWriter(log, &lastBytes{&tail, 2000})
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
			cmd.WaitDelay = 6 * time.Second
			if err = cmd.Start(); err != nil {
				break
			}
			last := i == len(steps)-1
			if last {
				r.mu.Lock()
				r.pid[child] = cmd.Process.Pid
				r.mu.Unlock()
				tell(nil)
			}
			if err = cmd.Wait(); err != nil || ctx.Err() != nil {
				break
			}
			if last {
				err = errors.New("it ended")
			}
		}
		if ctx.Err() != nil {
			break
		}
		err = fmt.Errorf("agent of %s: %w: %s", c.tenant.Slug, err, strings.TrimSpace(tail.String()))
		tell(err)
		select {
		case g.failed <- err:
		default:
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	tell(ctx.Err())
}

// lastBytes keeps the last n bytes written to it.
type lastBytes struct {
	b *bytes.Buffer
	n int
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.b.Write(p)
	if extra := l.b.Len() - l.n; extra > 0 {
		l.b.Next(extra)
	}
	return len(p), nil
}

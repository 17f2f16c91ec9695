package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// relay is the line between agents and a server. A test freezes one direction
// of it, cuts it, or lays it to another server.
type relay struct {
	addr string
	l    net.Listener

	mu       sync.Mutex
	moved    *sync.Cond
	target   string
	up, down bool // frozen: what comes is held
	over     bool
	conns    map[net.Conn]bool
	work     sync.WaitGroup
}

func newRelay(t *testing.T, target string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: l.Addr().String(), l: l, target: target, conns: map[net.Conn]bool{}}
	r.moved = sync.NewCond(&r.mu)
	r.work.Go(r.accept)
	t.Cleanup(func() {
		r.mu.Lock()
		r.over = true
		r.mu.Unlock()
		l.Close()
		r.cut()
		r.work.Wait()
	})
	return r
}

func (r *relay) accept() {
	for {
		from, err := r.l.Accept()
		if err != nil {
			return
		}
		r.work.Go(func() { r.connect(from) })
	}
}

func (r *relay) connect(from net.Conn) {
	defer from.Close()
	r.mu.Lock()
	target := r.target
	r.mu.Unlock()
	to, err := net.DialTimeout("tcp", target, 2*time.Second)
	if err != nil {
		return
	}
	defer to.Close()
	r.mu.Lock()
	if r.over {
		r.mu.Unlock()
		return
	}
	r.conns[from], r.conns[to] = true, true
	r.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { r.copy(to, from, &r.up) })
	both.Go(func() { r.copy(from, to, &r.down) })
	both.Wait()
	r.mu.Lock()
	delete(r.conns, from)
	delete(r.conns, to)
	r.mu.Unlock()
}

// copy passes bytes on while its direction is not frozen; either end's end is
// that of both.
func (r *relay) copy(to, from net.Conn, frozen *bool) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		r.mu.Lock()
		for *frozen && r.conns[from] {
			r.moved.Wait()
		}
		live := r.conns[from]
		r.mu.Unlock()
		if !live {
			return
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

// freeze holds what comes from the agent, or what goes to it.
func (r *relay) freeze(up, down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.up, r.down = up, down
	r.moved.Broadcast()
}

// cut breaks every connection, with what is held, and thaws.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		c.Close()
		delete(r.conns, c)
	}
	r.up, r.down = false, false
	r.moved.Broadcast()
}

// lay sends the connections to come to another server.
func (r *relay) lay(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
}

// simulatedNode is a process of telltale-agent simulate behind a relay.
type simulatedNode struct {
	t    *testing.T
	name string // of its only node
	args []string
	line *relay
	cmd  *exec.Cmd
	log  *lockedBuffer // of all its lives
}

// simulate starts simulated agents; more are further flags.
func simulate(t *testing.T, s *server, x tenant, prefix string, more ...string) *simulatedNode {
	t.Helper()
	n := &simulatedNode{t: t, name: prefix + "0001", line: newRelay(t, s.grpc), log: &lockedBuffer{}}
	n.args = append([]string{"simulate", "--n", "1", "--prefix", prefix, "--server", n.line.addr, "--ca", s.ca, "--token", x.EnrolToken,
		"--dir", filepath.Join(t.TempDir(), "nodes"), "--log-level", "debug"}, more...)
	t.Cleanup(n.kill)
	n.start()
	return n
}

func (n *simulatedNode) start() {
	n.t.Helper()
	n.cmd = exec.Command(filepath.Join(bin, "telltale-agent"), n.args...)
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
}

// kill ends it without warning. What its line held is gone.
func (n *simulatedNode) kill() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
	n.cmd = nil
	n.line.cut()
}

// begun counts how often its lives have started a task.
func (n *simulatedNode) begun(ticket string) int {
	return n.count("task started", ticket)
}

func (n *simulatedNode) count(what, ticket string) (count int) {
	hex := strings.ReplaceAll(ticket, "-", "")
	for line := range strings.Lines(n.log.String()) {
		if strings.Contains(line, what) && strings.Contains(line, hex) {
			count++
		}
	}
	return count
}

// ask is a call that starts a task, under way.
type ask struct {
	n      *simulatedNode
	ticket string
	done   chan struct{}
	status int    // of the call
	said   string // its answer, or why there is none
}

// startOn asks for a task on a node and waits until the run is in a state.
func startOn(t *testing.T, conn *pgx.Conn, x tenant, n *simulatedNode, seconds int, state string) *ask {
	t.Helper()
	a := &ask{n: n, done: make(chan struct{})}
	body := fmt.Sprintf(`{"kind":"trace_slow_io","node":%q,"arguments":{"duration_s":%d}}`, n.name, seconds)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	go func() {
		defer close(a.done)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, x.RESTURL+"/tasks", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("Authorization", "Bearer "+x.Tokens["diagnose"])
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			a.said = err.Error() // its server was killed
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		a.status, a.said = resp.StatusCode, string(b)
	}()
	poll(t, 20*time.Second, n.name+" "+state, func() bool {
		var is string
		err := conn.QueryRow(context.Background(), `select task_id::text, state from task_run where name = $1 order by task_id desc limit 1`, n.name).Scan(&a.ticket, &is)
		return err == nil && is == state
	})
	return a
}

// answered waits for the end of the call: nobody waits for ever.
func (a *ask) answered(t *testing.T) {
	t.Helper()
	select {
	case <-a.done:
	case <-time.After(30 * time.Second):
		t.Errorf("the call on %s hangs", a.n.name)
	}
}

// connected waits until so many of a tenant's nodes are online.
func connected(t *testing.T, x tenant, want int) {
	t.Helper()
	poll(t, 60*time.Second, "connected nodes of "+x.Slug, func() bool {
		online := 0
		for _, n := range nodes(t, x) {
			if n.Status == "online" {
				online++
			}
		}
		return online == want
	})
}

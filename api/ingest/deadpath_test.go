package ingest

import (
	"context"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/uplink"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// hole is a proxy that can swallow what passes, both ways, without closing
// anything: what a firewall that forgot the connection does.
type hole struct {
	lis     net.Listener
	swallow atomic.Bool // for connections open when it was set
	conns   sync.WaitGroup
	mu      sync.Mutex
	open    []net.Conn
}

func newHole(t *testing.T, to string) *hole {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	h := &hole{lis: lis}
	h.conns.Go(func() {
		for {
			a, err := lis.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				a.Close()
				continue
			}
			h.mu.Lock()
			h.open = append(h.open, a, b)
			h.mu.Unlock()
			dead := &atomic.Bool{}
			h.conns.Go(func() { h.copy(a, b, dead) })
			h.conns.Go(func() { h.copy(b, a, dead) })
		}
	})
	t.Cleanup(func() {
		lis.Close()
		h.mu.Lock()
		for _, c := range h.open {
			c.Close()
		}
		h.mu.Unlock()
		h.conns.Wait()
	})
	return h
}

func (h *hole) copy(to, from net.Conn, dead *atomic.Bool) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		if h.swallow.Load() {
			dead.Store(true)
		}
		if dead.Load() {
			if err != nil {
				return // the other side is told nothing
			}
			continue
		}
		if err == nil {
			_, err = to.Write(buf[:n])
		}
		if err != nil {
			if err == io.EOF {
				to.Close()
			}
			return
		}
	}
}

// A path that swallows everything is noticed within 45 s on both sides, and
// what was under way arrives once over the next connection.
func TestHalfOpenPath(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	h := newHole(t, r.addr)
	id, node := r.enrol(r.acme, "web-1")
	u := uplink.New(uplink.Config{Facts: facts("web-1"), Server: h.lis.Addr().String()}, id, testLog(t))
	r.run(u)
	u.Push(window(0))
	r.eventually("the first window arrives", func() bool { return u.Stats().Acked == 1 })
	h.swallow.Store(true)
	u.Push(window(1)) // marks the connection dead in the proxy
	began := time.Now()
	within(t, 45*time.Second, "both sides notice", func() bool {
		return u.Stats().Failures > 0 && r.srv.hub.get(r.acme.ID, node) == nil
	})
	t.Logf("noticed after %v", time.Since(began).Round(time.Second))
	h.swallow.Store(false)
	within(t, 30*time.Second, "it arrives after all", func() bool { return u.Stats().Acked == 2 })
	r.wantRows(node, 2)
	other.fine()
}

// Streams that end, however they do, leave nothing behind.
func TestStreamsLeaveNoGoroutines(t *testing.T) {
	r := newRig(t, Config{})
	id, _ := r.enrol(r.acme, "web-1")
	connect := func(n int, hello bool) {
		conn := r.dial(id.TLS())
		defer conn.Close()
		for range n {
			ctx, cancel := context.WithCancel(t.Context())
			stream, err := pb.NewAgentClient(conn).Report(ctx)
			must(t, err)
			if hello {
				must(t, stream.Send(&pb.AgentFrame{Kind: &pb.AgentFrame_Hello{Hello: &pb.Hello{NextSeq: 1, Facts: facts("web-1").Proto()}}}))
				_, err = stream.Recv()
				must(t, err)
			}
			cancel()
		}
	}
	connect(2, true)
	r.eventually("the warm-up is over", func() bool { return r.srv.Live() == 0 })
	before := runtime.NumGoroutine()
	connect(30, true)
	connect(30, false)
	r.eventually("nothing is left", func() bool { return r.srv.Live() == 0 && runtime.NumGoroutine() <= before+2 })
}

// A server that stops asks its agents to leave, and they lose nothing.
func TestStopDrainsStreams(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	a, node := r.agent(r.acme, "web-1")
	a.Push(window(0))
	r.eventually("it is served", func() bool { return a.Stats().Acked == 1 })
	addr, began := r.addr, time.Now()
	r.stop()
	if d := time.Since(began); d > 6*time.Second {
		t.Errorf("the stop took %v", d)
	}
	if st := r.srv.Stats(); st.Drained != 1 || st.Live != 0 {
		t.Errorf("server: %+v", st)
	}
	a.Push(window(1))
	r.start(Config{}, nil, addr)
	within(t, 30*time.Second, "the next server gets the rest", func() bool { return a.Stats().Acked == 2 })
	r.wantRows(node, 2)
}

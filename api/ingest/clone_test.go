package ingest

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/telltale-dev/telltale/agent/uplink"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants/fleet"
)

// hello opens a stream of an identity as an agent with that start.
func (r *rig) hello(id *uplink.Identity, f uplink.Facts, started int64, epoch, next uint64) *raw {
	r.t.Helper()
	c := r.open(id.TLS())
	c.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Hello{Hello: &pb.Hello{Facts: f.Proto(), StartedAtNs: started, Epoch: epoch, NextSeq: next}}})
	return c
}

// A copy of a container or of a machine shares machine and boot with the first
// one; only the start of its agent tells them apart.
func TestCloneOnOneBoot(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	id, node := r.enrol(r.acme, "web-1")
	first := uplink.New(uplink.Config{Facts: facts("web-1")}, id, testLog(t))
	r.run(first)
	first.Push(window(0))
	r.eventually("the first is served", func() bool { return first.Stats().Acked == 1 })
	c := r.hello(id, facts("web-1"), 5, 1, 2)
	r.eventually("the clone is parked", func() bool { return r.srv.Stats().Parked == 1 })
	first.Push(window(1))
	r.eventually("the first is still served", func() bool { return first.Stats().Acked == 2 })
	must(t, r.fleet.Flush(t.Context()))
	d, err := r.fleet.Get(t.Context(), limited(r.acme, node), node.String())
	must(t, err)
	if d.Status != fleet.Duplicate || len(d.Sessions) < 2 || !d.Sessions[0].Live || !d.Sessions[1].Live {
		t.Errorf("status %s, sessions %+v", d.Status, d.Sessions)
	}
	if reason, st := c.fails(); reason != "duplicate_identity" || st.Code() != codes.FailedPrecondition {
		t.Errorf("the clone ends with %q, %v", reason, st)
	}
	if st := first.Stats(); st.Connects != 1 || st.Failures != 0 {
		t.Errorf("the first one noticed: %+v", st)
	}
	r.wantRows(node, 2)
	other.fine()
}

// An agent that starts again is let in at once when its old stream has ended,
// and soon when that one is half open: nobody speaks there any more. Neither
// makes the node a duplicate.
func TestRestartIsNotHeldUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	id, node := r.enrol(r.acme, "web-1")
	old := r.hello(id, facts("web-1"), 1, 0, 1)
	if w := old.recv().GetWelcome(); w.GetEpoch() != 1 {
		t.Fatalf("welcome %v", w)
	}
	old.layout(testLayout)
	old.window(1, window(0))
	old.acked(1)
	must(t, old.stream.CloseSend())
	began := time.Now()
	half := r.hello(id, facts("web-1"), 2, 1, 2)
	if w := half.recv().GetWelcome(); w.GetEpoch() != 1 || w.GetHighSeq() != 1 || time.Since(began) > 5*time.Second {
		t.Fatalf("after a clean end: welcome %v after %v", w, time.Since(began))
	}
	half.window(2, window(1))
	half.acked(2)
	// From here on it is silent: its machine lost power.
	began = time.Now()
	again := r.hello(id, facts("web-1"), 3, 1, 1003)
	w := again.recv().GetWelcome()
	if w.GetEpoch() == 0 || time.Since(began) > parkTimeout {
		t.Fatalf("over a half-open stream: welcome %v after %v", w, time.Since(began))
	}
	again.window(w.HighSeq+1, window(2))
	again.acked(w.HighSeq + 1)
	must(t, r.fleet.Flush(t.Context()))
	d, err := r.fleet.Get(t.Context(), limited(r.acme, node), node.String())
	must(t, err)
	if d.Status != fleet.Online {
		t.Errorf("status %s, sessions %+v", d.Status, d.Sessions)
	}
	r.wantRows(node, 3)
	other.fine()
}

// A copy that was taken while the first one ran sends numbers which are taken:
// it gets an epoch of its own, and what is acknowledged to it is stored.
func TestTakenNumbersAreNotAcknowledged(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	id, node := r.enrol(r.acme, "web-1")
	first := r.hello(id, facts("web-1"), 1, 0, 1)
	first.recv()
	first.layout(testLayout)
	for i := range 5 {
		first.window(uint64(i+1), window(i))
	}
	first.acked(5)
	must(t, first.stream.CloseSend())
	if _, st := first.fails(); st.Code() != codes.OK && st.Message() != "EOF" {
		t.Errorf("ended with %v", st)
	}
	clone := r.hello(id, facts("web-1"), 2, 1, 3) // it believes that 1 and 2 are used
	w := clone.recv().GetWelcome()
	if w.GetEpoch() != 2 || w.GetHighSeq() != 0 {
		t.Fatalf("welcome %v", w)
	}
	clone.window(1, window(5))
	clone.acked(1)
	r.wantRows(node, 6)
	other.fine()
}

// Two machines with one identity on two replicas: one of them is served, the
// other one waits, and what was acknowledged to either is stored.
func TestClonesOnTwoReplicas(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	far := *r // another replica on the same database
	far.fleet = fleet.New(r.db, testRegistry(), fleet.Config{Replica: "far"}, testLog(t))
	far.start(Config{}, nil, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	defer loops.Wait()
	defer cancel()
	for _, f := range []*fleet.Service{r.fleet, far.fleet} {
		loops.Go(func() { _ = f.Run(ctx) })
	}
	id, node := r.enrol(r.acme, "web-1")
	twin := copyIdentity(t, id)
	a := uplink.New(uplink.Config{Facts: facts("web-1")}, id, testLog(t))
	stop := r.run(a)
	a.Push(window(0))
	r.eventually("the first is served", func() bool { return a.Stats().Acked == 1 })
	f := facts("web-1")
	f.MachineID = "m-clone"
	b := uplink.New(uplink.Config{Facts: f, Server: far.addr}, twin, testLog(t))
	r.run(b)
	n := 1
	push := func(us ...*uplink.Uplink) {
		for _, u := range us {
			u.Push(window(n))
			n++
		}
	}
	within(t, 40*time.Second, "the clone is refused while the first one speaks", func() bool {
		if n < 200 {
			push(a, b)
		}
		return b.Stats().Failures > 0
	})
	if st := a.Stats(); st.Connects != 1 || b.Stats().Connects != 0 || far.srv.Stats().Parked == 0 {
		t.Errorf("first %+v, clone %+v", st, b.Stats())
	}
	d, err := r.fleet.Get(t.Context(), limited(r.acme, node), node.String())
	must(t, err)
	if d.Status != fleet.Duplicate {
		t.Errorf("status %s, sessions %+v", d.Status, d.Sessions)
	}
	r.eventually("all of the first is stored", func() bool { return a.Stats().QueueItems == 0 })
	stop()
	within(t, 40*time.Second, "the other machine is served when the first one is gone", func() bool {
		return b.Stats().Connected && b.Stats().QueueItems == 0
	})
	acked := a.Stats().Acked + b.Stats().Acked
	if got := uint64(len(r.rows(node))); got != uint64(n) || acked != got {
		t.Errorf("%d windows pushed, %d acknowledged, %d stored", n, acked, got)
	}
	other.fine()
}

// copyIdentity copies an identity's directory, as a machine image does.
func copyIdentity(t *testing.T, id *uplink.Identity) *uplink.Identity {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "copy")
	must(t, os.CopyFS(dir, os.DirFS(id.Dir())))
	twin, err := uplink.OpenIdentity(dir)
	must(t, err)
	return twin
}

// A copy on another machine does not push out the first one, which happens to
// be silent for a while.
func TestSilentMachineIsNotPushedOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	id, node := r.enrol(r.acme, "web-1")
	first := r.hello(id, facts("web-1"), 1, 0, 1)
	first.recv()
	f := facts("web-1")
	f.BootID = "b-clone"
	clone := r.hello(id, f, 2, 1, 2)
	if reason, st := clone.fails(); reason != "duplicate_identity" || st.Code() != codes.FailedPrecondition {
		t.Errorf("the clone ends with %q, %v", reason, st)
	}
	first.layout(testLayout)
	first.window(1, window(0))
	first.acked(1)
	r.wantRows(node, 1)
	other.fine()
}

package ingest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/uplink"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

func TestStreamCommitsThenAcknowledges(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	a, na := r.agent(r.acme, "web-1")
	b, nb := r.agent(r.globex, "web-1")
	for i := range 20 {
		a.Push(window(i))
	}
	b.Push(window(0))
	a.SetCapabilities([]inspector.Capability{{Component: "network", Signal: "tcp", Level: inspector.Full, Source: inspector.SourceBPF}})
	r.eventually("all is acknowledged", func() bool { return a.Stats().Acked == 21 && b.Stats().Acked == 1 })
	r.wantRows(na, 20)
	r.wantRows(nb, 1)
	must(t, r.fleet.Flush(t.Context()))
	d, err := r.fleet.Get(t.Context(), limited(r.acme, na), na.String())
	must(t, err)
	if d.Status != fleet.Online || d.Seq != 21 || d.SkewMS == nil || len(d.Capabilities) != 1 || d.Capabilities[0].Source != "bpf" {
		t.Errorf("node: status %s, seq %d, skew %v, capabilities %v", d.Status, d.Seq, d.SkewMS, d.Capabilities)
	}
	if _, err := r.fleet.Get(t.Context(), admin(r.globex), na.String()); err == nil {
		t.Error("the other tenant sees the node")
	}
	if st := r.srv.Stats(); st.Live != 2 || st.Stored != 21 || st.LayoutAsks+st.Refused+st.Panics > 2 {
		t.Errorf("server: %+v", st)
	}
}

// The server dies between commit and acknowledgement: what was committed is
// not stored again by the next one, and nothing is missing.
func TestExactlyOnceOverServerCrash(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{DrainTimeout: 50 * time.Millisecond})
	a, na := r.agent(r.acme, "web-1")
	b, nb := r.agent(r.globex, "web-1")
	b.Push(window(0))
	r.eventually("the other tenant is served", func() bool { return b.Stats().Acked == 1 })
	for round := range 3 {
		// A crash between commit and ack: the batch is stored, nobody is told.
		var once sync.Once
		crashed := make(chan struct{})
		hang := make(chan struct{})
		r.srv.batch.committed = func() { once.Do(func() { close(crashed) }); <-hang }
		for i := range 10 {
			a.Push(window(round*10 + i))
		}
		<-crashed
		for _, st := range r.srv.hub.all() {
			st.cut("crash", errStopping)
		}
		r.eventually("the streams are gone", func() bool { return r.srv.hub.size() == 0 })
		addr := r.addr
		close(hang)
		r.stop()
		r.start(Config{DrainTimeout: 50 * time.Millisecond}, nil, addr)
		within(t, 30*time.Second, "all is acknowledged after the crash", func() bool { s := a.Stats(); return s.QueueItems == 0 && s.Acked == uint64(round*10+10) })
	}
	r.wantRows(na, 30)
	r.wantRows(nb, 1)
}

// The agent dies with its queue: after the restart its numbers are new ones,
// and what it sends is stored.
func TestExactlyOnceOverAgentRestart(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	id, node := r.enrol(r.acme, "web-1")
	_, nb := r.agent(r.globex, "web-1")
	n := 0
	for round := range 3 {
		u := uplink.New(uplink.Config{Facts: facts("web-1")}, id, testLog(t))
		stop := r.run(u)
		for range 5 {
			u.Push(window(n))
			n++
		}
		r.eventually("acknowledged", func() bool { return u.Stats().Acked == 5 })
		position := filepath.Join(id.Dir(), "position.json")
		reserved, err := os.ReadFile(position)
		must(t, err)
		stop()
		r.eventually("the server sees a clean end", func() bool {
			d, err := r.fleet.Get(t.Context(), limited(r.acme, node), node.String())
			must(t, err)
			return len(d.Sessions) > 0 && d.Sessions[0].CloseReason == "eof"
		})
		if round == 0 { // as a kill leaves it: a block of numbers is set aside
			must(t, os.WriteFile(position, reserved, 0o600))
		}
		if round == 1 { // a lost file means a new epoch
			d, err := r.fleet.Get(t.Context(), limited(r.acme, node), node.String())
			must(t, err)
			if d.Epoch != 1 || d.Seq < 1000 {
				t.Errorf("epoch %d, seq %d: the agent did not go on above its reservation", d.Epoch, d.Seq)
			}
			must(t, os.Remove(position))
		}
	}
	r.wantRows(node, n)
	d, err := r.fleet.Get(t.Context(), limited(r.acme, node), node.String())
	must(t, err)
	if d.Loss.MissingSeq != 0 {
		t.Errorf("%d reports count as missing: numbers set aside by a dead agent were never used", d.Loss.MissingSeq)
	}
	if d.Epoch != 2 || d.Seq != 5 {
		t.Errorf("epoch %d, seq %d, want 2 and 5", d.Epoch, d.Seq)
	}
	if len(r.rows(nb)) != 0 {
		t.Error("windows appeared at another tenant")
	}
}

// faulty fails Write for the first calls, as a database that is away does.
type faulty struct {
	*metrics.Service
	fail atomic.Int64
}

func (f *faulty) Write(ctx context.Context, batch []metrics.Checked) ([]metrics.Outcome, error) {
	if f.fail.Add(-1) >= 0 {
		return nil, fault.New(fault.Unavailable, "database_unavailable", "the database is away")
	}
	return f.Service.Write(ctx, batch)
}

func TestDatabaseAwayLosesNothing(t *testing.T) {
	t.Parallel()
	w := &faulty{}
	r := newRigWith(t, Config{WriteTimeout: 300 * time.Millisecond}, func(d *Deps) {
		w.Service = d.Windows.(*metrics.Service)
		d.Windows = w
	})
	a, na := r.agent(r.acme, "web-1")
	w.fail.Store(12) // longer than the write time-out: streams are closed, too
	for i := range 100 {
		a.Push(window(i))
	}
	within(t, 40*time.Second, "all is acknowledged", func() bool { return a.Stats().QueueItems == 0 && a.Stats().Acked == 100 })
	r.wantRows(na, 100)
	if r.srv.Stats().WriteErrors == 0 {
		t.Error("no failed write was counted")
	}
}

func TestOutageIsReportedAsLoss(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	id, node := r.enrol(r.acme, "web-1")
	u := uplink.New(uplink.Config{Facts: facts("web-1"), QueueItems: 10}, id, testLog(t))
	for i := range 25 { // before it connects: fifteen windows too many
		if ok := u.Push(window(i)); ok != (i < 10) {
			t.Fatalf("Push of window %d = %v", i, ok)
		}
	}
	r.run(u)
	r.eventually("the rest is acknowledged", func() bool { return u.Stats().QueueItems == 0 && u.Stats().Acked == 11 })
	if got := opened(r.rows(node)); len(got) != 10 || got[0] != 16 || got[9] != 25 {
		t.Errorf("stored windows: %v, want the youngest ten", got)
	}
	if u.Stats().Dropped["network"] != 15 {
		t.Errorf("dropped: %v", u.Stats().Dropped)
	}
	must(t, r.fleet.Flush(t.Context()))
	d, err := r.fleet.Get(t.Context(), limited(r.acme, node), node.String())
	must(t, err)
	if d.Loss.Agent["lost_windows_network"] != 15 || d.Loss.Agent["lost_to_unix_s_network"] <= d.Loss.Agent["lost_from_unix_s_network"] {
		t.Errorf("the node's loss reads %v", d.Loss.Agent)
	}
}

func TestManyAgents(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	const n = 200
	tokens := map[string]string{"acme": r.token(r.acme, n), "globex": r.token(r.globex, n)}
	root := t.TempDir()
	var wg sync.WaitGroup
	agents := make([]*uplink.Uplink, n)
	nodes := make([]tenants.NodeID, n)
	gate := make(chan struct{}, 16)
	for i := range n {
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			slug := []string{"acme", "globex"}[i%2]
			name := fmt.Sprintf("sim-%04d", i)
			id, err := uplink.Enrol(t.Context(), uplink.Enrolment{
				Server: r.addr, CA: r.caFile, Token: tokens[slug], Dir: filepath.Join(root, name), Name: name, Facts: facts(name),
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			nodes[i], _ = tenants.ParseNodeID(id.Node)
			agents[i] = uplink.New(uplink.Config{Facts: facts(name)}, id, testLog(t))
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, u := range agents {
		r.run(u)
		for w := range 5 {
			u.Push(window(w))
		}
	}
	within(t, 60*time.Second, "every agent's windows are acknowledged", func() bool {
		for _, u := range agents {
			if u.Stats().Acked < 5 {
				return false
			}
		}
		return true
	})
	st := r.srv.Stats()
	if st.Live != n || st.Stored != 5*n || st.Enrolled != n {
		t.Errorf("server: %+v", st)
	}
	if st.Batches > st.Batched/2 {
		t.Errorf("%d transactions for %d reports: batching does not work", st.Batches, st.Batched)
	}
	r.wantRows(nodes[0], 5)
	o, err := r.fleet.Overview(t.Context(), admin(r.globex))
	must(t, err)
	if o.Nodes != n/2 {
		t.Errorf("globex sees %d nodes, want %d", o.Nodes, n/2)
	}
}

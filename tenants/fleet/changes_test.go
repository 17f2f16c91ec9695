package fleet

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// changes answers kinds with what was and is, oldest first.
func (w *world) changes(scope tenants.Scope, nodes ...tenants.Scope) (out []string) {
	w.t.Helper()
	var ids []tenants.NodeID
	for _, n := range nodes {
		id, err := tenants.ParseNodeID(n.Principal.ID)
		if err != nil {
			w.t.Fatal(err)
		}
		ids = append(ids, id)
	}
	list, _, err := w.s.Changes(context.Background(), scope, ids, start, w.now())
	if err != nil {
		w.t.Fatal(err)
	}
	for i := len(list) - 1; i >= 0; i-- {
		c := list[i]
		out = append(out, c.Name+" "+string(c.Kind)+" "+c.Subject+" "+c.Before+" > "+c.After)
	}
	return out
}

func TestChangesOfStreams(t *testing.T) {
	w := newWorld(t)
	n, other := w.node(w.a, "n", "env", "prod"), w.node(w.b, "n")
	f := facts("m", "b1")
	f.StartedNS, f.ConfigDigest = start.UnixNano(), "c1"
	step := func(want ...string) {
		t.Helper()
		w.advance(time.Minute)
		before := len(w.changes(reader(w.a, tenants.Selector{}), n))
		w.close(n, w.open(n, f).ID)
		if diff := cmp.Diff(want, w.changes(reader(w.a, tenants.Selector{}), n)[before:], cmp.Transformer("empty", func(s []string) map[string]bool {
			m := map[string]bool{}
			for _, x := range s {
				m[x] = true
			}
			return m
		})); diff != "" {
			t.Error(diff)
		}
	}
	step() // the first stream of all
	step() // the same life again
	f.StartedNS += int64(time.Hour)
	step("n agent_started  2026-03-01T12:30:00Z > 2026-03-01T13:30:00Z")
	f.StartedNS, f.AgentVersion, f.ConfigDigest = f.StartedNS+int64(time.Hour), "2.1", "c2"
	step("n agent_started  2026-03-01T13:30:00Z > 2026-03-01T14:30:00Z", "n agent_upgraded  2.0 > 2.1", "n config  c1 > c2")
	f.BootID, f.Kernel, f.ConfigDigest, f.StartedNS = "b2", "6.19", "", 0
	step("n boot  b1 > b2", "n kernel  6.18 > 6.19", "n agent_started  2026-03-01T14:30:00Z > ")
	if got := w.changes(reader(w.b, tenants.Selector{}), n, other); len(got) != 0 {
		t.Errorf("another tenant's: %v", got)
	}
	if got := w.changes(reader(w.a, tenants.Selector{Labels: map[string]string{"env": "test"}}), n); len(got) != 0 {
		t.Errorf("outside the selector: %v", got)
	}
	if _, _, err := w.s.Changes(context.Background(), n, nil, start, w.now()); !fault.Is(err, fault.Denied) {
		t.Errorf("without telltale:read: %v", err)
	}
	for i := range keepOfKind + 5 {
		f.StartedNS = int64(i + 1)
		w.open(n, f)
	}
	var kept int
	if err := w.conn.QueryRow(context.Background(), `select count(*) from node_change`).Scan(&kept); err != nil || kept != keepOfKind+4 { // and two versions or configurations, a boot, a kernel
		t.Errorf("%d kept, %v", kept, err)
	}
	w.advance(31 * 24 * time.Hour)
	f.StartedNS = 7e9
	w.open(n, f)
	if err := w.conn.QueryRow(context.Background(), `select count(*) from node_change`).Scan(&kept); err != nil || kept != 1 {
		t.Errorf("%d kept past their time, %v", kept, err)
	}
}

func TestChangesOfModulesAndSignals(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	n := w.node(w.a, "n")
	set := func(off ...string) {
		t.Helper()
		w.advance(time.Second)
		if _, err := w.s.SetModules(ctx, admin(w.a, tenants.Selector{}), "n", off); err != nil {
			t.Fatal(err)
		}
	}
	level := func(l inspector.Level, reason string) {
		t.Helper()
		w.advance(time.Second)
		if err := w.s.RecordCapabilities(ctx, n, []inspector.Capability{{Component: "network", Signal: "tcp", Level: l, Reason: reason}}); err != nil {
			t.Fatal(err)
		}
	}
	set("network")
	set("network")
	set()
	set()
	level(inspector.Full, "")
	level(inspector.Full, "")
	level(inspector.Degraded, "no BTF")
	level(inspector.Degraded, "another reason")
	level(inspector.Full, "")
	want := []string{"n module_off network  > token ci", "n module_on network  > token ci", "n capability network.tcp full > degraded: no BTF", "n capability network.tcp degraded > full"}
	if diff := cmp.Diff(want, w.changes(reader(w.a, tenants.Selector{}), n)); diff != "" {
		t.Error(diff)
	}
}

// A signal that flaps pushes no start out, neither of what is kept nor of an
// answer, and what does not fit is told.
func TestFlappingHidesNoChange(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	n, m, other := w.node(w.a, "n", "env", "prod"), w.node(w.a, "m", "env", "prod"), w.node(w.b, "n")
	ids := func(list ...tenants.Scope) (out []tenants.NodeID) {
		for _, x := range list {
			id, err := tenants.ParseNodeID(x.Principal.ID)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, id)
		}
		return out
	}
	kinds := func(scope tenants.Scope, list ...tenants.Scope) (out map[ChangeKind]int, more bool) {
		got, more, err := w.s.Changes(ctx, scope, ids(list...), start, w.now())
		if err != nil {
			t.Fatal(err)
		}
		out = map[ChangeKind]int{}
		for _, c := range got {
			out[c.Kind]++
		}
		return out, more
	}
	f := facts("m", "b1")
	for i := range 2 {
		f.StartedNS = int64(i + 1)
		w.close(n, w.open(n, f).ID)
	}
	all := reader(w.a, tenants.Selector{})
	if got, more := kinds(all, n); more || got[AgentStarted] != 1 {
		t.Errorf("one start: %v, more %v", got, more)
	}
	flap := func(node tenants.Scope, times int) {
		for i := range times {
			w.advance(time.Second)
			if err := w.s.RecordCapabilities(ctx, node, []inspector.Capability{{Component: "network", Signal: "tcp", Level: []inspector.Level{inspector.Full, inspector.Off}[i%2]}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	flap(n, 60)
	flap(m, 60)
	flap(other, 3)
	if got, more := kinds(reader(w.a, tenants.Selector{Labels: map[string]string{"env": "prod"}}), n, m, other); !more || got[AgentStarted] != 1 || got[LevelChanged] != maxLevelRows {
		t.Errorf("an answer: %v, more %v", got, more)
	}
	if got, more := kinds(all, m); more || got[LevelChanged] != 59 {
		t.Errorf("an answer that holds all: %v, more %v", got, more)
	}
	flap(n, 200)
	if got, more := kinds(all, n); !more || got[AgentStarted] != 1 {
		t.Errorf("after a storm: %v, more %v", got, more)
	}
	var kept int
	if err := w.conn.QueryRow(ctx, `select count(*) from node_change where node_id = $1`, [16]byte(ids(n)[0])).Scan(&kept); err != nil || kept > keepLevels+1 {
		t.Errorf("%d kept, %v", kept, err)
	}
}

package fleet

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func TestStatus(t *testing.T) {
	w := newWorld(t)
	w.open(w.node(w.b, "elsewhere"), facts("m", "b"))
	n := w.node(w.a, "n1")
	is := func(when string, want Status) {
		t.Helper()
		if got := w.get(n); got.Status != want {
			t.Errorf("%s: %s, want %s", when, got.Status, want)
		}
	}
	is("enrolled", Never)
	o := w.open(n, facts("m1", "b1"))
	is("stream open", Online)
	w.advance(46 * time.Second)
	is("silent for 46 s", Stale)
	w.seen(n, o.ID, 0)
	is("seen", Online)
	w.seen(n, o.ID, 2*time.Hour)
	is("clock two hours off", Quarantined)
	w.seen(n, o.ID, 0)
	w.advance(OfflineAfter)
	is("silent for five minutes", Offline)
	w.close(n, o.ID)
	is("stream closed", Offline)
	w.exec(`update node set revoked_at = $1 where node_id = $2`, w.now(), [16]byte(mustID(n)))
	is("revoked", Revoked)
}

func mustID(n tenants.Scope) tenants.NodeID {
	id, err := tenants.ParseNodeID(n.Principal.ID)
	if err != nil {
		panic(err)
	}
	return id
}

// TestDuplicate tells a cloned identity from a reboot.
func TestDuplicate(t *testing.T) {
	t.Run("reboot with a half-open stream", func(t *testing.T) {
		w := newWorld(t)
		n := w.node(w.a, "n1")
		old := w.open(n, facts("m1", "b1"))
		w.advance(10 * time.Second)
		w.seen(n, old.ID, 0)
		w.advance(10 * time.Second)
		o := w.open(n, facts("m1", "b2"))
		w.advance(10 * time.Second)
		w.seen(n, o.ID, 0)
		if d := w.get(n); d.Status != Online || o.Duplicate || d.BootID != "b2" {
			t.Errorf("%s, duplicate %v, boot %s", d.Status, o.Duplicate, d.BootID)
		}
	})
	t.Run("agent restart on one boot", func(t *testing.T) {
		w := newWorld(t)
		n := w.node(w.a, "n1")
		one := w.open(n, facts("m1", "b1"))
		w.advance(time.Second)
		two := w.open(n, facts("m1", "b1"))
		w.advance(time.Second)
		w.seen(n, one.ID, 0)
		w.seen(n, two.ID, 0)
		if d := w.get(n); d.Status != Online || two.Duplicate {
			t.Errorf("%s", d.Status)
		}
	})
	t.Run("two agents on one boot", func(t *testing.T) {
		w := newWorld(t)
		n := w.node(w.a, "n1")
		w.open(w.node(w.b, "n1"), facts("m1", "b1"))
		life := func(ns int64) SessionFacts { f := facts("m1", "b1"); f.StartedNS = ns; return f }
		one := w.open(n, life(1))
		w.advance(time.Second)
		w.seen(n, one.ID, 0)
		two := w.open(n, life(2))
		rivals := func(want Rivals) {
			t.Helper()
			if got, err := w.s.Rivals(context.Background(), n, two.ID); err != nil || got != want {
				t.Errorf("rivals %+v %v, want %+v", got, err, want)
			}
		}
		if one.Rival || !two.Rival || !two.Changed || two.Duplicate {
			t.Errorf("%+v, %+v", one, two)
		}
		rivals(Rivals{Open: true, Live: true})
		w.advance(time.Second)
		if d := w.get(n); d.Status != Online { // a restart over a half-open stream looks like this
			t.Errorf("while the older one is silent: %s", d.Status)
		}
		w.s.Seen(n, one.ID, Sighting{})
		rivals(Rivals{Open: true, Live: true, Spoke: true}) // before it is written
		if third := w.open(n, life(1)); third.Rival || !third.Duplicate {
			t.Errorf("a waiting stream holds another one back, or the first life did not return: %+v", third)
		}
		w.seen(n, one.ID, 0)
		if d := w.get(n); d.Status != Duplicate || len(d.Sessions) != 3 {
			t.Errorf("%s with %+v", d.Status, d.Sessions)
		}
		w.s.replica = "r2"
		rivals(Rivals{Open: true, Live: true, Spoke: true, Far: true})
		w.advance(tenants.NodeStaleAfter + time.Second)
		rivals(Rivals{Open: true, Spoke: true, Far: true})
		w.close(n, one.ID)
		rivals(Rivals{})
	})
	t.Run("two machines at once", func(t *testing.T) {
		w := newWorld(t)
		n := w.node(w.a, "n1")
		one := w.open(n, facts("m1", "b1"))
		w.advance(time.Second)
		two := w.open(n, facts("m2", "b2"))
		w.advance(5 * time.Second)
		w.seen(n, two.ID, 0)
		if d := w.get(n); d.Status != Online {
			t.Errorf("before the older stream speaks: %s", d.Status)
		}
		w.seen(n, one.ID, 0)
		d := w.get(n)
		if d.Status != Duplicate || len(d.Sessions) != 2 || !d.Sessions[0].Live || !d.Sessions[1].Live {
			t.Errorf("%s with %+v", d.Status, d.Sessions)
		}
		w.close(n, two.ID)
		w.advance(OfflineAfter + time.Second)
		w.seen(n, one.ID, 0)
		if d := w.get(n); d.Status != Online || d.BootID != "b1" {
			t.Errorf("after the clone is gone: %s, boot %q", d.Status, d.BootID)
		}
	})
	t.Run("two machines that push each other out", func(t *testing.T) {
		w := newWorld(t)
		n := w.node(w.a, "n1")
		for i, f := range []SessionFacts{facts("m1", "b1"), facts("m1", "b2"), facts("m1", "b1")} {
			o := w.open(n, f)
			w.advance(time.Second)
			if i < 2 {
				w.close(n, o.ID)
			}
			if o.Duplicate != (i == 2) {
				t.Errorf("stream %d: duplicate %v", i, o.Duplicate)
			}
		}
		if d := w.get(n); d.Status != Duplicate {
			t.Errorf("%s", d.Status)
		}
	})
}

func TestGet(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	n, twin := w.node(w.a, "n1", "env", "prod", "zone", "1"), w.node(w.a, "n2", "env", "test")
	w.node(w.b, "n1", "env", "prod")
	w.exec(`update node set machine_id = 'same' where tenant_id = $1`, [16]byte(w.a))
	o := w.open(n, facts("same", "b1"))
	w.seen(n, o.ID, 49*time.Second)
	caps := []inspector.Capability{
		{Component: "network", Signal: "tcp", Level: inspector.Full, Source: inspector.SourceBPF},
		{Component: "network", Signal: "drops", Level: inspector.Off, Reason: "no \u202ePERM"},
	}
	if err := w.s.RecordCapabilities(ctx, n, caps); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := w.s.Quarantine(ctx, n, "bad_layout", "series 5: \xff\x00", 2); err != nil {
			t.Fatal(err)
		}
	}
	w.exec(`insert into win_quarantine values ($1, $2, 'too_old', 7, $3, $3, 'x')`, [16]byte(w.a), [16]byte(mustID(n)), start)
	w.exec(`insert into node_head values ($1, $2, 3, 44, $3, $4, '{9,null}', 5, 6, 7)`, [16]byte(w.a), [16]byte(mustID(n)), start, w.s.heads.set)
	d, err := w.s.Get(ctx, reader(w.a, tenants.Selector{}), "n1")
	if err != nil {
		t.Fatal(err)
	}
	skew, days := int64(49000), 2.0
	seen, expires := start, start.Add(48*time.Hour)
	want := NodeDetail{
		Node: Node{Node: n.Principal.ID, Name: "n1", Status: Online, Labels: map[string]string{"env": "prod", "zone": "1"}, LastSeen: &seen, FreshnessS: new(float64),
			AgentVersion: "2.0", Kernel: "6.18", OS: "linux", Arch: "amd64", SkewMS: &skew, SkewMarked: true, SameMachine: true, EnrolledAt: start},
		MachineID: "same", BootID: "b1", SameAs: []tenants.NodeRef{{Node: twin.Principal.ID, Name: "n2"}}, Epoch: 3, Seq: 44, LastDataAt: &seen,
		Headlines: []HeadlineValue{{"network.active", "count", "last", 9}},
		Capabilities: []Capability{
			{"network", "drops", "off", "", `no \u202ePERM`, start}, {"network", "tcp", "full", "bpf", "", start}},
		ModulesOff: []ModuleOff{},
		Quarantine: []QuarantineRow{{"bad_layout", 6, start, start, "series 5: \uFFFD\\xff\\u0000"}, {"too_old", 7, start, start, "x"}},
		Loss:       Loss{Agent: map[string]uint64{"queue_dropped": 3}, MissingSeq: 5, PastRetention: 6, RefusedPoints: 7},
		Sessions: []Session{{ID: o.ID.String(), Live: true, Replica: "r1", Remote: "10.0.0.1:5", MachineID: "same", BootID: "b1", AgentVersion: "2.0",
			ConnectedAt: start, LastSeen: start, SkewMS: &skew}},
		CertExpires: &expires, CertDays: &days,
	}
	if d.Quarantine[0].Reason == "too_old" { // same moment: either order
		d.Quarantine[0], d.Quarantine[1] = d.Quarantine[1], d.Quarantine[0]
	}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Errorf("detail (-want +got):\n%s", diff)
	}
	prod := reader(w.a, tenants.Selector{Labels: map[string]string{"env": "prod"}})
	if d, err := w.s.Get(ctx, prod, "n1"); err != nil || d.SameMachine || len(d.SameAs) != 0 {
		t.Errorf("a twin outside the selector shows: %+v %v", d.SameAs, err)
	}
	w.advance(2 * time.Minute)
	if d := w.get(n); len(d.Headlines) != 0 {
		t.Errorf("old headline values are shown as the present: %+v", d.Headlines)
	}
}

func TestResolve(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	one, two := w.node(w.a, "mac", "env", "prod"), w.node(w.a, "mac", "env", "test")
	other := w.node(w.b, "mac")
	all, prod := reader(w.a, tenants.Selector{}), reader(w.a, tenants.Selector{Labels: map[string]string{"env": "prod"}})
	_, err := w.s.Get(ctx, all, "mac")
	if f := fault.Of(err); f == nil || f.Reason != "ambiguous_node" || !strings.Contains(f.Msg, one.Principal.ID) || !strings.Contains(f.Msg, two.Principal.ID) || strings.Contains(f.Msg, other.Principal.ID) {
		t.Errorf("ambiguous: %v", err)
	}
	if d, err := w.s.Get(ctx, prod, "mac"); err != nil || d.Node.Node != one.Principal.ID {
		t.Errorf("unique within the selector: %+v %v", d.Node, err)
	}
	w.exec(`update node set revoked_at = $1 where node_id = $2`, start, [16]byte(mustID(one)))
	if d, err := w.s.Get(ctx, all, "mac"); err != nil || d.Node.Node != two.Principal.ID {
		t.Errorf("a revoked node does not yield its name: %v", err)
	}
	for _, tt := range []struct {
		name  string
		scope tenants.Scope
		ref   string
		want  fault.Kind
	}{
		{"outside the selector by id", prod, two.Principal.ID, fault.NotFound},
		{"another tenant's", all, other.Principal.ID, fault.NotFound},
		{"unknown", all, "nobody", fault.NotFound},
		{"empty", all, "", fault.Invalid},
		{"long", all, strings.Repeat("x", 256), fault.Invalid},
		{"zero byte", all, "a\x00b", fault.NotFound},
		{"bad bytes", all, "\xff", fault.NotFound},
		{"no scope", tenants.Scope{}, "mac", fault.Unauthorized},
		{"payloads alone", tenants.Scope{Tenant: w.a, Granted: tenants.Payloads}, "mac", fault.Denied},
	} {
		for call, err := range map[string]error{"Get": second(w.s.Get(ctx, tt.scope, tt.ref)), "Capabilities": second(w.s.Capabilities(ctx, tt.scope, tt.ref))} {
			if !fault.Is(err, tt.want) {
				t.Errorf("%s, %s: %v, want %v", tt.name, call, err, tt.want)
			}
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestCapabilitiesKeepTheirSince(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	n, other := w.node(w.a, "n1"), w.node(w.b, "n1")
	row := func(signal string, l inspector.Level) inspector.Capability {
		return inspector.Capability{Component: "network", Signal: signal, Level: l, Source: inspector.SourceBPF, Reason: map[bool]string{true: "why"}[l != inspector.Full]}
	}
	record := func(n tenants.Scope, caps ...inspector.Capability) {
		t.Helper()
		if err := w.s.RecordCapabilities(ctx, n, caps); err != nil {
			t.Fatal(err)
		}
	}
	record(other, row("tcp", inspector.Full), row("gone", inspector.Off))
	record(n, row("tcp", inspector.Full), row("drops", inspector.Full), row("gone", inspector.Full))
	w.advance(time.Hour)
	record(n, row("tcp", inspector.Full), row("drops", inspector.Degraded))
	c, err := w.s.Capabilities(ctx, reader(w.a, tenants.Selector{}), "n1")
	want := []Capability{{"network", "drops", "degraded", "bpf", "why", start.Add(time.Hour)}, {"network", "tcp", "full", "bpf", "", start}}
	if diff := cmp.Diff(want, c.Capabilities); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if c, _ := w.s.Capabilities(ctx, reader(w.b, tenants.Selector{}), "n1"); len(c.Capabilities) != 2 {
		t.Errorf("the other tenant's changed: %+v", c.Capabilities)
	}
	for _, bad := range [][]inspector.Capability{{row("x", "great")}, {row("x", inspector.Full), row("x", inspector.Off)}, {{Level: inspector.Full}}, make([]inspector.Capability, 501)} {
		if err := w.s.RecordCapabilities(ctx, n, bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%d rows: %v", len(bad), err)
		}
	}
}

func TestSetModules(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	n, hidden, foreign := w.node(w.a, "n1", "env", "prod"), w.node(w.a, "n2"), w.node(w.b, "n1")
	prod := admin(w.a, tenants.Selector{Labels: map[string]string{"env": "prod"}})
	if _, err := w.s.SetModules(ctx, reader(w.a, tenants.Selector{}), "n1", []string{"network"}); !fault.Is(err, fault.Denied) {
		t.Errorf("a reader: %v", err)
	}
	if _, err := w.s.SetModules(ctx, prod, "n1", []string{"nonsense"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("unknown module: %v", err)
	}
	for _, ref := range []string{hidden.Principal.ID, foreign.Principal.ID} {
		if _, err := w.s.SetModules(ctx, prod, ref, nil); !fault.Is(err, fault.NotFound) {
			t.Errorf("out of reach: %v", err)
		}
	}
	off, err := w.s.SetModules(ctx, prod, "n1", []string{"network", "network"})
	if diff := cmp.Diff([]ModuleOff{{"network", "token ci", start}}, off); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if o := w.open(n, facts("m", "b")); !cmp.Equal(o.Off, []string{"network"}) {
		t.Errorf("a new stream hears %v", o.Off)
	}
	if got, err := w.s.DisabledModules(ctx, n); err != nil || !cmp.Equal(got, []string{"network"}) {
		t.Errorf("%v %v", got, err)
	}
	// A replica hears the state of its live nodes, whenever it was switched.
	live := map[tenants.TenantID][]tenants.NodeID{w.a: {mustID(n)}, w.b: nil}
	if sw, err := w.s.SwitchedOff(ctx, live); err != nil || !cmp.Equal(sw, map[tenants.NodeID][]string{mustID(n): {"network"}}) {
		t.Errorf("switched: %+v %v", sw, err)
	}
	if sw, err := w.s.SwitchedOff(ctx, map[tenants.TenantID][]tenants.NodeID{w.b: {mustID(n)}}); err != nil || len(sw) != 0 {
		t.Errorf("another tenant hears %+v %v", sw, err)
	}
	w.advance(time.Minute)
	if off, err := w.s.SetModules(ctx, prod, "n1", nil); err != nil || len(off) != 0 {
		t.Errorf("lifted: %v %v", off, err)
	}
	if sw, err := w.s.SwitchedOff(ctx, live); err != nil || len(sw) != 0 {
		t.Errorf("lifted: %+v %v", sw, err)
	}
}

// TestStreamsTakeTurns opens and closes many streams of one node at once:
// the node stays one row, whose stream is an open one.
func TestStreamsTakeTurns(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	n := w.node(w.a, "n1")
	var g errgroup.Group
	for i := range 8 {
		g.Go(func() error {
			o, err := w.s.SessionOpened(ctx, n, facts("m", "b"))
			if err != nil || i == 0 {
				return err
			}
			return w.s.SessionClosed(ctx, n, o.ID, "replaced")
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	p, err := w.s.List(ctx, reader(w.a, tenants.Selector{}), ListQuery{})
	if err != nil || len(p.Nodes) != 1 || p.Nodes[0].Status != Online {
		t.Errorf("%+v %v", p.Nodes, err)
	}
}

// TestRunWritesTheLastSighting: what was seen before the end is not lost.
func TestRunWritesTheLastSighting(t *testing.T) {
	w := newWorld(t)
	n := w.node(w.a, "n1")
	o := w.open(n, facts("m", "b"))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.s.Run(ctx) }()
	w.advance(30 * time.Second)
	w.s.Seen(n, o.ID, Sighting{})
	w.s.Seen(reader(w.a, tenants.Selector{}), o.ID, Sighting{}) // no node: ignored
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if d := w.get(n); !d.LastSeen.Equal(w.now()) || w.s.Dropped() != 0 {
		t.Errorf("last seen %v, want %v", d.LastSeen, w.now())
	}
}

// TestFlushKeepsWhatItCannotWrite: the database is away for a moment.
func TestFlushKeepsWhatItCannotWrite(t *testing.T) {
	w := newWorld(t)
	n := w.node(w.a, "n1")
	o := w.open(n, facts("m", "b"))
	skew := 5 * time.Second
	w.advance(30 * time.Second)
	w.s.Seen(n, o.ID, Sighting{Skew: &skew})
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if err := w.s.Flush(gone); err == nil {
		t.Fatal("a flush with a dead context succeeded")
	}
	if err := w.s.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if d := w.get(n); !d.LastSeen.Equal(w.now()) || d.SkewMS == nil || *d.SkewMS != 5000 {
		t.Errorf("last seen %v, skew %v", d.LastSeen, d.SkewMS)
	}
}

// TestIdBeforeName: an id in any spelling is the node that bears it, revoked
// or not, and never a node whose name looks like it.
func TestIdBeforeName(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	n := w.node(w.a, "n1")
	id := n.Principal.ID
	upper := strings.ToUpper(id)
	impostor := w.node(w.a, upper)
	w.node(w.b, upper)
	w.exec(`update node set revoked_at = $2 where node_id = $1`, [16]byte(mustID(n)), start)
	for _, ref := range []string{id, upper} {
		d, err := w.s.Get(ctx, reader(w.a, tenants.Selector{}), ref)
		if err != nil || d.Node.Node != id || d.Status != Revoked {
			t.Errorf("%s: %s %s %v", ref, d.Node.Node, d.Status, err)
		}
	}
	// Who cannot see that node gets the one with the name.
	d, err := w.s.Get(ctx, reader(w.a, tenants.Selector{IDs: []tenants.NodeID{mustID(impostor)}}), upper)
	if err != nil || d.Node.Node != impostor.Principal.ID {
		t.Errorf("by name: %s %v", d.Node.Node, err)
	}
}

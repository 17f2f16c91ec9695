package fleet

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

// forget makes the next question read again.
func (r *Running) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.seen {
		e.until = time.Time{}
	}
}

func TestRunning(t *testing.T) {
	w := newWorld(t)
	reg := testRegistry()
	for _, name := range []string{"process", "storage"} {
		reg.Add(inspector.Component{Name: name, Title: name, Signals: []string{"io"}})
	}
	r := NewRunning(w.s.db, reg)
	level := func(n tenants.Scope, component string, l inspector.Level) {
		t.Helper()
		if err := w.s.RecordCapabilities(t.Context(), n, []inspector.Capability{{Component: component, Signal: map[bool]string{true: "tcp", false: "io"}[component == "network"], Level: l, Source: inspector.SourceProc}}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(tenant tenants.TenantID, known bool, list ...string) {
		t.Helper()
		r.forget()
		got, k, err := r.Components(t.Context(), tenant)
		if err != nil || k != known || !slices.Equal(got, list) {
			t.Errorf("got %v, known %t (%v), want %v, %t", got, k, err, list, known)
		}
	}
	want(w.a, false)
	n1 := w.node(w.a, "one")
	want(w.a, false) // enrolled, but it has said nothing yet
	level(n1, "network", inspector.Off)
	want(w.a, true)
	n2, other := w.node(w.a, "two"), w.node(w.b, "theirs")
	level(n2, "network", inspector.Degraded)
	level(other, "storage", inspector.Full)
	want(w.a, true, "network")
	want(w.b, true, "storage")
	level(w.node(w.a, "three"), "process", inspector.Full)
	want(w.a, true, "network", "process")
	if err := w.s.RecordCapabilities(t.Context(), w.node(w.a, "four"), []inspector.Capability{{Component: "storage", Signal: "io", Level: inspector.Full, Source: inspector.SourceBPF}}); err != nil {
		t.Fatal(err)
	}
	w.exec(`update node set revoked_at = $1 where name in ('two', 'four')`, start)
	want(w.a, true, "process")
	w.exec(`update node set revoked_at = $1 where tenant_id = $2`, start, [16]byte(w.a))
	want(w.a, false)
	want(w.b, true, "storage")
	want(tenants.NewTenantID(), false)
}

// TestRunningIsCheap: many callers at once cost one look, an answer is kept,
// and the last one stays while the database is away.
func TestRunningIsCheap(t *testing.T) {
	w := newWorld(t)
	r := NewRunning(w.s.db, testRegistry())
	n := w.node(w.a, "one")
	if err := w.s.RecordCapabilities(t.Context(), n, []inspector.Capability{{Component: "network", Signal: "tcp", Level: inspector.Full, Source: inspector.SourceBPF}}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if list, known, err := r.Components(t.Context(), w.a); err != nil || !known || len(list) != 1 {
				t.Errorf("%v %t %v", list, known, err)
			}
		})
	}
	wg.Wait()
	w.exec(`delete from capability`)
	if list, _, err := r.Components(t.Context(), w.a); err != nil || len(list) != 1 {
		t.Errorf("within its life the answer is kept: %v %v", list, err)
	}
	w.exec(`alter table capability rename to elsewhere`)
	r.forget()
	if list, known, err := r.Components(t.Context(), w.a); err != nil || !known || len(list) != 1 {
		t.Errorf("the last answer: %v %t %v", list, known, err)
	}
	if _, _, err := r.Components(t.Context(), w.b); err == nil {
		t.Error("a tenant of which nothing was ever known has no answer")
	}
	w.exec(`alter table elsewhere rename to capability`)
	for range maxRunning + 10 {
		r.mu.Lock()
		r.entry(tenants.NewTenantID())
		r.mu.Unlock()
	}
	if len(r.seen) != maxRunning {
		t.Errorf("%d tenants remembered", len(r.seen))
	}
}

// BenchmarkRunning looks at a fleet of 10,000 nodes with 30 signals each, one
// component of which is off everywhere: the dearest case.
func BenchmarkRunning(b *testing.B) {
	w := newWorld(b)
	w.exec(`insert into node (tenant_id, node_id, name, machine_id, kernel, agent_version, enrol_token, enrolled_at)
	  select $1, gen_random_uuid(), 'n' || i, 'm' || i, '6.1', '1.0', 't', $2 from generate_series(1, 10000) i`, [16]byte(w.a), start)
	w.exec(`insert into capability (tenant_id, node_id, component, signal, level, source, reason, since)
	  select $1, node_id, c, s::text, case when c = 'storage' then 'off' else 'full' end, 'bpf', '', $2 from node, unnest(array['network', 'process', 'storage']) c, generate_series(1, 10) s where tenant_id = $1`, [16]byte(w.a), start)
	w.exec(`analyze`)
	reg := testRegistry()
	for _, name := range []string{"process", "storage"} {
		reg.Add(inspector.Component{Name: name, Title: name})
	}
	r := NewRunning(w.s.db, reg)
	for b.Loop() {
		if list, known, err := r.look(context.Background(), w.a); err != nil || !known || len(list) != 2 {
			b.Fatal(list, known, err)
		}
	}
}

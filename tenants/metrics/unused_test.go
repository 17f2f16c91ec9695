package metrics

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// TestUnusedLayoutsAreRemoved: a layout in use stays, however long, one that
// nobody uses goes after a day, and a replica that remembers it asks again.
func TestUnusedLayoutsAreRemoved(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	other := w.service() // another replica
	used, unused := w.node(w.a, "used"), w.node(w.b, "unused")
	l := netLayout()
	seq := uint64(0)
	send := func() {
		t.Helper()
		seq++
		w.write(w.check(used, report(1, seq, l, w.now(), netValues(1))))
	}
	for _, n := range []tenants.Scope{used, unused} {
		w.layout(n, l)
		w.open(n)
	}
	if _, ok, err := other.findShape(ctx, shapeKey{w.b, l.Hash}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	left := func(tenant tenants.TenantID) int64 {
		return w.count(`select count(*) from layout where tenant_id = $1`, uid(tenant))
	}
	for range 30 { // hours
		w.advance(time.Hour)
		send()
		for _, s := range []*Service{w.s, other} {
			if err := s.maintain(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	if a, b := left(w.a), left(w.b); a != 1 || b != 0 {
		t.Errorf("%d of the used and %d of the unused layout are left", a, b)
	}
	for _, s := range []*Service{w.s, other} {
		_, err := s.Check(ctx, unused, report(1, 1, l, w.now(), netValues(1)), 0)
		if fault.Of(err) == nil || fault.Of(err).Reason != "unknown_layout" {
			t.Errorf("a removed layout: %v", err)
		}
	}
	w.layout(unused, l)
	w.write(w.check(unused, report(1, 1, l, w.now(), netValues(1))))
	for _, tn := range []tenants.TenantID{w.a, w.b} {
		if m := metric(t, w.summary(reader(tn, tenants.Selector{}), SummaryQuery{}), "network.opens"); m.Sum == nil || *m.Sum != 10 {
			t.Errorf("what is answered: %+v", m.Stats)
		}
	}
}

// TestLayoutBytesAreBounded: of one layout, of one node in an hour, and of what
// is kept in memory.
func TestLayoutBytesAreBounded(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	big := func(i, n int) *inspector.Layout {
		var ss []inspector.Series
		for j := range n {
			ss = append(ss, series("network.x", inspector.Gauge, inspector.Count, "a", fmt.Sprint(i, " ", j, strings.Repeat("x", 110)), "b", strings.Repeat("y", 128)))
		}
		return inspector.NewLayout("network", ss)
	}
	node := w.node(w.a, "n1")
	put := func(node tenants.Scope, l *inspector.Layout) error {
		_, err := w.s.PutLayout(ctx, node, l.AppendBinary(nil))
		return err
	}
	if err := put(node, big(0, 1000)); fault.Of(err) == nil || fault.Of(err).Reason != "bad_layout" {
		t.Errorf("a layout of %d bytes: %v", len(big(0, 1000).AppendBinary(nil)), err)
	}
	unit := inspector.NewLayout("network", []inspector.Series{series("network.x", inspector.Gauge, inspector.Unit(strings.Repeat("u", 33)))})
	if err := put(node, unit); fault.Of(err) == nil || fault.Of(err).Reason != "bad_layout" {
		t.Errorf("a unit of 33 bytes: %v", err)
	}
	var err error
	n := 0
	for size := len(big(0, 900).AppendBinary(nil)); err == nil && n < maxLayouts; n++ {
		if size > maxLayout || size < maxLayout*3/4 {
			t.Fatalf("a layout of %d bytes is no test", size)
		}
		err = put(node, big(n, 900))
	}
	if fault.Of(err) == nil || fault.Of(err).Reason != "too_many_layouts" || n < maxLayoutBytes/maxLayout || n > 2*maxLayoutBytes/maxLayout {
		t.Errorf("after %d large layouts: %v", n, err)
	}
	if err := put(w.node(w.b, "n1"), big(0, 900)); err != nil {
		t.Errorf("another tenant's node: %v", err)
	}
	ls := newLayouts()
	for i := range 1000 {
		tb := w.s.tableOf(big(i, 900))
		ls.putTable(tableKey{w.a, int64(i)}, tb)
		ls.putShape(shapeKey{w.a, inspector.LayoutHash{byte(i), byte(i >> 8)}}, &shape{kinds: make([]inspector.Kind, 200_000)}, w.now())
	}
	tables, shapes := 0, 0
	for _, tb := range ls.tables {
		tables += tb.bytes
	}
	for _, sh := range ls.shapes {
		shapes += sh.bytes()
	}
	if tables != ls.tableBytes || tables > maxTableBytes || tables < maxTableBytes/2 || shapes != ls.shapeBytes || shapes > maxShapeBytes || shapes < maxShapeBytes/2 {
		t.Errorf("tables %d of %d bytes, shapes %d of %d", tables, ls.tableBytes, shapes, ls.shapeBytes)
	}
}

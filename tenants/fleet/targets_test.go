package fleet

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// The look inside of a transaction that writes finds what Targets would take,
// and nothing that it would not.
func TestQueueTarget(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	one := w.node(w.a, "one", "env", "prod")
	never := w.node(w.a, "never", "env", "prod")
	w.node(w.a, "two", "env", "prod")
	w.node(w.a, "two", "env", "test")
	gone := w.node(w.a, "gone", "env", "prod")
	foreign := w.node(w.b, "one", "env", "prod")
	stale := w.node(w.a, "stale", "env", "test")
	w.open(stale, facts("m3", "b"))
	w.advance(2 * tenants.NodeStaleAfter)
	w.open(one, facts("m1", "b"))
	w.open(gone, facts("m2", "b"))
	w.open(foreign, facts("m4", "b"))
	w.exec(`update node set revoked_at = $1 where node_id = $2`, w.now(), [16]byte(mustID(gone)))
	caps := []inspector.Capability{{Component: "network", Signal: "drops", Level: inspector.Off, Reason: "EPERM"}, {Component: "network", Signal: "tcp", Level: inspector.Full, Source: "bpf"}}
	if err := w.s.RecordCapabilities(ctx, one, caps); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, who := range []tenants.Scope{reader(w.a, tenants.Selector{}), reader(w.a, tenants.Selector{Labels: map[string]string{"env": "test"}}),
		reader(w.a, tenants.Selector{IDs: []tenants.NodeID{mustID(one)}}), reader(w.b, tenants.Selector{})} {
		for _, ref := range []string{"one", "never", "two", "gone", "stale", "nobody", one.Principal.ID, never.Principal.ID, gone.Principal.ID, foreign.Principal.ID} {
			for _, signals := range [][]string{nil, {"tcp"}, {"tcp", "drops"}} {
				q := tenants.TargetQuery{Node: ref, Component: "network", Signals: signals}
				want := ""
				if list, err := w.s.Targets(ctx, who, q); err == nil && list[0].Status == string(Online) && list[0].Off == "" {
					want = list[0].Key()
					found++
				}
				var b pgx.Batch
				if err := w.s.QueueTarget(&b, who, q); err != nil {
					t.Fatal(err)
				}
				got := "not asked"
				b.Queue(`select current_setting('telltale.found', true)`).QueryRow(func(r pgx.Row) error { return r.Scan(&got) })
				if err := w.s.db.Write(ctx, who.Tenant, &b); err != nil || got != want {
					t.Errorf("%s %s %v: %q, want %q (%v)", who.Nodes, ref, signals, got, want, err)
				}
			}
		}
	}
	if found != 14 {
		t.Errorf("%d were found", found)
	}
	bare := tenants.Scope{Tenant: w.a}
	for what, err := range map[string]error{
		"neither": w.s.QueueTarget(&pgx.Batch{}, reader(w.a, tenants.Selector{}), tenants.TargetQuery{}),
		"scope":   w.s.QueueTarget(&pgx.Batch{}, bare, tenants.TargetQuery{Node: "one"}),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

func TestTargets(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	one := w.node(w.a, "one", "env", "prod")
	two := w.node(w.a, "two", "env", "prod")
	w.node(w.a, "two", "env", "test")
	gone := w.node(w.a, "gone", "env", "prod")
	w.node(w.b, "one", "env", "prod")
	w.open(one, facts("m1", "b"))
	w.exec(`update node set revoked_at = $1 where node_id = $2`, w.now(), [16]byte(mustID(gone)))
	all := reader(w.a, tenants.Selector{})

	got, err := w.s.Targets(ctx, all, tenants.TargetQuery{Labels: map[string]string{"env": "prod"}, Component: "network", Signals: []string{"tcp"}})
	want := []tenants.Target{
		{Node: mustID(one), Name: "one", Status: "online", Replica: "r1", Matched: 2},
		{Node: mustID(two), Name: "two", Status: "never", Matched: 2},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if got, err := w.s.Targets(ctx, all, tenants.TargetQuery{Labels: map[string]string{"env": "prod"}, Limit: 1}); err != nil || len(got) != 1 || got[0].Matched != 2 {
		t.Error(got, err)
	}
	if got, err := w.s.Targets(ctx, all, tenants.TargetQuery{Labels: map[string]string{"env": "none"}}); err != nil || len(got) != 0 {
		t.Error(got, err)
	}
	if got, err := w.s.Targets(ctx, all, tenants.TargetQuery{Node: "gone"}); err != nil || len(got) != 1 || got[0].Status != "revoked" {
		t.Error(got, err)
	}
	if _, err := w.s.Targets(ctx, all, tenants.TargetQuery{Node: "two"}); fault.Of(err).Reason != "ambiguous_node" {
		t.Error(err)
	}
	narrow := reader(w.a, tenants.Selector{Labels: map[string]string{"env": "test"}})
	if _, err := w.s.Targets(ctx, narrow, tenants.TargetQuery{Node: "one"}); !fault.Is(err, fault.NotFound) {
		t.Error("outside the selector:", err)
	}
	if got, err := w.s.Targets(ctx, narrow, tenants.TargetQuery{Node: "two"}); err != nil || got[0].Node == mustID(two) {
		t.Error("inside the selector:", got, err)
	}
	for name, q := range map[string]tenants.TargetQuery{
		"neither": {}, "both": {Node: "one", Labels: map[string]string{"env": "prod"}}, "bad label": {Labels: map[string]string{"": "x"}},
	} {
		if _, err := w.s.Targets(ctx, all, q); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}

	// What is off says why: a signal, all signals, a switch.
	caps := []inspector.Capability{{Component: "network", Signal: "drops", Level: inspector.Off, Reason: "EPERM"}, {Component: "network", Signal: "tcp", Level: inspector.Full, Source: "bpf"}}
	if err := w.s.RecordCapabilities(ctx, one, caps); err != nil {
		t.Fatal(err)
	}
	off := func(signals ...string) string {
		t.Helper()
		got, err := w.s.Targets(ctx, all, tenants.TargetQuery{Node: one.Principal.ID, Component: "network", Signals: signals})
		if err != nil {
			t.Fatal(err)
		}
		return got[0].Off
	}
	if got := off("tcp", "drops"); got != "drops: EPERM" {
		t.Error(got)
	}
	if a, b := off("tcp"), off(); a != "" || b != "" {
		t.Errorf("%q, %q", a, b)
	}
	caps[1].Level, caps[1].Reason = inspector.Off, "EPERM"
	if err := w.s.RecordCapabilities(ctx, one, caps); err != nil {
		t.Fatal(err)
	}
	if got := off(); got != "EPERM" {
		t.Error(got)
	}
	if _, err := w.s.SetModules(ctx, admin(w.a, tenants.Selector{}), "one", []string{"network"}); err != nil {
		t.Fatal(err)
	}
	if got := off("tcp"); !strings.HasPrefix(got, "switched off from the server") {
		t.Error(got)
	}
}

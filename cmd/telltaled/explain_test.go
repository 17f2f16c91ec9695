package main

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/directory"
	"github.com/telltale-dev/telltale/tenants/events"
	causes "github.com/telltale-dev/telltale/tenants/explain"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// TestExplainOverTheServices plants a cause and a change that has nothing to
// do with it, and asks over the real slices.
func TestExplainOverTheServices(t *testing.T) {
	ctx := context.Background()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	dsn := dbtest.DSN(t)
	db, conn := dbtest.Open(t, tenantdb.Config{DSN: dsn}), dbtest.Connect(t, dsn)
	reg := &inspector.Registry{}
	all.Register(reg)
	nodes := fleet.New(db, reg, fleet.Config{Replica: "r"}, log)
	found := events.New(db, reg, directory.New(db, log, directory.Config{}), metrics.New(db, reg, metrics.Config{}, log), nil, events.Config{}, log)
	tool := newExplain(reg, found, nodes, nil)

	enrol := func(tenant tenants.TenantID, name, env string) tenants.Scope {
		id := tenants.NewNodeID()
		for _, q := range []struct {
			sql  string
			args []any
		}{
			{`insert into tenant (tenant_id, slug, name, created_at) values ($1, $2, $2, now()) on conflict do nothing`, []any{[16]byte(tenant), tenant.String()}},
			{`insert into node (tenant_id, node_id, name, enrol_token, enrolled_at) values ($1, $2, $3, 't', now())`, []any{[16]byte(tenant), [16]byte(id), name}},
			{`insert into node_label (tenant_id, node_id, key, value) values ($1, $2, 'env', $3)`, []any{[16]byte(tenant), [16]byte(id), env}},
		} {
			if _, err := conn.Exec(ctx, q.sql, q.args...); err != nil {
				t.Fatalf("%s: %v", q.sql, err)
			}
		}
		scope := tenants.Scope{Tenant: tenant, Principal: tenants.Principal{Kind: tenants.NodePrincipal, ID: id.String()}}
		for started := range int64(2) { // the agent is started anew
			if _, err := nodes.SessionOpened(ctx, scope, fleet.SessionFacts{BootID: "b", AgentVersion: "1", StartedNS: 1e18 + started}); err != nil {
				t.Fatal(err)
			}
		}
		return scope
	}
	plant := func(node tenants.Scope, kind string, ago time.Duration, labels map[string]string) {
		at := time.Now().Add(-ago)
		r := inspector.EventReport{Kind: kind, Fingerprint: inspector.FingerprintOf(kind, labels), Begun: at, Last: at, State: inspector.EventOpen, Labels: labels, SampleCount: 1}
		if err := found.Record(ctx, node, r, 0); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
	}
	acme, globex := tenants.NewTenantID(), tenants.NewTenantID()
	db1, peer, foreign := enrol(acme, "db1", "prod"), enrol(acme, "db2", "prod"), enrol(globex, "db1", "prod")
	disk := map[string]string{"device": "sda"}
	for _, n := range []tenants.Scope{db1, peer, foreign} {
		plant(n, "io_error", 3*time.Minute, disk)
		plant(n, "new_executable", 2*time.Minute, map[string]string{"exe": "/usr/bin/unrelated"})
	}
	plant(db1, "slow_io", time.Minute, disk)

	reader := tenants.Scope{Tenant: acme, Granted: tenants.Read, Principal: tenants.Principal{Kind: tenants.TokenPrincipal, ID: "t"}}
	p, err := found.List(ctx, reader, events.ListQuery{Kinds: []string{"slow_io"}})
	if err != nil || len(p.Events) != 1 {
		t.Fatalf("%v %+v", err, p)
	}
	x, err := tool.Explain(ctx, reader, causes.Query{Event: p.Events[0].ID})
	if err != nil {
		t.Fatal(err)
	}
	if len(x.Chain) != 2 || !strings.Contains(x.Chain[1].Why, "both bear device=sda") || x.Chain[1].Name != "db1" || x.Chain[1].Confidence != causes.Related {
		t.Errorf("%s\n%+v", x.Verdict, x.Chain)
	}
	seen := map[string]int{}
	for _, c := range x.Changes {
		switch {
		case c.Node == foreign.Principal.ID:
			t.Errorf("foreign: %+v", c)
		case c.Related && !strings.Contains(c.Why, "device=sda"):
			t.Errorf("related without a shared scope: %+v", c)
		case !c.Related:
			seen[c.Name]++
		}
	}
	if seen["db1"] != 2 || seen["db2"] != 3 { // a deploy and a start of the agent; of the peer an error beside
		t.Errorf("unrelated changes: %v in %+v", seen, x.Changes)
	}

	limited := reader
	limited.Nodes = tenants.Selector{Labels: map[string]string{"env": "test"}}
	other := reader
	other.Tenant = globex
	for name, scope := range map[string]tenants.Scope{"limited": limited, "another tenant": other} {
		for _, q := range []causes.Query{{Event: p.Events[0].ID}, {Node: db1.Principal.ID}} {
			if _, err := tool.Explain(ctx, scope, q); !fault.Is(err, fault.NotFound) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if x, err = tool.Explain(ctx, reader, causes.Query{Node: db1.Principal.ID}); err != nil || !strings.Contains(x.Verdict, "the node is online") || !strings.Contains(x.Verdict, "3 events are open") {
		t.Errorf("%v %s", err, x.Verdict)
	}
	if x, err = tool.Explain(ctx, reader, causes.Query{Refusal: "node_offline"}); err != nil || x.Subject != "refusal node_offline" {
		t.Errorf("%v %+v", err, x)
	}
}

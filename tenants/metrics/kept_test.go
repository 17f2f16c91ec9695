package metrics

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
)

func TestKeptOut(t *testing.T) {
	w := newWorld(t)
	n1, n2, other := w.node(w.a, "k1"), w.node(w.a, "k2"), w.node(w.b, "k1")
	keep := func(node tenants.Scope, reason string, ago time.Duration) {
		w.exec(`insert into win_quarantine (tenant_id, node_id, reason, n, first_at, last_at, example) values ($1, $2, $3, 5, $4, $4, '')`,
			uid(node.Tenant), uid(idOf(node)), reason, w.now().Add(-ago))
	}
	keep(n1, "too_old", time.Minute)
	keep(n2, "too_old", time.Minute)
	keep(n2, "clock_skew", 2*time.Hour)
	keep(n2, "another", time.Minute)
	keep(other, "too_old", time.Minute)
	for name, c := range map[string]struct {
		tenant tenants.TenantID
		nodes  [][16]byte
		span   time.Duration
		want   map[string]int
	}{
		"all":            {w.a, nil, time.Hour, map[string]int{"too_old": 2}},
		"longer":         {w.a, nil, 3 * time.Hour, map[string]int{"too_old": 2, "clock_skew": 1}},
		"one":            {w.a, [][16]byte{uid(idOf(n1))}, 3 * time.Hour, map[string]int{"too_old": 1}},
		"none":           {w.a, [][16]byte{}, 3 * time.Hour, map[string]int{}},
		"another tenant": {w.b, [][16]byte{uid(idOf(other)), uid(idOf(n1))}, time.Hour, map[string]int{"too_old": 1}},
	} {
		got, b := map[string]int{}, &pgx.Batch{}
		w.s.KeptOut(b, c.tenant, c.nodes, []string{"too_old", "clock_skew"}, w.now().Add(-c.span), func(reason string, n int) { got[reason] = n })
		err := w.s.db.Read(context.Background(), c.tenant, b)
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s: %s %v", name, diff, err)
		}
	}
}

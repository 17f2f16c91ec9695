package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/bench/internal/rig"
)

// reading is what is compared between the start and the end of the load.
type reading struct {
	at        time.Time
	windows   int
	samples   uint64
	used      rig.Usage
	own       time.Duration
	disk, wal int64
}

// read takes one reading while the fleet is at rest.
func (b *bench) read(ctx context.Context, db *pgx.Conn) (r reading, err error) {
	for _, a := range b.fleet.Agents {
		r.windows += int(a.Stats().Acked)
		r.samples += a.Series
	}
	err = db.QueryRow(ctx, `select (select sum(pg_total_relation_size(inhrelid))::bigint from pg_inherits where inhparent = 'win'::regclass),
		(pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&r.disk, &r.wal)
	if err != nil {
		return r, err
	}
	r.used, err = b.stack.Usage()
	r.own, r.at = rig.OwnCPU(), time.Now()
	return r, err
}

const sqlArrived = `
select w.tenant_id::text, w.node_id::text, count(*), count(distinct w.seq), sum(l.series)::bigint, sum(w.samples)::bigint
  from win w join layout l using (tenant_id, layout_id)
 where w.node_id = any($1::uuid[])
 group by w.tenant_id, w.node_id`

// verify holds what every agent pushed against the rows of its tenant: equal
// in number, in distinct sequence numbers, in samples and in the checksum of
// their observations, with nothing expired, kept out, refused or skipped.
func (b *bench) verify(ctx context.Context) error {
	db, err := b.stack.Database(ctx)
	if err != nil {
		return err
	}
	defer db.Close(context.WithoutCancel(ctx))
	type place struct{ tenant, node string }
	type count struct{ rows, numbers, series, seen int64 }
	var nodes []string
	for _, a := range b.fleet.Agents {
		nodes = append(nodes, a.Node)
	}
	arrived := map[place]count{}
	var p place
	var c count
	rows, err := db.Query(ctx, sqlArrived, nodes)
	if err != nil {
		return err
	}
	if _, err := pgx.ForEachRow(rows, []any{&p.tenant, &p.node, &c.rows, &c.numbers, &c.series, &c.seen}, func() error {
		arrived[p] = c
		return nil
	}); err != nil {
		return err
	}
	var errs []error
	perTenant := map[string]int64{}
	for _, a := range b.fleet.Agents {
		n := int64(a.Pushed)
		want, got := count{n, n, int64(a.Series), int64(a.Seen)}, arrived[place{a.Tenant, a.Node}]
		if got != want {
			errs = append(errs, fmt.Errorf("%s of tenant %s: pushed %+v, the database holds %+v", a.Name, a.Tenant, want, got))
		}
		perTenant[a.Tenant] += got.rows
		errs = append(errs, a.Clean())
	}
	if len(arrived) != len(b.fleet.Agents) || len(perTenant) != 2 {
		errs = append(errs, fmt.Errorf("rows of %d nodes in %d tenants, want %d in 2", len(arrived), len(perTenant), len(b.fleet.Agents)))
	}
	var bad int64
	err = db.QueryRow(ctx, `select (select coalesce(sum(n), 0) from win_quarantine)::bigint
		+ (select coalesce(sum(missing + expired + refused), 0) from node_head)::bigint`).Scan(&bad)
	if err == nil && bad != 0 {
		err = fmt.Errorf("%d windows were kept out, expired, skipped or had values refused", bad)
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("not exactly once: %w", err)
	}
	fmt.Print("  exactly once: acknowledged windows = pushed windows = rows, tenant by tenant:")
	for t, n := range perTenant {
		fmt.Printf(" %s %d", t, n)
	}
	fmt.Println()
	return nil
}

// copied is what the cluster does at most with these rows.
type copied struct {
	rows      int
	rate      float64 // windows a second
	cpuMicros float64 // postgres processor time a window
}

const (
	copyRows   = 100_000
	copyRounds = 3
)

// copyLimit writes stored windows again with COPY, from memory, into a plain
// logged table with the same columns and primary key, over two connections at
// once as the server has two writers. The median of the rounds counts.
func (b *bench) copyLimit(ctx context.Context) (c copied, err error) {
	b.fleet.Close() // nothing else runs now
	var dbs [2]*pgx.Conn
	for i := range dbs {
		if dbs[i], err = b.stack.Database(ctx); err != nil {
			return c, err
		}
		defer dbs[i].Close(context.WithoutCancel(ctx))
	}
	if _, err := dbs[0].Exec(ctx, `create table bench_copy (like win including indexes including storage)`); err != nil {
		return c, err
	}
	rows, err := dbs[0].Query(ctx, `select * from win limit $1`, copyRows)
	if err != nil {
		return c, err
	}
	var columns []string
	for _, f := range rows.FieldDescriptions() {
		columns = append(columns, f.Name)
	}
	all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) ([]any, error) { return r.Values() })
	if err != nil {
		return c, err
	}
	c.rows = len(all)
	halves := [2][][]any{all[:len(all)/2], all[len(all)/2:]}
	var rates, cpus []float64
	for range copyRounds {
		if _, err := dbs[0].Exec(ctx, `truncate bench_copy`); err != nil {
			return c, err
		}
		before, err := b.stack.Usage()
		if err != nil {
			return c, err
		}
		began := time.Now()
		var work sync.WaitGroup
		var errs [2]error
		for i, half := range halves {
			work.Go(func() {
				_, errs[i] = dbs[i].CopyFrom(ctx, pgx.Identifier{"bench_copy"}, columns, pgx.CopyFromRows(half))
			})
		}
		work.Wait()
		took := time.Since(began)
		after, err := b.stack.Usage()
		if err := errors.Join(err, errs[0], errs[1]); err != nil {
			return c, err
		}
		rates = append(rates, float64(c.rows)/took.Seconds())
		cpus = append(cpus, float64(after.Sub(before).Database.Microseconds())/float64(c.rows))
	}
	c.rate, c.cpuMicros = rig.Median(rates), rig.Median(cpus)
	return c, nil
}

package tenantdb

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/telltale-dev/telltale/tenants"
)

// Partitions keeps the partitions of tables that are split alike by time. It
// remembers which ones exist, so that a writer asks the database only once for
// each. It is safe for concurrent use.
type Partitions struct {
	db     *DB
	tables []string
	step   time.Duration // divides a day

	mu    sync.Mutex
	known map[int64]bool
}

// NewPartitions keeps the partitions of tables, each step long.
func NewPartitions(db *DB, step time.Duration, tables ...string) *Partitions {
	return &Partitions{db: db, tables: tables, step: step, known: map[int64]bool{}}
}

// Partition is one partition: Lo <= key < Hi.
type Partition struct{ Lo, Hi time.Time }

const (
	sqlPartitions    = `select lo, hi from telltale_partitions($1)`
	sqlMakePartition = `select telltale_make_partition($1, $2, $3)`
	sqlDropPartition = `select telltale_drop_partition($1, $2)`

	maxKnown = 1000
)

// Make makes the partitions for rows at these times, unless they are known to
// exist. It runs in a transaction of its own, so that the writer's holds no
// lock on the catalogue. tenant is any tenant that the caller may write for.
func (p *Partitions) Make(ctx context.Context, tenant tenants.TenantID, times ...time.Time) error {
	var missing []time.Time
	p.mu.Lock()
	for _, t := range times {
		if lo := t.Truncate(p.step); !p.known[lo.Unix()] && !slices.ContainsFunc(missing, lo.Equal) {
			missing = append(missing, lo)
		}
	}
	p.mu.Unlock()
	if len(missing) == 0 {
		return nil
	}
	err := p.db.InTenants(ctx, []tenants.TenantID{tenant}, func(ctx context.Context, tx pgx.Tx) error {
		return p.make(ctx, tx, missing)
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.known) > maxKnown {
		clear(p.known)
	}
	for _, lo := range missing {
		p.known[lo.Unix()] = true
	}
	return nil
}

// Write makes the partitions for rows at these times and runs write. When a
// partition was dropped after it was made, both happen once more.
func (p *Partitions) Write(ctx context.Context, tenant tenants.TenantID, times []time.Time, write func() error) error {
	for again := true; ; again = false {
		if err := p.Make(ctx, tenant, times...); err != nil {
			return err
		}
		err := write()
		if !again || !noPartition(err) {
			return err
		}
		p.Forget()
	}
}

func noPartition(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == "23514" && pe.ConstraintName == ""
}

// Forget makes the next Make ask the database again.
func (p *Partitions) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.known)
}

// Ahead makes the missing partitions from now's to n after it, in a
// maintenance transaction (see DB.Jobs).
func (p *Partitions) Ahead(ctx context.Context, tx pgx.Tx, now time.Time, n int) error {
	var los []time.Time
	for i := range n + 1 {
		los = append(los, now.Truncate(p.step).Add(time.Duration(i)*p.step))
	}
	return p.make(ctx, tx, los)
}

func (p *Partitions) make(ctx context.Context, tx pgx.Tx, los []time.Time) error {
	for _, table := range p.tables {
		for _, lo := range los {
			if _, err := tx.Exec(ctx, sqlMakePartition, table, lo, lo.Add(p.step)); err != nil {
				return err
			}
		}
	}
	return nil
}

// List lists the partitions of the first table, oldest first.
func (p *Partitions) List(ctx context.Context, tx pgx.Tx) ([]Partition, error) {
	rows, err := tx.Query(ctx, sqlPartitions, p.tables[0])
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Partition])
}

// Drop drops the partition that starts at lo from every table, in a
// maintenance transaction; a long read makes it fail soon (see
// telltale_drop_partition).
func (p *Partitions) Drop(ctx context.Context, tx pgx.Tx, lo time.Time) error {
	p.Forget()
	for i := len(p.tables) - 1; i >= 0; i-- { // the first one is what List shows
		if _, err := tx.Exec(ctx, sqlDropPartition, p.tables[i], lo); err != nil {
			return err
		}
	}
	return nil
}

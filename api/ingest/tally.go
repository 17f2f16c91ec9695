package ingest

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

// Bounds of what is folded before it is written.
const (
	maxTally   = 4096 // pairs of node and reason
	tallyEvery = time.Second
	maxExample = 200 // bytes
)

// tally folds refusals, so that a misbehaving node costs one write a second
// and reason, not one a frame. Safe for concurrent use.
type tally struct {
	sessions Sessions
	count    *counters
	log      *slog.Logger

	mu   sync.Mutex
	rows map[tallyKey]*tallyRow
}

type tallyKey struct {
	tenant tenants.TenantID
	node   tenants.NodeID
	reason string
}

type tallyRow struct {
	scope   tenants.Scope
	example string
	n       int64
}

func newTally(s Sessions, count *counters, log *slog.Logger) *tally {
	return &tally{sessions: s, count: count, log: log, rows: map[tallyKey]*tallyRow{}}
}

// add counts one refusal. example is untrusted; its start is kept, cleaned.
func (t *tally) add(scope tenants.Scope, node tenants.NodeID, reason, example string) {
	t.count.refused.Add(1)
	if len(example) > maxExample {
		example = example[:maxExample]
	}
	example = inspector.CleanText(example)
	t.mu.Lock()
	defer t.mu.Unlock()
	k := tallyKey{scope.Tenant, node, reason}
	row := t.rows[k]
	if row == nil {
		if len(t.rows) >= maxTally {
			t.count.tallyDrops.Add(1)
			return
		}
		row = &tallyRow{scope: scope}
		t.rows[k] = row
	}
	row.n++
	row.example = example
}

// flush writes what was folded.
func (t *tally) flush(ctx context.Context) {
	t.mu.Lock()
	rows := t.rows
	t.rows = map[tallyKey]*tallyRow{}
	t.mu.Unlock()
	for k, row := range rows {
		wctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := t.sessions.Quarantine(wctx, row.scope, k.reason, row.example, row.n)
		cancel()
		if err != nil {
			t.count.tallyDrops.Add(uint64(row.n))
			t.log.Warn("cannot record refusals", "node", k.node, "reason", k.reason, "n", row.n, "error", err)
		}
	}
}

func (t *tally) run(ctx context.Context) error {
	tick := time.NewTicker(tallyEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			t.flush(ctx)
		case <-ctx.Done():
			t.flush(context.WithoutCancel(ctx)) // each write is bounded
			return nil
		}
	}
}

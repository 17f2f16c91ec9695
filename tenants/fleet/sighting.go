package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Sighting is one sign of life of a session.
type Sighting struct {
	Skew     *time.Duration    // agent clock minus server clock; nil: not estimated at this exchange
	Counters map[string]uint64 // the agent's own loss counters; nil: unchanged; at most maxCounters
}

const (
	flushEvery  = 5 * time.Second // pace of Run: a row is written at most this often
	flushRows   = 500             // rows of one statement
	maxSeen     = 100_000         // sightings that wait at most
	maxCounters = 16
)

type sessionKey struct {
	tenant tenants.TenantID
	node   tenants.NodeID
	id     SessionID
}

type sighting struct {
	at       time.Time
	skew     *time.Duration
	counters map[string]uint64
}

// Seen notes a sign of life. It never blocks on the database: Run writes
// sightings in batches every few seconds. Calls of a scope that is no node are
// ignored.
func (s *Service) Seen(scope tenants.Scope, id SessionID, g Sighting) {
	node, err := nodeOf(scope)
	if err != nil {
		return
	}
	k := sessionKey{scope.Tenant, node, id}
	s.mu.Lock()
	defer s.mu.Unlock()
	have, ok := s.seen[k]
	if !ok && len(s.seen) >= maxSeen {
		s.drops++
		return
	}
	have.at = s.now()
	if g.Skew != nil {
		have.skew = g.Skew
	}
	if g.Counters != nil {
		have.counters = g.Counters
	}
	s.seen[k] = have
}

// Dropped counts the sightings that found no room; it stays 0 while Run works.
func (s *Service) Dropped() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drops
}

// Run writes sightings until ctx ends, and once more after that.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushEvery)
			defer cancel()
			return s.Flush(last)
		case <-tick.C:
		}
		if err := s.Flush(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("signs of life were not written; they are tried again", "error", err)
		}
	}
}

// Flush writes all waiting sightings now. What cannot be written waits for the
// next call.
func (s *Service) Flush(ctx context.Context) error {
	s.mu.Lock()
	seen := s.seen
	s.seen = map[sessionKey]sighting{}
	s.mu.Unlock()
	keys := make([]sessionKey, 0, len(seen))
	for k := range seen {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b sessionKey) int {
		return cmp.Or(bytes.Compare(a.tenant[:], b.tenant[:]), bytes.Compare(a.node[:], b.node[:]), bytes.Compare(a.id[:], b.id[:]))
	})
	var errs []error
	for chunk := range slices.Chunk(keys, flushRows) {
		if err := s.flush(ctx, chunk, seen); err != nil {
			errs = append(errs, err)
			s.giveBack(chunk, seen)
		}
	}
	return errors.Join(errs...)
}

func (s *Service) flush(ctx context.Context, keys []sessionKey, seen map[sessionKey]sighting) error {
	var (
		ts, ns, ids [][16]byte
		list        []tenants.TenantID
		at          []time.Time
		skew        []*int64
		counters    []*string
	)
	for _, k := range keys {
		g := seen[k]
		ts, ns, ids, list, at = append(ts, k.tenant), append(ns, k.node), append(ids, k.id), append(list, k.tenant), append(at, g.at)
		var ms *int64
		if g.skew != nil {
			v := g.skew.Milliseconds()
			ms = &v
		}
		skew, counters = append(skew, ms), append(counters, countersJSON(g.counters))
	}
	now := s.now()
	err := s.db.InTenants(ctx, list, func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(sqlSeenMany, ts, ns, ids, at, skew, counters)
		b.Queue(sqlMarkDuplicates, ts, ns, now, now.Add(-tenants.NodeStaleAfter))
		return tx.SendBatch(ctx, b).Close()
	})
	return tenantdb.Fault(err)
}

// giveBack lets sightings wait again, unless newer ones came meanwhile.
func (s *Service) giveBack(keys []sessionKey, seen map[sessionKey]sighting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		old, now := seen[k], s.seen[k]
		if now.at.Before(old.at) {
			now.at = old.at
		}
		if now.skew == nil {
			now.skew = old.skew
		}
		if now.counters == nil {
			now.counters = old.counters
		}
		s.seen[k] = now
	}
}

// countersJSON renders an agent's counters, bounded and with clean names.
func countersJSON(c map[string]uint64) *string {
	if c == nil {
		return nil
	}
	names := make([]string, 0, len(c))
	for k := range c {
		names = append(names, k)
	}
	slices.Sort(names)
	out := map[string]uint64{}
	for _, k := range names[:min(len(names), maxCounters)] {
		clean, _ := inspector.CleanLabel(k)
		out[clean] = c[k]
	}
	b, _ := json.Marshal(out) // a map of numbers always marshals
	text := string(b)
	return &text
}

package auth

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

// UseStore notes when credentials were last used. Unknown ids are ignored.
type UseStore interface {
	TouchTokens(ctx context.Context, t tenants.TenantID, uses map[string]time.Time) error
	TouchSessions(ctx context.Context, t tenants.TenantID, uses map[string]time.Time) error
}

const (
	useGrain = time.Minute      // a later use within this of the last one is not written
	useFlush = 10 * time.Second // how long noted uses wait for one write
	maxUses  = 10_000           // uses waiting at most; more are dropped and counted
)

// Uses collects last uses of tokens and sessions and writes them in batches,
// so that a busy credential costs one write a minute. A nil Uses notes nothing.
type Uses struct {
	store UseStore
	log   *slog.Logger
	pending
}

// NewUses makes the collector; Run does the writing.
func NewUses(store UseStore, log *slog.Logger) *Uses {
	return &Uses{store: store, log: log, pending: pending{m: map[useKey]time.Time{}, wrote: map[useKey]time.Time{}}}
}

// Run writes what was noted every 10 s, and once more when ctx ends.
func (u *Uses) Run(ctx context.Context) error {
	tick := time.NewTicker(useFlush)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			u.flush(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			u.flush(last)
			return nil
		}
	}
}

func (u *Uses) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	for batch, uses := range u.take() {
		write := u.store.TouchTokens
		if batch.session {
			write = u.store.TouchSessions
		}
		if err := write(ctx, batch.tenant, uses); err != nil {
			u.log.Warn("last use of credentials not noted", "tenant", batch.tenant, "uses", len(uses), "err", err)
		}
	}
}

func (u *Uses) token(t tenants.TenantID, id string, last *time.Time, now time.Time) {
	if u != nil && (last == nil || now.Sub(*last) >= useGrain) {
		u.note(useKey{useBatch{t, false}, id}, now)
	}
}

func (u *Uses) session(t tenants.TenantID, id string, last, now time.Time) {
	if u != nil && now.Sub(last) >= useGrain {
		u.note(useKey{useBatch{t, true}, id}, now)
	}
}

type useBatch struct {
	tenant  tenants.TenantID
	session bool
}

type useKey struct {
	useBatch
	id string
}

// pending is what waits to be written, and what was written so lately that the
// remembered row does not show it yet.
type pending struct {
	mu      sync.Mutex
	m       map[useKey]time.Time
	wrote   map[useKey]time.Time
	dropped uint64
}

func (p *pending) note(k useKey, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, ok := p.wrote[k]; ok && now.Sub(at) < useGrain {
		return
	}
	if _, ok := p.m[k]; !ok && len(p.m) >= maxUses {
		p.dropped++
		return
	}
	p.m[k] = now
}

func (p *pending) take() map[useBatch]map[string]time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[useBatch]map[string]time.Time{}
	p.wrote = p.m
	for k, at := range p.m {
		if out[k.useBatch] == nil {
			out[k.useBatch] = map[string]time.Time{}
		}
		out[k.useBatch][k.id] = at
	}
	p.m = map[useKey]time.Time{}
	return out
}

// Dropped counts uses that were not noted because too many waited.
func (p *pending) Dropped() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

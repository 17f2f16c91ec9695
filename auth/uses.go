package auth

import (
	"sync"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

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

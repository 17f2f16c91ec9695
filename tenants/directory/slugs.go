package directory

import (
	"sync"
	"time"
)

// maxCachedSlugs bounds the remembered slugs, those that exist and those that
// do not each.
const maxCachedSlugs = 4096

// slugCache remembers tenants by slug for a short time. Guesses at slugs have
// a room of their own and cannot push out tenants that exist.
type slugCache struct {
	ttl time.Duration
	max int

	mu      sync.Mutex
	known   map[string]slugEntry
	unknown map[string]slugEntry
	changed uint64 // counts drops, so that a read begun before one is not kept
	evicted uint64
}

type slugEntry struct {
	tenant Tenant
	since  time.Time
}

// reading marks the beginning of a database read.
type reading struct {
	at      time.Time
	changed uint64
}

func newSlugCache(ttl time.Duration, max int) *slugCache {
	return &slugCache{ttl: ttl, max: max, known: map[string]slugEntry{}, unknown: map[string]slugEntry{}}
}

func (c *slugCache) get(slug string) (t Tenant, found, fresh bool) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.known[slug]; ok && now.Sub(e.since) < c.ttl {
		return e.tenant, true, true
	}
	e, ok := c.unknown[slug]
	return Tenant{}, false, ok && now.Sub(e.since) < c.ttl
}

func (c *slugCache) asked() reading {
	c.mu.Lock()
	defer c.mu.Unlock()
	return reading{time.Now(), c.changed}
}

func (c *slugCache) put(slug string, t Tenant, found bool, r reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.changed != c.changed {
		return
	}
	room, other := c.known, c.unknown
	if !found {
		room, other = c.unknown, c.known
	}
	delete(other, slug)
	if _, ok := room[slug]; !ok && len(room) >= c.max {
		c.makeRoom(room, r.at)
	}
	room[slug] = slugEntry{t, r.at}
}

// makeRoom drops what has run out, and any one entry if nothing has: entries
// live for seconds, an order of use would cost more than it saves.
func (c *slugCache) makeRoom(room map[string]slugEntry, now time.Time) {
	var some string
	for slug, e := range room {
		some = slug
		if now.Sub(e.since) >= c.ttl {
			delete(room, slug)
		}
	}
	if len(room) >= c.max {
		delete(room, some)
		c.evicted++
	}
}

func (c *slugCache) drop(slug string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, slug)
	delete(c.unknown, slug)
	c.changed++
}

// SlugsEvicted counts live entries pushed out of the tenant cache.
func (s *Service) SlugsEvicted() uint64 {
	s.slugs.mu.Lock()
	defer s.slugs.mu.Unlock()
	return s.slugs.evicted
}

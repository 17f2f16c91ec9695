package events

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

const (
	topic       = "event"
	newsWait    = 20 * time.Millisecond // how long changes of one event are put together
	newsRoom    = 128                   // changes that one subscriber may leave unread
	newsPending = 10_000                // changes that wait to be spread
)

// news spreads changes to this replica's subscribers.
type news struct {
	self string // tells this replica's own hints from others'

	mu      sync.Mutex
	pending map[Change]bool // Change without New → New
	gap     bool            // changes were lost: everybody looks again
	subs    map[chan Change]tenants.TenantID
	dropped uint64 // changes that were not told one by one
	woken   chan struct{}
}

func newNews() news {
	return news{self: uuid.NewString(), pending: map[Change]bool{}, subs: map[chan Change]tenants.TenantID{}, woken: make(chan struct{}, 1)}
}

// Subscribe answers hints of a tenant's events, from any replica, until the
// returned function is called, which closes the channel. They are put together
// and may be repeated; a Change with the zero Event says that some were lost:
// look at the list again. Nodes outside a principal's selector are among them:
// read the event in the principal's scope before showing any of it.
func (s *Service) Subscribe(tenant tenants.TenantID) (<-chan Change, func()) {
	ch := make(chan Change, newsRoom)
	n := &s.news
	n.mu.Lock()
	n.subs[ch] = tenant
	n.mu.Unlock()
	return ch, sync.OnceFunc(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.subs, ch)
		close(ch)
	})
}

// announce tells a change, made here, to all replicas.
func (s *Service) announce(c Change) {
	s.news.put(c)
	if s.bus != nil {
		s.bus.Send("", tenantdb.Hint{Topic: topic, Tenant: c.Tenant, Key: s.news.key(c)})
	}
}

func (n *news) put(c Change) {
	isNew := c.New
	c.New = false
	n.mu.Lock()
	if _, ok := n.pending[c]; ok || len(n.pending) < newsPending {
		n.pending[c] = n.pending[c] || isNew
	} else {
		n.gap = true
		n.dropped++
	}
	n.mu.Unlock()
	n.wake()
}

func (n *news) lostCount() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dropped
}

func (n *news) wake() {
	select {
	case n.woken <- struct{}{}:
	default:
	}
}

// lost makes every subscriber look again.
func (n *news) lost() {
	n.mu.Lock()
	n.gap = true
	n.mu.Unlock()
	n.wake()
}

// key writes a change for the bus, read parses it.
func (n *news) key(c Change) string {
	kind := "moved"
	if c.New {
		kind = "new"
	}
	return strings.Join([]string{n.self, c.Event.String(), c.Node.String(), kind}, " ")
}

func (n *news) read(h tenantdb.Hint) {
	f := strings.Fields(h.Key)
	if len(f) != 4 {
		n.lost()
		return
	}
	if f[0] == n.self {
		return
	}
	id, err := ParseID(f[1])
	node, err2 := tenants.ParseNodeID(f[2])
	if err != nil || err2 != nil {
		n.lost()
		return
	}
	n.put(Change{Tenant: h.Tenant, Event: id, Node: node, New: f[3] == "new"})
}

// spread hands changes to subscribers until ctx ends.
func (s *Service) spread(ctx context.Context) {
	var hints <-chan tenantdb.Hint
	if s.bus != nil {
		var cancel func()
		hints, cancel = s.bus.Subscribe(topic)
		defer cancel()
	}
	n := &s.news
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case h, ok := <-hints:
			if !ok {
				hints = nil
				continue
			}
			n.read(h)
		case <-n.woken:
			if due == nil {
				due = time.After(newsWait)
			}
		case <-due:
			due = nil
			n.deliver()
		}
	}
}

// deliver empties what waits. A subscriber that does not read finds a Change
// without an event at the end of what it left unread.
func (n *news) deliver() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for ch, tenant := range n.subs {
		if n.gap {
			offer(ch, Change{Tenant: tenant})
		}
		for c, isNew := range n.pending {
			if c.Tenant == tenant {
				c.New = isNew
				n.dropped += offer(ch, c)
			}
		}
	}
	clear(n.pending)
	n.gap = false
}

// offer answers how many changes it left out: none or one.
func offer(ch chan Change, c Change) (dropped uint64) {
	switch room := cap(ch) - len(ch); {
	case room > 1:
		ch <- c
		return 0
	case room == 1:
		ch <- Change{Tenant: c.Tenant}
	}
	return 1
}

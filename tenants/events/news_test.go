package events

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// wire is a bus that hands every hint to every subscriber.
type wire struct {
	mu   sync.Mutex
	subs []chan tenantdb.Hint
}

func (b *wire) Send(_ string, h tenantdb.Hint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.subs {
		s <- h
	}
}

func (b *wire) Subscribe(string) (<-chan tenantdb.Hint, func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ch := make(chan tenantdb.Hint, 1000)
	b.subs = append(b.subs, ch)
	return ch, func() {}
}

func (b *wire) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.subs)
}

func TestNews(t *testing.T) {
	w := newWorld(t)
	bus := &wire{}
	here, there := w.service(bus, Config{}), w.service(bus, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, s := range []*Service{here, there} {
		wg.Go(func() { s.spread(ctx) })
	}
	defer wg.Wait()
	defer cancel()
	w.until("the replicas to listen", func() bool { return bus.count() == 2 })
	type sub struct {
		ch   <-chan Change
		stop func()
	}
	subs := map[string]sub{}
	for name, s := range map[string]*Service{"here": here, "there": there} {
		ch, stop := s.Subscribe(w.a)
		subs[name] = sub{ch, stop}
	}
	foreign, stop := there.Subscribe(w.b)
	defer stop()
	expect := func(name string, isNew bool) Change {
		t.Helper()
		select {
		case c := <-subs[name].ch:
			if c.Tenant != w.a || c.Node != idOf(w.n1) || c.New != isNew {
				t.Errorf("%s: %+v", name, c)
			}
			return c
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: no news", name)
		}
		return Change{}
	}
	r := w.report("eth0", time.Minute)
	if err := here.Record(ctx, w.n1, r, 0); err != nil {
		t.Fatal(err)
	}
	if a, b := expect("here", true), expect("there", true); a != b {
		t.Errorf("%v here, %v there", a, b)
	}
	if err := here.Record(ctx, w.n1, r, 0); err != nil { // nothing new
		t.Fatal(err)
	}
	r.SampleCount++
	if err := there.Record(ctx, w.n1, r, 0); err != nil {
		t.Fatal(err)
	}
	expect("here", false)
	expect("there", false)
	bus.Send("", tenantdb.Hint{Topic: topic}) // after a gap
	for name, s := range subs {
		if c := <-s.ch; c != (Change{Tenant: w.a}) {
			t.Errorf("%s: %+v", name, c)
		}
		s.stop()
		s.stop()
		if _, ok := <-s.ch; ok {
			t.Errorf("%s: open after the end", name)
		}
	}
	if c := <-foreign; c != (Change{Tenant: w.b}) {
		t.Errorf("the second tenant heard %+v", c)
	}
	if len(foreign) != 0 {
		t.Error("the second tenant heard more")
	}
}

// A subscriber that does not read costs nothing and learns that it missed.
func TestNewsAreBounded(t *testing.T) {
	s := &Service{news: newNews()}
	tenant := tenants.NewTenantID()
	ch, stop := s.Subscribe(tenant)
	defer stop()
	for range newsPending + 100 {
		s.announce(Change{Tenant: tenant, Event: ID(tenants.NewNodeID())})
	}
	if n := len(s.news.pending); n > newsPending {
		t.Errorf("%d changes wait", n)
	}
	s.news.deliver()
	if len(ch) != newsRoom {
		t.Fatalf("%d unread", len(ch))
	}
	var last Change
	for range newsRoom {
		last = <-ch
	}
	if lost := s.Stats().NewsLost; lost != 100+newsPending-(newsRoom-2) { // the first and the last one say that some were lost
		t.Errorf("%d counted as lost", lost)
	}
	if last != (Change{Tenant: tenant}) {
		t.Errorf("the last one is %+v", last)
	}
}

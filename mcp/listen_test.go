package mcp

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// listener is one open stream of updates.
type listener struct {
	t     *testing.T
	lines chan string
	end   context.CancelFunc
}

// listen opens a stream and waits for its acknowledgement.
func (w *world) listen(t *testing.T, bearer string, uris ...string) (*listener, string) {
	t.Helper()
	return w.listenTo(t, bearer, "", `"resourceSubscriptions":["`+strings.Join(uris, `","`)+`"]`)
}

func (w *world) listenTo(t *testing.T, bearer, query, notifications string) (*listener, string) {
	t.Helper()
	body, header := modernMeta(listenMethod, `"notifications":{`+notifications+`}`)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+"/t/acme/mcp"+query, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+bearer)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{t, make(chan string, 1000), cancel}
	go func() {
		defer close(l.lines)
		defer res.Body.Close()
		for s := bufio.NewScanner(res.Body); s.Scan(); {
			if data, ok := strings.CutPrefix(s.Text(), "data: "); ok {
				l.lines <- data
			}
		}
	}()
	return l, l.next()
}

// next is the next message; "" when the stream has ended.
func (l *listener) next() string {
	l.t.Helper()
	select {
	case m := <-l.lines:
		return m
	case <-time.After(10 * time.Second):
		l.t.Fatal("nothing came")
		return ""
	}
}

// TestUpdatesReachOnlyWhoMaySee opens streams of many principals, among them
// two of one tenant with the same tools and scopes, and changes things of each.
func TestUpdatesReachOnlyWhoMaySee(t *testing.T) {
	b := newBackend()
	w := start(t, stub{}, withBackend(b))
	db, web, theirs := b.node("acme-db1"), b.node("acme-web1"), b.node("globex-db1")
	dbEvent, webEvent, theirEvent := b.plant(db, "retransmit_burst", nil), b.plant(web, "retransmit_burst", nil), b.plant(theirs, "retransmit_burst", nil)
	uris := []string{recentURI, eventPrefix + dbEvent.String() + eventSuffix, eventPrefix + webEvent.String() + eventSuffix, eventPrefix + theirEvent.String() + eventSuffix, "telltale://health", "telltale://nothing"}
	all, ack := w.listen(t, "read", uris...)
	if !strings.Contains(ack, "acknowledged") || strings.Count(ack, "telltale://") != 3 || strings.Contains(ack, theirEvent.String()) {
		t.Errorf("agreed to %s", ack)
	}
	onlyWeb, ack := w.listen(t, "read#web", uris...)
	if strings.Count(ack, "telltale://") != 2 || strings.Contains(ack, dbEvent.String()) || !strings.Contains(ack, webEvent.String()) {
		t.Errorf("a limited caller is told of %s", ack)
	}
	foreign, ack := w.listen(t, "read@globex", uris...)
	if strings.Count(ack, "telltale://") != 2 || !strings.Contains(ack, theirEvent.String()) {
		t.Errorf("the other tenant is told of %s", ack)
	}
	expect := func(l *listener, words ...string) {
		t.Helper()
		for _, word := range words {
			if m := l.next(); !strings.Contains(m, "notifications/resources/updated") || !strings.Contains(m, word) || !strings.Contains(m, "subscriptionId") {
				t.Errorf("want news of %s, got %s", word, m)
			}
		}
	}
	b.tellOf(w.tenant, dbEvent, db) // first what the limited caller must not hear of
	expect(all, recentURI, dbEvent.String())
	b.tellOf(w.other, theirEvent, theirs)
	expect(foreign, recentURI, theirEvent.String())
	b.tellOf(w.tenant, webEvent, web)
	expect(all, recentURI, webEvent.String())
	// The first thing that the limited caller hears is the one that it may see.
	expect(onlyWeb, recentURI, webEvent.String())
	for _, l := range []*listener{all, onlyWeb, foreign} {
		select {
		case m := <-l.lines:
			t.Errorf("one more message: %s", m)
		default:
		}
	}
	for _, l := range []*listener{all, onlyWeb, foreign} {
		l.end()
	}
	eventually(t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		w.h.listens.mu.Lock()
		defer w.h.listens.mu.Unlock()
		return len(b.hear[w.tenant])+len(b.hear[w.other]) == 0 && w.h.listens.open == 0 && len(w.h.listens.waiting) == 0
	})
}

// TestUpdatesOfTasks: a watched ticket tells when it moved; one of others
// cannot be watched.
func TestUpdatesOfTasks(t *testing.T) {
	b := newBackend()
	w := start(t, stub{}, withBackend(b))
	s := connect(t, w.URL+"/t/acme/mcp", "diagnose", "")
	ticket, _ := bodyOf(t, call(t, s, "trace_slow_io", `{"node":"acme-db1","duration_s":20}`).StructuredContent)["ticket_id"].(string)
	id, err := tasks.ParseID(ticket)
	if err != nil {
		t.Fatal(err)
	}
	mine, ack := w.listen(t, "read", ticketPrefix+ticket)
	if !strings.Contains(ack, ticket) {
		t.Errorf("agreed to %s", ack)
	}
	for _, bearer := range []string{"read@globex", "read#web"} {
		if l, ack := w.listen(t, bearer, ticketPrefix+ticket); strings.Contains(ack, ticket) || !strings.Contains(l.next(), `"id":7`) {
			t.Errorf("%s may watch it: %s", bearer, ack)
		}
	}
	b.end(id, tasks.Completed)
	if m := mine.next(); !strings.Contains(m, ticketPrefix+ticket) {
		t.Errorf("got %s", m)
	}
	mine.end()
	eventually(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.watch[id]) == 0 })
}

// TestStreamsAreBounded: a principal has a few, and each ends by itself or
// with the server.
func TestStreamsAreBounded(t *testing.T) {
	b := newBackend()
	w := start(t, stub{}, withBackend(b))
	open := []*listener{}
	for range maxOwnListens {
		l, ack := w.listen(t, "read", recentURI)
		if !strings.Contains(ack, "acknowledged") {
			t.Fatalf("got %s", ack)
		}
		open = append(open, l)
	}
	if _, m := w.listen(t, "read", recentURI); !strings.Contains(m, "too_many_streams") {
		t.Errorf("one too many: %s", m)
	}
	if l, m := w.listen(t, "read@globex", recentURI); !strings.Contains(m, "acknowledged") {
		t.Errorf("another principal: %s", m)
	} else {
		l.end()
	}
	w.h.Close()
	for _, l := range open {
		if m := l.next(); !strings.Contains(m, `"id":7`) {
			t.Errorf("the end of a stream is its result: %s", m)
		}
	}
	w.h.Close() // again is no harm
	short := start(t, stub{}, func(c *Config) { withBackend(newBackend())(c); c.ListenFor = 20 * time.Millisecond })
	l, _ := short.listen(t, "read", recentURI)
	if m := l.next(); !strings.Contains(m, `"id":7`) {
		t.Errorf("a stream ends after its time: %s", m)
	}
}

// TestManyChangesAreOneMessage: a storm of events is told once a pace.
func TestManyChangesAreOneMessage(t *testing.T) {
	b := newBackend()
	w := start(t, stub{}, func(c *Config) { withBackend(b)(c); c.ListenPace = time.Hour })
	db := b.node("acme-db1")
	id := b.plant(db, "retransmit_burst", nil)
	l, _ := w.listen(t, "read", recentURI)
	for range 50 {
		b.tellOf(w.tenant, id, db)
	}
	if m := l.next(); !strings.Contains(m, recentURI) {
		t.Errorf("got %s", m)
	}
	eventually(t, func() bool { // the feed has taken in all of them
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.hear[w.tenant]) == 1 && len(b.hear[w.tenant][0]) == 0
	})
	select {
	case m := <-l.lines:
		t.Errorf("told again at once: %s", m)
	default:
	}
}

// TestPanicInAStream ends the stream alone.
func TestPanicInAStream(t *testing.T) {
	b := newBackend()
	w := start(t, stub{}, withBackend(b))
	db := b.node("acme-db1")
	id := b.plant(db, "retransmit_burst", nil)
	l, _ := w.listen(t, "read#db", recentURI)
	b.mu.Lock()
	b.events[id] = nil // a look at it panics
	b.mu.Unlock()
	b.tellOf(w.tenant, id, db)
	if m := l.next(); !strings.Contains(m, `"id":7`) {
		t.Errorf("got %s", m)
	}
	if !strings.Contains(w.log.String(), "panic in a stream of updates") {
		t.Error("the log lacks the panic")
	}
	if r := w.post(t, "read", "", fmt.Sprintf(toolCall("explain", `{"node":%q}`), "acme-db1")); r.status != 200 {
		t.Errorf("the next call: %d", r.status)
	}
}

// TestLostHints: when hints were lost, who sees everything is told to look
// again, a limited caller only if what it sees did change.
func TestLostHints(t *testing.T) {
	b := newBackend()
	w := start(t, stub{}, withBackend(b))
	db, web := b.node("acme-db1"), b.node("acme-web1")
	id := b.plant(web, "retransmit_burst", nil)
	all, _ := w.listen(t, "read", recentURI)
	limited, _ := w.listen(t, "read#web", recentURI, eventPrefix+id.String()+eventSuffix)
	lost := func() { b.tellOf(w.tenant, events.ID{}, fakeNode{id: db.id}) }
	lost()
	if m := all.next(); !strings.Contains(m, recentURI) {
		t.Errorf("got %s", m)
	}
	if m := limited.next(); !strings.Contains(m, id.String()) { // the event that it watches may have changed
		t.Errorf("got %s", m)
	}
	b.plant(db, "retransmit_burst", nil)
	lost()
	if m := limited.next(); !strings.Contains(m, id.String()) {
		t.Errorf("the list of others changed, and the limited caller is told %s", m)
	}
	b.plant(web, "retransmit_burst", nil)
	lost()
	if m := limited.next(); !strings.Contains(m, recentURI) {
		t.Errorf("got %s", m)
	}
}

// TestListChangesAreTold: a stream that asked for it is told when the fleet
// changed its caller's list of tools, and of nothing else.
func TestListChangesAreTold(t *testing.T) {
	b := newBackend()
	run := &fakeRunning{fleets: map[string][]string{"acme": {"network"}, "globex": {"network"}}, b: b}
	w := start(t, stub{}, func(c *Config) {
		withBackend(b)(c)
		c.Services.Running, c.ListenLook = run, time.Millisecond
	})
	open := func(bearer, query, notifications string) (*listener, string) {
		return w.listenTo(t, bearer, query, notifications)
	}
	const lists = `"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true`
	mine, ack := open("diagnose", "", lists)
	if !strings.Contains(ack, `"toolsListChanged":true`) || strings.Contains(ack, "promptsListChanged") || strings.Contains(ack, "resourcesListChanged") {
		t.Errorf("agreed to %s", ack)
	}
	both, ack := open("diagnose", "", lists+`,"resourceSubscriptions":["`+recentURI+`"]`)
	if !strings.Contains(ack, recentURI) || !strings.Contains(ack, `"toolsListChanged":true`) {
		t.Errorf("agreed to %s", ack)
	}
	reader, _ := open("read", "", lists)                      // sees no tool of a component
	narrow, _ := open("diagnose", "?toolsets=observe", lists) // nor does this URL
	foreign, _ := open("diagnose@globex", "", lists)          // nor does the other tenant's fleet change
	if l, ack := open("payloads", "", lists); strings.Contains(ack, "toolsListChanged") || !strings.Contains(l.next(), `"id":7`) {
		t.Errorf("a caller without tools: %s", ack)
	}
	for _, fleet := range [][]string{{"network", "storage"}, {"network"}, {"network", "process"}} {
		run.set("acme", fleet...)
		for _, l := range []*listener{mine, both} {
			if m := l.next(); !strings.Contains(m, "notifications/tools/list_changed") || !strings.Contains(m, "subscriptionId") {
				t.Errorf("got %s", m)
			}
		}
	}
	b.tellOf(w.tenant, b.plant(b.node("acme-db1"), "retransmit_burst", nil), b.node("acme-db1"))
	if m := both.next(); !strings.Contains(m, recentURI) {
		t.Errorf("got %s", m)
	}
	for name, l := range map[string]*listener{"reader": reader, "narrow": narrow, "foreign": foreign, "mine": mine} {
		select {
		case m := <-l.lines:
			t.Errorf("%s: one more message: %s", name, m)
		default:
		}
	}
	for _, version := range []string{"2025-11-25", modernVersion} {
		caps := connect(t, w.URL+"/t/acme/mcp", "diagnose", version).InitializeResult().Capabilities
		if caps.Tools == nil || caps.Tools.ListChanged != (version == modernVersion) {
			t.Errorf("%s: capabilities %+v", version, caps.Tools)
		}
	}
}

// TestStreamEndsWithItsCaller: whoever loses the credential, a scope or the
// nodes that it came with loses the stream, long before its time is over.
func TestStreamEndsWithItsCaller(t *testing.T) {
	for name, lose := range map[string]func(*tenants.Scope) bool{
		"revoked":       func(*tenants.Scope) bool { return false },
		"fewer scopes":  func(s *tenants.Scope) bool { s.Granted = tenants.Payloads; return true },
		"fewer nodes":   func(s *tenants.Scope) bool { s.Nodes.Labels = map[string]string{"role": "web"}; return true },
		"other tenant":  func(s *tenants.Scope) bool { s.Tenant = tenants.NewTenantID(); return true },
		"MCP went away": func(s *tenants.Scope) bool { s.Slug = "off"; return true },
	} {
		t.Run(name, func(t *testing.T) {
			var lost atomic.Bool
			looked := make(chan struct{}, 1000)
			w := start(t, stub{}, func(c *Config) {
				withBackend(newBackend())(c)
				c.Tenants = switches{"off": {MCPDisabled: true}}
				c.ListenAgain = time.Millisecond
				c.Again = func(r *http.Request) (s tenants.Scope, ok bool) {
					looked <- struct{}{}
					s, ok = auth.ScopeFrom(r.Context())
					if lost.Load() {
						ok = lose(&s)
					}
					return s, ok
				}
			})
			l, ack := w.listen(t, "read", recentURI)
			if !strings.Contains(ack, "acknowledged") {
				t.Fatalf("got %s", ack)
			}
			for range 3 { // who stays what it was keeps the stream
				<-looked
			}
			lost.Store(true)
			if m := l.next(); !strings.Contains(m, `"id":7`) {
				t.Errorf("the end of a stream is its result: %s", m)
			}
		})
	}
}

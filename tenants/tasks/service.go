package tasks

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Nodes finds the nodes that a request is meant for. The fleet slice
// satisfies it.
type Nodes interface {
	Targets(ctx context.Context, scope tenants.Scope, q tenants.TargetQuery) ([]tenants.Target, error)
	// QueueTarget queues the look for a named node before statements that need
	// it: the setting telltale.found is its Key while it can take work, or empty.
	QueueTarget(b *pgx.Batch, scope tenants.Scope, q tenants.TargetQuery) error
}

// Bus carries hints between replicas. *tenantdb.Bus satisfies it.
type Bus interface {
	Send(to string, h tenantdb.Hint) // to one replica, or to all when empty; never blocks
	Subscribe(topic string) (<-chan tenantdb.Hint, func())
}

// Topics of the hints. A key is a task's id; of topicStart and topicCancel it
// is followed by the node's.
const (
	topicMoved  = "task.moved"
	topicGoesOn = "task.on" // it runs, or got further
	topicStart  = "task.start"
	topicCancel = "task.cancel"
)

// Config tunes a Service.
type Config struct {
	Replica string           // name of this server process, as in the fleet's sessions; empty: a random one
	Now     func() time.Time // nil: time.Now
}

// Service starts tasks and answers about them. It is safe for concurrent use.
type Service struct {
	db      *tenantdb.DB
	reg     *inspector.Registry
	nodes   Nodes
	bus     Bus
	replica string
	now     func() time.Time
	log     *slog.Logger
	watches watches
	counts  counters
	blind   atomic.Bool // who waits could not look the last time

	mu       sync.Mutex
	channels map[nodeKey]*Channel
	byName   map[nodeName]*Channel // channels under the name that their node had when a task was last meant for it
	claims   map[runKey]struct{}   // runs that wait to be claimed here
	dirt     map[*Channel]struct{} // channels with something to write
	untold   map[taskKey]struct{}  // tasks that moved, for the other replicas to hear a little later

	toClaim chan struct{} // one token: claims has something
	toWrite chan struct{} // one token: a channel has something to write
	toTell  chan struct{} // one token: untold has something
}

// taskKey, nodeKey and runKey name rows over all tenants.
type (
	taskKey struct {
		tenant tenants.TenantID
		task   ID
	}
	nodeKey struct {
		tenant tenants.TenantID
		node   tenants.NodeID
	}
	nodeName struct {
		tenant tenants.TenantID
		name   string
	}
	runKey struct {
		taskKey
		node tenants.NodeID
	}
)

func (k runKey) onNode() nodeKey { return nodeKey{k.tenant, k.node} }

// words is the key of a hint about one run.
func (k runKey) words() string { return k.task.String() + "/" + k.node.String() }

func readRunKey(h tenantdb.Hint) (k runKey, ok bool) {
	const size = 36
	if len(h.Key) != 2*size+1 {
		return k, false
	}
	id, err := uuid.Parse(h.Key[:size])
	if err != nil {
		return k, false
	}
	node, err := tenants.ParseNodeID(h.Key[size+1:])
	return runKey{taskKey{h.Tenant, ID(id)}, node}, err == nil
}

// New builds a Service. It starts nothing: run Run. The registry must be
// complete. A nil bus sends no hints; what other replicas do is then seen
// within a second.
func New(db *tenantdb.DB, reg *inspector.Registry, nodes Nodes, bus Bus, cfg Config, log *slog.Logger) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Replica == "" { // the empty name is nobody's
		cfg.Replica = rand.Text()
	}
	if bus == nil {
		bus = silence{}
	}
	return &Service{db: db, reg: reg, nodes: nodes, bus: bus, replica: cfg.Replica, now: cfg.Now, log: log,
		watches: watches{m: map[taskKey]*watched{}}, counts: counters{ended: map[State]uint64{}},
		channels: map[nodeKey]*Channel{}, byName: map[nodeName]*Channel{}, claims: map[runKey]struct{}{}, dirt: map[*Channel]struct{}{}, untold: map[taskKey]struct{}{},
		toClaim: make(chan struct{}, 1), toWrite: make(chan struct{}, 1), toTell: make(chan struct{}, 1)}
}

// silence is the bus of a replica that has no other.
type silence struct{}

func (silence) Send(string, tenantdb.Hint) {}
func (silence) Subscribe(string) (<-chan tenantdb.Hint, func()) {
	return nil, func() {}
}

// clock is the server's time as the database keeps it: to the microsecond.
func (s *Service) clock() time.Time { return s.now().UTC().Truncate(time.Microsecond) }

const (
	lookEvery   = time.Second      // claims, watched tasks and the sweep, without any hint
	renewEvery  = 3 * time.Second  // leases
	expireEvery = time.Minute      // tickets whose life is over
	patience    = 10 * time.Second // for the database, off any caller's path
)

// Run claims, writes, renews, sweeps and wakes until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { s.loop(ctx, s.toClaim, s.claim) })
	parts.Go(func() { s.loop(ctx, s.toWrite, s.write) })
	parts.Go(func() { s.loop(ctx, s.toTell, s.tell) })
	parts.Go(func() {
		s.every(ctx, writeEvery, "write", func(context.Context) error { token(s.toWrite); return nil })
	})
	parts.Go(func() { s.every(ctx, renewEvery, "renew leases", s.renew) })
	parts.Go(func() { s.every(ctx, lookEvery, "look for runs to claim", s.lookForClaims) })
	parts.Go(func() { s.every(ctx, lookEvery, "look at watched tasks", s.lookAtWatched) })
	parts.Go(func() { s.every(ctx, lookEvery, "sweep runs", s.Sweep) })
	parts.Go(func() { s.every(ctx, expireEvery, "expire tickets", s.expire) })
	return s.hear(ctx)
}

// every runs work now and then. What fails is tried again next time.
func (s *Service) every(ctx context.Context, pause time.Duration, what string, work func(context.Context) error) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		bounded, cancel := context.WithTimeout(ctx, patience)
		if err := work(bounded); err != nil && ctx.Err() == nil {
			s.log.Warn("tasks: "+what, "error", err)
		}
		cancel()
	}
}

// loop runs work whenever there is a token. What fails is tried again with a
// later one.
func (s *Service) loop(ctx context.Context, tokens chan struct{}, work func(context.Context) error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-tokens:
		}
		bounded, cancel := context.WithTimeout(ctx, patience)
		if err := work(bounded); err != nil && ctx.Err() == nil {
			s.log.Warn("tasks: runs were not moved; they are tried again", "error", err)
		}
		cancel()
	}
}

// token leaves a token.
func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// hear acts on hints of the other replicas. What a gap in them hides is found
// by the looks of every second.
func (s *Service) hear(ctx context.Context) error {
	moved, stop := s.bus.Subscribe(topicMoved)
	defer stop()
	on, stop1 := s.bus.Subscribe(topicGoesOn)
	defer stop1()
	start, stop2 := s.bus.Subscribe(topicStart)
	defer stop2()
	cancels, stop3 := s.bus.Subscribe(topicCancel)
	defer stop3()
	for {
		select {
		case <-ctx.Done():
			return nil
		case h := <-moved:
			if id, err := uuid.Parse(h.Key); err == nil {
				s.watches.wake(taskKey{h.Tenant, ID(id)}, false)
			}
		case h := <-on:
			if id, err := uuid.Parse(h.Key); err == nil {
				s.watches.wake(taskKey{h.Tenant, ID(id)}, true)
			}
		case h := <-start:
			if k, ok := readRunKey(h); ok {
				s.queueClaim(k)
			}
		case h := <-cancels:
			if k, ok := readRunKey(h); ok {
				s.orderCancel(k)
			}
		}
	}
}

// moved tells everybody who waits for a task, here and elsewhere. While
// somebody here waits for it, hardly anybody does elsewhere: the others hear of
// it once the answer is on its way, because a notification wakes a process of
// every replica and of the database for each.
func (s *Service) moved(k taskKey) {
	if !s.watches.wake(k, false) {
		s.hint(topicMoved, k)
		return
	}
	s.mu.Lock()
	s.untold[k] = struct{}{}
	s.mu.Unlock()
	token(s.toTell)
}

// tellLinger is how much later the other replicas hear of what somebody here
// waits for.
const tellLinger = 3 * time.Millisecond

// tell sends the hints that could wait.
func (s *Service) tell(ctx context.Context) error {
	linger := time.NewTimer(tellLinger)
	defer linger.Stop()
	select {
	case <-ctx.Done(): // they are not to be lost with this replica
	case <-linger.C:
	}
	s.mu.Lock()
	list := s.untold
	s.untold = map[taskKey]struct{}{}
	s.mu.Unlock()
	for k := range list {
		s.hint(topicMoved, k)
	}
	return nil
}

func (s *Service) hint(topic string, k taskKey) {
	s.bus.Send("", tenantdb.Hint{Topic: topic, Tenant: k.tenant, Key: k.task.String()})
}

// goesOn tells those who wait for more of a task than its end.
func (s *Service) goesOn(k taskKey) {
	s.watches.wake(k, true)
	s.hint(topicGoesOn, k)
}

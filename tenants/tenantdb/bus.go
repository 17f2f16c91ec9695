package tenantdb

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	mrand "math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Hint says that rows may have moved: look at them again. It is no data and
// may be lost, repeated or late; consumers also look by themselves every
// second or so. Topic and Key are at most 512 bytes together.
type Hint struct {
	Topic  string
	Tenant tenants.TenantID
	Key    string // which rows; empty: any of the topic, after a gap
}

const (
	busLinger   = 5 * time.Millisecond // at least this long between two sends
	busPayload  = 7900                 // bytes of one notification; PostgreSQL takes 7,999
	busHint     = 512                  // bytes of one hint's words
	busQueue    = 10_000               // hints that wait for sending
	busInbox    = 512                  // hints that wait in one subscription
	busRecheck  = 15 * time.Second     // silence after which the listening connection is tried
	busPatience = 5 * time.Second      // for one statement or one connect
	busBackoff  = 5 * time.Second      // longest pause between two connects
	busAll      = "telltale_all"
)

// Bus carries hints between the replicas over NOTIFY, on two connections of
// its own: one listens, one sends. A pooler in transaction mode cannot carry
// it: give Config.ListenDSN then.
type Bus struct {
	cfg     Config
	replica string
	self    string // names this process among those that may share replica
	log     *slog.Logger

	mu      sync.Mutex
	subs    map[string]map[*subscription]struct{} // by topic
	waiting map[outgoing]struct{}
	order   []outgoing
	stats   BusStats

	work chan struct{} // one token: waiting has something
}

type subscription struct{ inbox chan Hint }

type outgoing struct {
	to string // PostgreSQL's channel
	Hint
}

// BusStats are a bus's own counters.
type BusStats struct {
	Listening  bool   // the connection stands
	Connects   uint64 // of the listening connection, the first one included
	Sent       uint64 // hints given to PostgreSQL
	Received   uint64 // hints of other replicas
	Dropped    uint64 // hints that found no room or no connection, or were too long
	Overflowed uint64 // hints that a subscriber was too slow for
}

// NewBus builds a Bus for the replica of this name. It starts nothing: run Run.
func NewBus(cfg Config, replica string, log *slog.Logger) *Bus {
	return &Bus{cfg: cfg, replica: replica, self: rand.Text(), log: log,
		subs: map[string]map[*subscription]struct{}{}, waiting: map[outgoing]struct{}{}, work: make(chan struct{}, 1)}
}

// Send gives a hint to one replica, or to all of them when to is empty, this
// one included. It never blocks: hints are sent together a few milliseconds
// later, equal ones once. Those for this replica reach its subscribers at once.
func (b *Bus) Send(to string, h Hint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if to == "" || to == b.replica {
		b.deliver(h)
		if to != "" {
			return
		}
	}
	o := outgoing{channelOf(to), h}
	if _, twice := b.waiting[o]; twice {
		return
	}
	if len(b.order) >= busQueue || len(h.Topic)+len(h.Key) > busHint {
		b.stats.Dropped++
		return
	}
	b.waiting[o] = struct{}{}
	b.order = append(b.order, o)
	select {
	case b.work <- struct{}{}:
	default:
	}
}

// Subscribe answers the hints of a topic until cancel is called. After each
// connect of the bus, and so after every gap, comes a hint with an empty Key.
// A subscriber that is slow misses hints.
func (b *Bus) Subscribe(topic string) (hints <-chan Hint, cancel func()) {
	s := &subscription{inbox: make(chan Hint, busInbox)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subs[topic] == nil {
		b.subs[topic] = map[*subscription]struct{}{}
	}
	b.subs[topic][s] = struct{}{}
	return s.inbox, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.subs[topic], s)
		if len(b.subs[topic]) == 0 {
			delete(b.subs, topic)
		}
	}
}

// Stats reads the counters.
func (b *Bus) Stats() BusStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stats
}

// deliver hands a hint to this replica's subscribers. b.mu is held.
func (b *Bus) deliver(h Hint) {
	for s := range b.subs[h.Topic] {
		select {
		case s.inbox <- h:
		default:
			b.stats.Overflowed++
		}
	}
}

// Run listens and sends until ctx ends. A lost connection is made again, with
// growing pauses.
func (b *Bus) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	parts.Go(func() { b.keep(ctx, "listen", b.listen) })
	parts.Go(func() { b.keep(ctx, "send", b.send) })
	parts.Wait()
	return nil
}

// keep runs work on one connection after the other until ctx ends. work's
// error is never nil.
func (b *Bus) keep(ctx context.Context, name string, work func(context.Context, *pgx.Conn) error) {
	pause := 50 * time.Millisecond
	for {
		begun := time.Now()
		conn, err := b.connect(ctx)
		if err == nil {
			err = work(ctx, conn)
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			_ = conn.Close(end)
			cancel()
		}
		if ctx.Err() != nil {
			return
		}
		if time.Since(begun) > busBackoff {
			pause = 50 * time.Millisecond
		}
		b.log.Warn("the bus between replicas lost its connection; it is made again", "part", name, "error", err, "pause", pause)
		wait := time.NewTimer(pause/2 + mrand.N(pause))
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
		pause = min(2*pause, busBackoff)
	}
}

func (b *Bus) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, busPatience)
	defer cancel()
	dsn, own := b.cfg.ListenDSN, true
	if dsn == "" {
		dsn = b.cfg.AppDSN
	}
	if dsn == "" {
		dsn, own = b.cfg.DSN, false
	}
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil { // the parser's error may show the connection string's password
		return nil, fault.New(fault.Invalid, "bad_dsn", "the connection string of the bus cannot be read")
	}
	if !own {
		cfg.User = appRole
	}
	cfg.RuntimeParams["application_name"] = "telltaled bus"
	return pgx.ConnectConfig(ctx, cfg)
}

func (b *Bus) listen(ctx context.Context, conn *pgx.Conn) error {
	first, cancel := context.WithTimeout(ctx, busPatience)
	defer cancel()
	for _, ch := range []string{busAll, channelOf(b.replica)} {
		if _, err := conn.Exec(first, "listen "+pgx.Identifier{ch}.Sanitize()); err != nil {
			return err
		}
	}
	b.connected(true)
	defer b.connected(false)
	for {
		wait, cancel := context.WithTimeout(ctx, busRecheck)
		n, err := conn.WaitForNotification(wait)
		cancel()
		switch {
		case err == nil:
			b.receive(n.Payload)
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, context.DeadlineExceeded) && !conn.IsClosed():
			ask, cancel := context.WithTimeout(ctx, busPatience)
			err = conn.Ping(ask)
			cancel()
			if err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// connected notes the state of the listening connection. A new one has missed
// whatever was sent before: every subscriber looks at its rows again.
func (b *Bus) connected(yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Listening = yes
	if !yes {
		return
	}
	b.stats.Connects++
	for topic := range b.subs {
		b.deliver(Hint{Topic: topic})
	}
}

// send gives waiting hints to PostgreSQL: at once after a pause, and not more
// often than every busLinger.
func (b *Bus) send(ctx context.Context, conn *pgx.Conn) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.work:
		}
		batch := b.take()
		channels, payloads := b.pack(batch)
		try, cancel := context.WithTimeout(ctx, busPatience)
		_, err := conn.Exec(try, `select pg_notify(u.c, u.p) from unnest($1::text[], $2::text[]) as u(c, p)`, channels, payloads)
		cancel()
		b.mu.Lock()
		if err != nil {
			b.stats.Dropped += uint64(len(batch))
		} else {
			b.stats.Sent += uint64(len(batch))
		}
		b.mu.Unlock()
		if err != nil {
			return err
		}
		pause.Reset(busLinger)
	}
}

func (b *Bus) take() []outgoing {
	b.mu.Lock()
	defer b.mu.Unlock()
	batch := b.order
	b.order = nil
	clear(b.waiting)
	return batch
}

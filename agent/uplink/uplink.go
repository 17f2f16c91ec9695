// Package uplink is the agent's way to the server: enrolment, the identity
// directory, one report stream with numbered envelopes that are forgotten only
// when the server has committed them, and beside it the task channel.
//
// It knows what windows, capabilities and layouts are (agent/inspector) and
// the wire (api/telltalev1), and nothing of how they come about: the runner
// pushes them. It must not import a collector. Start reading at Uplink.Run,
// then session.go for one stream, queue.go for what survives it, and second.go
// for the task channel.
package uplink

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// Defaults of Config.
const (
	DefaultQueueItems = 4096
	DefaultQueueBytes = 8 << 20
)

// Config tunes an Uplink. The zero value of every field has a good meaning.
type Config struct {
	Server     string    // overrides the identity's server
	Facts      Facts     // what this machine is
	StartedAt  time.Time // start of the agent; zero: when New was called
	Disabled   []string  // modules switched off by the node's own configuration
	QueueItems int       // reports held at most; 0: DefaultQueueItems
	QueueBytes int       // bytes held at most; 0: DefaultQueueBytes
	Dial       DialFunc  // nil: plain TCP
	// ConfigDigest is a hash of the effective configuration, so that a change
	// shows; empty: unknown.
	ConfigDigest []byte
	// Tasks does what the server asks for. Nil: this node takes no tasks and
	// opens no task channel.
	Tasks TaskHandler
	// Control is called with the modules switched off from afar, whenever the
	// list comes; calls do not overlap. It must return soon. May be nil.
	Control func(disabled []string)
	// Renewed is called after each renewal of the certificate. May be nil.
	Renewed func()
}

// Uplink sends what is pushed, in order, each exactly once by the server's
// account. Push and SetCapabilities never block; Run does the work.
type Uplink struct {
	cfg      Config
	id       *Identity
	log      *slog.Logger
	queue    *queue
	pos      *position
	counts   counters
	offline  atomic.Int64 // unix ns since when, 0: connected
	troubles troubles
	refusals troubles // of the task channel

	mu      sync.Mutex
	layouts layouts
	quieted map[string]time.Time // last time a notice with this reason was logged
}

type counters struct {
	pushed, sent, acked, connects, failures, rewinds, quarantined, renewals atomic.Uint64
	eventsPushed, eventsAcked, eventsDropped                                atomic.Uint64
	channels, orders                                                        atomic.Uint64
	channelOpen                                                             atomic.Bool
}

// Stats is a snapshot of an Uplink's counters since its start.
type Stats struct {
	Pushed, Sent, Acked         uint64 // windows taken in; reports sent (again, too); reports committed
	Connects, Failures          uint64 // streams opened; attempts or streams that failed
	Rewinds, Quarantined        uint64 // asked for again; kept out by the server
	Renewals                    uint64
	EventsPushed, EventsAcked   uint64            // events taken in; settled by the server
	EventsDropped               uint64            // events that PushEvent did not take
	Channels, Orders            uint64            // task channels opened; requests that came
	ChannelOpen                 bool              // a task channel is open now
	Dropped                     map[string]uint64 // windows dropped here, per component
	QueueItems, QueueBytes      int
	Connected                   bool
	OfflineSince, CertExpiresAt time.Time // OfflineSince is zero while connected
}

// New makes an Uplink over an identity. It starts nothing.
func New(cfg Config, id *Identity, log *slog.Logger) *Uplink {
	if cfg.Server == "" {
		cfg.Server = id.Server
	}
	if cfg.StartedAt.IsZero() {
		cfg.StartedAt = time.Now()
	}
	if cfg.QueueItems == 0 {
		cfg.QueueItems = DefaultQueueItems
	}
	if cfg.QueueBytes == 0 {
		cfg.QueueBytes = DefaultQueueBytes
	}
	u := &Uplink{
		cfg: cfg, id: id, log: log, queue: newQueue(cfg.QueueItems, cfg.QueueBytes),
		pos: openPosition(id.dir, log), quieted: map[string]time.Time{},
	}
	u.offline.Store(time.Now().UnixNano())
	return u
}

// Push takes one window. It packs the values at once, so the collector may
// reuse them. False means that the queue was full and a window was dropped:
// the sign for whoever samples to slow down.
func (u *Uplink) Push(w *inspector.Window) bool {
	u.counts.pushed.Add(1)
	u.mu.Lock()
	u.layouts.use(w.Layout)
	u.mu.Unlock()
	return u.queue.push(windowReport(w))
}

// SetCapabilities sends a capability report; one that still waits is
// replaced.
func (u *Uplink) SetCapabilities(caps []inspector.Capability) {
	u.queue.setCaps(capsReport(caps, time.Now()))
}

// acked forgets what the server has settled.
func (u *Uplink) acked(seq uint64) {
	reports, events := u.queue.ack(seq)
	u.counts.acked.Add(uint64(reports))
	u.counts.eventsAcked.Add(uint64(events))
}

// Stats returns the counters.
func (u *Uplink) Stats() Stats {
	s := Stats{
		Pushed: u.counts.pushed.Load(), Sent: u.counts.sent.Load(), Acked: u.counts.acked.Load(),
		Connects: u.counts.connects.Load(), Failures: u.counts.failures.Load(),
		Rewinds: u.counts.rewinds.Load(), Quarantined: u.counts.quarantined.Load(), Renewals: u.counts.renewals.Load(),
		EventsPushed: u.counts.eventsPushed.Load(), EventsAcked: u.counts.eventsAcked.Load(), EventsDropped: u.counts.eventsDropped.Load(),
		Channels: u.counts.channels.Load(), Orders: u.counts.orders.Load(), ChannelOpen: u.counts.channelOpen.Load(),
		Dropped: u.queue.drops(), CertExpiresAt: u.id.Certificate().NotAfter,
	}
	s.QueueItems, s.QueueBytes = u.queue.depth()
	if ns := u.offline.Load(); ns != 0 {
		s.OfflineSince = time.Unix(0, ns)
	} else {
		s.Connected = true
	}
	return s
}

// Run keeps a stream open until ctx ends, then gives what is queued up to
// flushTimeout to arrive and returns nil. No answer of a server ends it: an
// identity that is refused now may be accepted later. It asks seldom while a
// refusal stands that only people can end, and logs each trouble once until
// it is over.
func (u *Uplink) Run(ctx context.Context) error {
	defer u.pos.close()
	var back backoff
	for ctx.Err() == nil {
		began := time.Now()
		err := u.session(ctx)
		if u.offline.Load() == 0 {
			u.offline.Store(time.Now().UnixNano())
			if time.Since(began) > backoffMax/2 {
				back.reset()
			}
		}
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, errHandover) {
			// At once, unless the server keeps sending us away.
			if time.Since(began) < handoverTimeout {
				sleep(ctx, back.next(0))
			}
			continue
		}
		u.counts.failures.Add(1)
		wait := u.wait(&back, err)
		u.tell(err, wait)
		sleep(ctx, wait)
	}
	return nil
}

// wait is the time to the next attempt after a failure.
func (u *Uplink) wait(back *backoff, err error) time.Duration {
	r, ok := errors.AsType[*Refusal](err)
	switch {
	case !ok:
		return back.next(0)
	case r.Lasting:
		return back.seldom(r.RetryAfter)
	}
	return back.next(r.RetryAfter)
}

// tell logs a trouble when it begins; its later attempts are for debugging.
func (u *Uplink) tell(err error, wait time.Duration) {
	level, msg := slog.LevelDebug, "still no connection to the server"
	if u.troubles.begins("connection", err) {
		level, msg = slog.LevelWarn, "no connection to the server; trying again until there is one"
		if r, ok := errors.AsType[*Refusal](err); ok && r.Lasting {
			msg = "no connection to the server; trying again every minute or two"
			if r.Answered {
				msg = "the server refuses this node; asking again every minute or two"
			}
		}
	}
	u.log.Log(context.Background(), level, msg, "server", u.cfg.Server, "error", err, "again_in", wait.Round(time.Millisecond))
}

func (u *Uplink) dial(way *path) (*grpc.ClientConn, error) {
	return dial(u.cfg.Server, &tls.Config{RootCAs: u.id.roots, GetClientCertificate: u.id.clientCert}, u.cfg.Dial, way)
}

// notice logs a reason at most once a minute.
func (u *Uplink) notice(reason string, seq uint64) {
	u.mu.Lock()
	quiet := time.Since(u.quieted[reason]) < time.Minute
	if !quiet && len(u.quieted) < 64 {
		u.quieted[reason] = time.Now()
	}
	u.mu.Unlock()
	if !quiet {
		u.log.Warn("the server kept a report out", "reason", inspector.CleanText(reason), "seq", seq)
	}
}

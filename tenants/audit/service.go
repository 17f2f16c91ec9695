package audit

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Config tunes a Service. The zero value is the product's default.
type Config struct {
	Replica   string           // names this process in its rows
	Retention time.Duration    // age at which rows are dropped, by the week; 0 is 400 days
	Queue     int              // entries that may wait for their write; 0 is 10,000
	Settle    time.Duration    // age at which a row is sealed; 0 is 5 s
	Now       func() time.Time // nil: time.Now
}

const (
	day       = 24 * time.Hour
	week      = 7 * day
	flushPace = 500 * time.Millisecond // rows wait no longer than this and one write
	flushSoon = 200                    // rows that do not wait for it: many at once would hold up whoever reads meanwhile
	sealPace  = 10 * time.Second
	keepPace  = 10 * time.Minute
	lastWrite = 3 * time.Second // what is left when the process stops gets this long
)

// Service takes in and answers the audit. It is safe for concurrent use.
type Service struct {
	db    *tenantdb.DB
	cfg   Config
	log   *slog.Logger
	now   func() time.Time
	life  string // of this process, in its rows
	parts *tenantdb.Partitions

	flushing sync.Mutex // one flush at a time
	queue    queue
	refusals refusals
	door     door
	counts   counters
}

// New builds a Service. It starts nothing: run Run, or only Write keeps
// anything.
func New(db *tenantdb.DB, cfg Config, log *slog.Logger) *Service {
	if cfg.Retention == 0 {
		cfg.Retention = 400 * day
	}
	if cfg.Queue == 0 {
		cfg.Queue = 10_000
	}
	if cfg.Settle == 0 {
		cfg.Settle = 5 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Service{db: db, cfg: cfg, log: log, now: cfg.Now, parts: tenantdb.NewPartitions(db, week, "audit")}
	s.life = clip(cfg.Replica, 100) + "@" + s.now().UTC().Format(time.RFC3339Nano)
	s.queue.init(cfg.Queue)
	s.refusals.init()
	s.door.init()
	return s
}

// Run writes what was noted, seals it and keeps the tables small until ctx
// ends; then it writes what is left. Every replica runs it; one at a time
// seals.
func (s *Service) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, part := range []struct {
		pace time.Duration
		soon <-chan struct{} // nil: only at its pace
		what string
		do   func(context.Context) error
	}{
		{flushPace, s.queue.soon, "write the audit", s.flush},
		{sealPace, nil, "seal the audit", s.seal},
		{keepPace, nil, "keep the audit's tables", s.keep},
	} {
		wg.Go(func() {
			tick := time.NewTicker(part.pace)
			defer tick.Stop()
			for {
				if err := part.do(ctx); err != nil && ctx.Err() == nil {
					s.log.Warn("cannot "+part.what+" now; it is tried again", "error", err)
				}
				select {
				case <-ctx.Done():
					return
				case <-part.soon:
				case <-tick.C:
				}
			}
		})
	}
	wg.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrite)
	defer cancel()
	s.queue.unfold(true, s)
	if err := s.flush(last); err != nil {
		s.log.Error("the audit lost entries at the end of this process", "entries", s.Stats().Waiting, "error", err)
	}
	return nil
}

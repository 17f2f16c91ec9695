package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Bounds of server-sent streams.
const (
	maxStreams          = 512              // of this server
	maxTenantStreams    = 64               // of one tenant
	maxPrincipalStreams = 8                // of one principal
	streamPulse         = 15 * time.Second // a comment keeps proxies from cutting a silent stream
	streamRecheck       = time.Second      // how often the credential is looked at again; with twice this and what auth remembers it, a revocation bites in time
	streamWrite         = 10 * time.Second // for one message to be taken in
)

// errStreamEnd ends a stream on purpose.
var errStreamEnd = errors.New("the stream is over")

// streams counts the open ones.
type streams struct {
	mu    sync.Mutex
	total int
	by    map[string]int // by tenant, and by principal
}

func newStreams() *streams { return &streams{by: map[string]int{}} }

func (s *streams) enter(tenant, who string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.by[tenant] >= maxTenantStreams:
		return fault.Newf(fault.Exhausted, "too_many_streams", "this tenant has %d streams open, which is the most", maxTenantStreams).Do("close one first, or poll the list instead")
	case s.by[who] >= maxPrincipalStreams:
		return fault.Newf(fault.Exhausted, "too_many_streams", "this principal has %d streams open, which is the most", maxPrincipalStreams).Do("close one first")
	case s.total >= maxStreams:
		return fault.New(fault.Exhausted, "too_many_streams", "this server has as many streams open as it takes").Do("poll the list instead, or try again later")
	}
	s.by[tenant]++
	s.by[who]++
	s.total++
	return nil
}

func (s *streams) leave(tenant, who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	for _, k := range []string{tenant, who} {
		if s.by[k]--; s.by[k] == 0 {
			delete(s.by, k)
		}
	}
}

// sse writes one server-sent stream. It is used by one goroutine.
type sse struct {
	w       http.ResponseWriter
	begun   bool
	allowed func(context.Context) bool
}

// stream adapts a handler that sends until its caller leaves, its credential
// ends, or the stream's life is over; the reader connects again. What fails
// before the first message is answered as everywhere else.
func (s *Server) stream(h func(*call, *sse) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		scope, _ := auth.ScopeFrom(r.Context())
		tenant := scope.Tenant.String()
		who := tenant + "|" + string(scope.Principal.Kind) + "|" + scope.Principal.ID
		if err := s.live.enter(tenant, who); err != nil {
			s.fail(w, r, err)
			return
		}
		defer s.live.leave(tenant, who)
		ctx, cancel := context.WithTimeoutCause(r.Context(), s.cfg.StreamLife, errStreamEnd)
		defer cancel()
		out := &sse{w: w, allowed: func(ctx context.Context) bool { return s.stillAllowed(r.WithContext(ctx), tenants.Read) }}
		err := h(&call{w: w, r: r.WithContext(ctx), scope: scope, query: parseParams(r.URL.RawQuery)}, out)
		switch {
		case !out.begun && err != nil && r.Context().Err() == nil:
			s.fail(w, r, err)
		case errors.Is(err, errStreamEnd) || errors.Is(err, context.DeadlineExceeded):
			_ = out.send("end", "", struct{}{}) // the reader may be gone
		case err != nil && r.Context().Err() == nil:
			callOf(r.Context()).err = err
		}
	}
}

// stillAllowed asks the gate once more with the request's own credential.
func (s *Server) stillAllowed(r *http.Request, need tenants.Scopes) (ok bool) {
	gate := s.cfg.Guards.Gate
	gate.BearerOrSession(gate.Require(need)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ok = true }))).
		ServeHTTP(discard{http.Header{}}, r)
	return ok
}

// discard takes the refusal that nobody reads.
type discard struct{ h http.Header }

func (d discard) Header() http.Header         { return d.h }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

// run opens the stream and calls next until it fails. next returns after
// every message, and when its context ends, which happens at every pulse and
// every look at the credential.
func (o *sse) run(ctx context.Context, next func(context.Context) error) error {
	if err := o.begin(); err != nil {
		return err
	}
	spoke := time.Now()
	looked := time.Now()
	for {
		turn, cancel := context.WithTimeout(ctx, streamRecheck)
		err := next(turn)
		over := turn.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !over:
			return err
		case err == nil:
			spoke = time.Now()
		}
		if time.Since(looked) >= streamRecheck {
			if looked = time.Now(); !o.allowed(ctx) {
				return errStreamEnd
			}
		}
		if time.Since(spoke) >= streamPulse {
			if err := o.write(": alive\n\n"); err != nil {
				return err
			}
			spoke = time.Now()
		}
	}
}

func (o *sse) begin() error {
	h := o.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	o.begun = true
	o.w.WriteHeader(http.StatusOK)
	return o.write("retry: 2000\n\n")
}

// send writes one message; id may be empty.
func (o *sse) send(event, id string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a message of a stream: %w", err)
	}
	msg := "event: " + event + "\n"
	if id != "" {
		msg += "id: " + id + "\n"
	}
	return o.write(msg + "data: " + string(b) + "\n\n")
}

func (o *sse) write(text string) error {
	ctl := http.NewResponseController(o.w)
	_ = ctl.SetWriteDeadline(time.Now().Add(streamWrite)) // a recorder in a test has none
	if _, err := o.w.Write([]byte(text)); err != nil {
		return err
	}
	if err := ctl.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// skipMissing lets a stream go on past what its caller may not see.
func skipMissing(err error) error {
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

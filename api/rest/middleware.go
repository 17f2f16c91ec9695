package rest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// writeGrace is how long, beyond the time for the answer itself, a reader may
// take to receive it.
const writeGrace = 30 * time.Second

var errDeadline = errors.New("the answer's time is over")

// record is what the access line of one request says; handlers further in
// fill it.
type record struct {
	scope   tenants.Scope
	err     error
	sent    []string // members of the body, see sentOf
	audited bool     // the request has its own entry in the audit, which says how it ended
}

type recordKey struct{}

// callOf returns the request's record; outside of observe a spare one.
func callOf(ctx context.Context) *record {
	if c, ok := ctx.Value(recordKey{}).(*record); ok {
		return c
	}
	return &record{}
}

// observe is the outermost layer: reference id, headers that every answer
// has, recovery, one access line and the own metrics.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		start := time.Now()
		w := middleware.NewWrapResponseWriter(rw, r.ProtoMajor)
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		reference := auth.Reference(w)
		rec := &record{}
		r = r.WithContext(context.WithValue(r.Context(), recordKey{}, rec))
		defer func() {
			p := recover()
			if p == http.ErrAbortHandler {
				panic(p) // the server's own way to cut a connection
			}
			if p != nil {
				s.cfg.Log.Error("handler panicked", "reference", reference, "panic", p, "stack", string(debug.Stack()))
				if w.Status() == 0 {
					s.fail(w, r, errPanic)
				}
			}
			s.logged(w, r, rec, reference, time.Since(start))
			s.reported(r, rec, reference, w.Status())
			if p != nil && w.Status() < http.StatusInternalServerError {
				panic(http.ErrAbortHandler) // half an answer is out: do not let it look whole
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// within gives an answer its time.
func within(limit time.Duration) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeoutCause(r.Context(), limit, errDeadline)
			defer cancel()
			// A reader that takes nothing must not hold its answer for ever.
			// net/http lifts the deadline after the request.
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(limit + writeGrace))
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}
}

var errPanic = fault.New(fault.Internal, "internal", "the server failed to answer").
	Do("try again; give the operator the reference id if it stays")

// logged writes the access line. It names the route's pattern, never the path
// or the query, so that nothing a caller writes reaches the log by it.
func (s *Server) logged(w middleware.WrapResponseWriter, r *http.Request, rec *record, reference string, took time.Duration) {
	status := w.Status()
	if status == 0 {
		status = http.StatusOK
	}
	route := chi.RouteContext(r.Context()).RoutePattern()
	if route == "" {
		route = "none"
	}
	s.own.seen(route, r.Method, status, took)
	level := slog.LevelInfo
	switch {
	case status >= 500:
		level = slog.LevelError
	case route == "/healthz" || route == "/readyz":
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{
		slog.String("reference", reference), slog.String("method", methodOf(r.Method)), slog.String("route", route),
		slog.Int("status", status), slog.Int("bytes", w.BytesWritten()), slog.Float64("ms", float64(took.Microseconds())/1000),
	}
	if !rec.scope.Tenant.IsZero() {
		attrs = append(attrs, slog.String("tenant", rec.scope.Slug), slog.String("principal", rec.scope.Principal.ID), slog.String("kind", string(rec.scope.Principal.Kind)))
	}
	if rec.err != nil {
		attrs = append(attrs, slog.Any("err", rec.err))
	}
	s.cfg.Log.LogAttrs(r.Context(), level, "request", attrs...)
}

// methodOf keeps invented methods out of logs and label values.
func methodOf(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "other"
}

// noted puts the verified caller into the access line.
func (s *Server) noted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sc, ok := auth.ScopeFrom(r.Context()); ok {
			callOf(r.Context()).scope = sc
		}
		next.ServeHTTP(w, r)
	})
}

// bound caps every body, read or not.
func (s *Server) bound(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > tenants.MaxRequestBytes {
			h := w.Header()
			h.Set("Cache-Control", "no-store")
			h.Add("Vary", "Authorization")
			h.Set("Connection", "close")
			// Read, so that the client hears the answer, but not kept.
			_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, tenants.MaxRequestBytes))
			s.fail(w, r, errTooLarge)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, tenants.MaxRequestBytes)
		next.ServeHTTP(w, r)
	})
}

// sealed sets what every answer of the API carries: it is never cached, never
// a page, never framed.
func (s *Server) sealed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}

func (s *Server) notFound(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	s.fail(w, r, fault.New(fault.NotFound, "route_unknown", "no such address").Do("see /api/v1/openapi.yaml for the addresses that exist"))
}

// notAllowed answers OPTIONS with the methods that a path has, and any other
// method that it has not with 405 and the same list.
func (s *Server) notAllowed(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	path := r.URL.Path
	if r.URL.RawPath != "" {
		path = r.URL.RawPath
	}
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		if s.mux.Match(chi.NewRouteContext(), m, path) {
			h.Add("Allow", m)
			if m == http.MethodGet {
				h.Add("Allow", http.MethodHead)
			}
		}
	}
	h.Add("Allow", http.MethodOptions)
	if r.Method == http.MethodOptions {
		allow := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
		if strings.HasPrefix(path, "/t/") { // a browser's preflight for another origin
			s.cfg.Guards.Fence.Origins(allow).ServeHTTP(w, r)
			return
		}
		allow.ServeHTTP(w, r)
		return
	}
	s.fail(w, r, fault.Newf(fault.Invalid, "method_not_allowed", "this address does not take the method %s", methodOf(r.Method)).Do("see the header Allow"))
}

package rest

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Audit keeps and answers the record of who did what.
type Audit interface {
	// Note never blocks.
	Note(e audit.Entry)
	// Write returns when the entry is stored for good.
	Write(ctx context.Context, e audit.Entry) error
	List(ctx context.Context, scope tenants.Scope, q audit.Query) (audit.Page, error)
}

func (s *Server) listAudit(c *call) (any, error) {
	now := s.cfg.Now()
	q := audit.Query{
		Principal: c.query.text("principal"),
		Action:    c.query.text("action"),
		Outcome:   audit.Outcome(c.query.oneOf("outcome", string(audit.OK), string(audit.Refused), string(audit.Failed), string(audit.Started))),
		Since:     c.query.moment("since", now),
		Until:     c.query.moment("until", now),
		Reference: c.query.text("reference"),
		Limit:     c.query.limit(),
		Cursor:    c.query.cursor(),
	}
	if err := c.query.done(); err != nil {
		return nil, err
	}
	page, err := s.cfg.Audit.List(c.r.Context(), c.scope, q)
	page.Notes = append(c.query.notes, page.Notes...)
	a := auditPage{Page: page}
	if page.Truncated != nil {
		a.NextCursor = page.Truncated.NextCursor
	}
	return a, err
}

// auditPage is a page of the audit with what the address adds to it.
type auditPage struct {
	audit.Page
	NextCursor string `json:"next_cursor,omitempty"`
}

// watched records that a verified caller was refused before its request
// reached a handler that records it: for a missing scope or a limit. It stands
// behind the gate and around everything else.
func (s *Server) watched(next http.Handler) http.Handler {
	if s.cfg.Audit == nil {
		return next
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := wrapped(rw, r)
		start := time.Now()
		next.ServeHTTP(w, r)
		rec := callOf(r.Context())
		status := w.Status()
		if rec.audited || status != http.StatusForbidden && status != http.StatusTooManyRequests {
			return
		}
		rec.audited = true
		e := s.entry(w, r)
		e.Outcome, e.Reason = audit.Refused, "insufficient_scope"
		if status == http.StatusTooManyRequests {
			e.Reason = "rate_limited"
		}
		if rec.err != nil {
			e.Reason = fault.Of(rec.err).Reason
		}
		e.Bytes, e.Duration = w.BytesWritten(), time.Since(start)
		s.cfg.Audit.Note(e)
	})
}

// recorded records every write and how it ended. A write that waits for its
// record does not happen when there can be none.
func (s *Server) recorded(waits bool) func(http.Handler) http.Handler {
	record := s.recordedAlways(waits)
	return func(next http.Handler) http.Handler {
		writes := record(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.Method {
			case http.MethodGet, http.MethodHead, http.MethodOptions:
				next.ServeHTTP(w, r)
			default:
				writes.ServeHTTP(w, r)
			}
		})
	}
}

// recordedAlways is recorded for what is no write and weighs as much.
func (s *Server) recordedAlways(waits bool) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		if s.cfg.Audit == nil {
			return next
		}
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			w := wrapped(rw, r)
			rec := callOf(r.Context())
			rec.audited = true
			e := s.entry(w, r)
			if waits {
				e.Outcome = audit.Started
				if err := s.cfg.Audit.Write(r.Context(), e); err != nil {
					rec.audited = false
					s.fail(w, r, err)
					return
				}
			}
			start, whole := time.Now(), false
			defer func() {
				e.Arguments = strings.TrimSpace(e.Arguments + " " + strings.Join(rec.sent, " "))
				e.Outcome, e.Reason = ending(w.Status(), rec.err, whole)
				e.Bytes, e.Duration = w.BytesWritten(), time.Since(start)
				s.cfg.Audit.Note(e)
			}()
			next.ServeHTTP(w, r)
			whole = true
		})
	}
}

func ending(status int, err error, whole bool) (audit.Outcome, string) {
	switch f := fault.Of(err); {
	case !whole:
		return audit.Failed, "panic"
	case status < http.StatusBadRequest:
		return audit.OK, ""
	case f == nil:
		return audit.Failed, fmt.Sprintf("status_%d", status)
	case f.Kind == fault.Denied || f.Kind == fault.Exhausted || f.Kind == fault.Precondition || f.Kind == fault.Unauthorized:
		return audit.Refused, f.Reason
	default:
		return audit.Failed, f.Reason
	}
}

func wrapped(w http.ResponseWriter, r *http.Request) middleware.WrapResponseWriter {
	if is, ok := w.(middleware.WrapResponseWriter); ok {
		return is // observe's own
	}
	return middleware.NewWrapResponseWriter(w, r.ProtoMajor)
}

// entry is what is known of a request before it is answered: its route's
// pattern and the parameters of its path.
func (s *Server) entry(w http.ResponseWriter, r *http.Request) audit.Entry {
	scope, _ := auth.ScopeFrom(r.Context())
	e := audit.Entry{Tenant: scope.Tenant, Principal: scope.Principal, Surface: "rest", Reference: auth.Reference(w)}
	if scope.Principal.Kind == tenants.SessionPrincipal {
		e.Surface = "dashboard"
	}
	if s.cfg.Site != nil {
		e.From = s.cfg.Site.ClientAddr(r)
	}
	route := chi.RouteContext(r.Context())
	e.Action = methodOf(r.Method) + " " + strings.TrimPrefix(strings.TrimPrefix(route.RoutePattern(), base), "/")
	var params []string
	for i, k := range route.URLParams.Keys {
		if k != "tenant" && k != "*" {
			params = append(params, k+"="+clip(route.URLParams.Values[i]))
		}
	}
	e.Arguments = strings.Join(params, " ")
	return e
}

// sentOf names the members of a decoded body that the caller sent. Their
// values stay out, but for those that their field is tagged for: `audit:"value"`.
func sentOf(body any) []string {
	v := reflect.ValueOf(body).Elem()
	var out []string
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case !f.IsExported() || name == "" || name == "-" || v.Field(i).IsZero():
		case f.Tag.Get("audit") == "value":
			out = append(out, name+"="+clip(fmt.Sprint(reflect.Indirect(v.Field(i)).Interface())))
		default:
			out = append(out, name)
		}
	}
	return out
}

// signedIn records who signs in to the dashboard, and out of it. Refused ones
// are attempts, which auth reports.
func (s *Server) signedIn(next http.Handler) http.Handler {
	if s.cfg.Audit == nil {
		return next
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := wrapped(rw, r)
		look := r.Clone(r.Context()) // who holds the cookie, whatever is asked
		look.Method = http.MethodGet
		look.Header.Del("Authorization")
		who, known := tenants.Scope{}, false
		if r.Method == http.MethodDelete {
			who, known = s.cfg.Guards.Gate.Peek(look)
		}
		start := time.Now()
		next.ServeHTTP(w, r)
		if w.Status() >= http.StatusBadRequest {
			return
		}
		if r.Method != http.MethodDelete {
			var made []string
			for _, c := range (&http.Response{Header: w.Header()}).Cookies() {
				if c.MaxAge >= 0 && c.Value != "" {
					made = append(made, c.Name+"="+c.Value)
				}
			}
			look.Header.Set("Cookie", strings.Join(made, "; "))
			who, known = s.cfg.Guards.Gate.Peek(look)
		}
		if !known {
			return
		}
		e := s.entry(w, r.WithContext(auth.WithScope(r.Context(), who)))
		e.Outcome, e.Bytes, e.Duration = audit.OK, w.BytesWritten(), time.Since(start)
		s.cfg.Audit.Note(e)
	})
}

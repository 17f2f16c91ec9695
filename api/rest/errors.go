package rest

import (
	"context"
	"errors"
	"net/http"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// kindStatus is the one place where a kind of fault becomes an HTTP status.
var kindStatus = map[fault.Kind]int{
	fault.Internal:     http.StatusInternalServerError,
	fault.Invalid:      http.StatusBadRequest,
	fault.Denied:       http.StatusForbidden,
	fault.NotFound:     http.StatusNotFound,
	fault.Conflict:     http.StatusConflict,
	fault.Exhausted:    http.StatusTooManyRequests,
	fault.Unavailable:  http.StatusServiceUnavailable,
	fault.Deadline:     http.StatusGatewayTimeout,
	fault.Precondition: http.StatusPreconditionFailed,
	fault.Unauthorized: http.StatusUnauthorized,
}

// reasonStatus holds the refusals of HTTP itself, which have a more exact
// status than their kind.
var reasonStatus = map[string]int{
	"body_too_large":     http.StatusRequestEntityTooLarge,
	"body_timeout":       http.StatusRequestTimeout,
	"media_type":         http.StatusUnsupportedMediaType,
	"method_not_allowed": http.StatusMethodNotAllowed,
	"query_too_long":     http.StatusRequestURITooLong,
	"client_closed":      statusClientClosed,
	"route_unknown":      http.StatusNotFound,
}

// Problem is an RFC 9457 problem document. Field, Detail and Next may be
// absent; everything shown is safe for any caller.
type Problem struct {
	Type        string   `json:"type"`
	Title       string   `json:"title"`
	Status      int      `json:"status"`
	Detail      string   `json:"detail,omitempty"`
	Kind        string   `json:"kind"`
	Reason      string   `json:"reason"`
	Field       string   `json:"field,omitempty"`
	Next        []string `json:"next"`
	ReferenceID string   `json:"reference_id"`
}

func statusOf(f *fault.Error) int {
	if s, ok := reasonStatus[f.Reason]; ok {
		return s
	}
	if s, ok := kindStatus[f.Kind]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// titleOf is the status in words, as RFC 9457 wants it for about:blank.
func titleOf(status int) string {
	if status == statusClientClosed {
		return "Client Closed Request"
	}
	return http.StatusText(status)
}

// statusClientClosed is what the log says when a caller did not wait.
const statusClientClosed = 499

// problemOf turns any error into what a caller may read of it.
func problemOf(err error, reference string) Problem {
	f := fault.Of(err)
	reason := f.Reason
	if reason == "" {
		reason = "unspecified"
	}
	p := Problem{
		Type:        "about:blank",
		Title:       titleOf(statusOf(f)),
		Status:      statusOf(f),
		Detail:      inspector.CleanText(f.Msg),
		Kind:        f.Kind.String(),
		Reason:      reason,
		Field:       inspector.CleanText(f.Field),
		Next:        []string{},
		ReferenceID: reference,
	}
	if f.Next != "" {
		p.Next = append(p.Next, inspector.CleanText(f.Next))
	}
	return p
}

// fail answers err as a problem document and keeps its cause for the log.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	ctx := r.Context()
	// A refusal that HTTP itself has a word for stands, whatever became of the
	// connection since: the server's own read deadline ends the context too.
	if _, exact := reasonStatus[fault.Of(err).Reason]; !exact && ctx.Err() != nil {
		if errors.Is(context.Cause(ctx), errDeadline) {
			err = fault.New(fault.Deadline, "deadline", "the answer took longer than the server allows").
				Do("ask for less: a shorter window, fewer nodes or a smaller limit").Because(err)
		} else {
			err = fault.New(fault.Deadline, "client_closed", "the caller did not wait for the answer").Because(err)
		}
	}
	callOf(ctx).err = err
	h := w.Header()
	h.Del("ETag")
	h.Set("Content-Type", "application/problem+json")
	p := problemOf(err, auth.Reference(w))
	if (p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests) && h.Get("Retry-After") == "" {
		h.Set("Retry-After", "2")
	}
	s.write(w, r, p.Status, p)
}

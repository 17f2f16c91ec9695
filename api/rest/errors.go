package rest

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants/fault"
)

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

func statusOf(f *fault.Error) int {
	if s, ok := reasonStatus[f.Reason]; ok {
		return s
	}
	return auth.Status(f.Kind)
}

// statusClientClosed is what the log says when a caller did not wait.
const statusClientClosed = 499

// problemOf turns any error into what a caller may read of it. Text of a fault
// may repeat what a caller or a node wrote, so it is made safe to show.
func problemOf(err error, reference string) auth.Problem {
	f := fault.Of(err)
	p := auth.ProblemOf(f, statusOf(f), reference)
	if p.Status == statusClientClosed {
		p.Title = "Client Closed Request" // not in the registry of statuses
	}
	if f.Kind == fault.Invalid && f.Next == "" {
		p.Next = []string{"correct it and send the request again; /api/v1/openapi.yaml says what is taken"}
	}
	p.Detail, p.Field = inspector.CleanText(p.Detail), inspector.CleanText(p.Field)
	for i := range p.Next {
		p.Next[i] = inspector.CleanText(p.Next[i])
	}
	return p
}

// fail answers err as a problem document and keeps its cause for the log.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	ctx := r.Context()
	// A refusal that HTTP itself has a word for stands, whatever became of the
	// connection since: the server's own read deadline ends the context too.
	if _, exact := reasonStatus[fault.Of(err).Reason]; !exact && ctx.Err() != nil && !fault.Is(err, fault.Unavailable) {
		switch {
		case errors.Is(context.Cause(ctx), fault.ErrStopping):
			if fault.Of(err).Reason != fault.ErrStopping.Reason { // a service may know what to do
				err = fault.ErrStopping.Because(err)
			}
		case errors.Is(context.Cause(ctx), errDeadline):
			err = fault.New(fault.Deadline, "deadline", "the answer took longer than the server allows").
				Do("ask for less: a shorter window, fewer nodes or a smaller limit").Because(err)
		default:
			err = fault.New(fault.Deadline, "client_closed", "the caller did not wait for the answer").Because(err)
		}
	}
	callOf(ctx).err = err
	h := w.Header()
	h.Del("ETag")
	h.Set("Content-Type", "application/problem+json")
	p := problemOf(err, auth.Reference(w))
	// A full quota does not empty by waiting.
	if (p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests && !strings.HasPrefix(p.Reason, "quota_")) && h.Get("Retry-After") == "" {
		h.Set("Retry-After", "2")
	}
	s.write(w, r, p.Status, p)
}

// respell names an argument as the caller wrote it.
func respell(err error, service, wire string) error {
	return fault.Respell(err, map[string]string{service: wire})
}

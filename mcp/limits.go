package mcp

import (
	"context"
	"fmt"
	"math"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Limits counts the requests of a caller; auth.Limiter satisfies it.
type Limits interface {
	Take(ctx context.Context, scope tenants.Scope) auth.Verdict
}

// limited is what the limiter said of one request; nil without a limiter.
type limited auth.Verdict

// take counts one request and tells the caller how much is left.
func (h *Handler) take(ctx context.Context, header http.Header, scope tenants.Scope) *limited {
	if h.cfg.Limits == nil {
		return nil
	}
	v := h.cfg.Limits.Take(ctx, scope)
	v.SetHeaders(header)
	return (*limited)(&v)
}

func (l *limited) refused() bool { return l != nil && !l.OK }

// fault says the limit as a model can use it: whose it is, how much, and how
// long to wait.
func (l *limited) fault() *fault.Error { return fault.Of(auth.Verdict(*l).Fault()) }

// wire is the refusal of every request but a call of a tool.
func (l *limited) wire() *wireError {
	f := l.fault()
	wait := int(math.Ceil(l.RetryAfter.Seconds()))
	return &wireError{Status: http.StatusTooManyRequests, Code: jsonrpc.CodeInvalidRequest, Message: fmt.Sprintf("%s; %s", f.Msg, f.Next),
		Data: map[string]any{"error": f.Kind.String(), "reason": f.Reason, "retry_after_s": wait, "next_step": f.Next}}
}

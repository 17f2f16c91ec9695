package uplink

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// Refusal is why the server could not be used: its own refusal, or what went
// wrong on the way to it.
type Refusal struct {
	Reason     string        // snake_case word, or the gRPC code where there is no better one
	Message    string        // safe to show
	Next       string        // what to do, may be empty
	Answered   bool          // the server itself said so
	Lasting    bool          // it stays so until somebody does something: trying soon again is of no use
	ServerTime time.Time     // the server's clock; zero: not told
	RetryAfter time.Duration // zero: not told
	Cause      error
}

func (r *Refusal) Error() string {
	var b strings.Builder
	b.WriteString(r.Reason + ": " + r.Message)
	if r.Next != "" {
		b.WriteString("; " + r.Next)
	}
	if !r.ServerTime.IsZero() {
		if off := time.Until(r.ServerTime).Round(time.Second); off.Abs() > 2*time.Second {
			fmt.Fprintf(&b, " (the server's clock says %s, this machine's is %s away from it)", r.ServerTime.UTC().Format(time.RFC3339), off.Abs())
		}
	}
	return b.String()
}

// Unwrap returns the gRPC error.
func (r *Refusal) Unwrap() error { return r.Cause }

// maxHint bounds the wait that a server can ask for.
const maxHint = 10 * time.Minute

// place is what an advice must name: where the connection goes and which
// directory holds the identity.
type place struct {
	server string
	dir    string
	path   *path // nil: nothing is known of the way there
}

// refusal says in a person's words what an error of a call means and what to
// do. The server's text is cleaned: it ends in logs and terminals.
func (p place) refusal(err error) error {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	if errors.Is(err, context.DeadlineExceeded) {
		st = status.New(codes.DeadlineExceeded, err.Error())
	}
	r := &Refusal{Reason: strings.ToLower(st.Code().String()), Message: inspector.CleanText(st.Message()), Cause: err}
	for _, d := range st.Details() {
		f, ok := d.(*pb.Fault)
		if !ok {
			continue
		}
		r.Answered = true
		r.Reason, r.Next = inspector.CleanText(f.Reason), inspector.CleanText(f.Next)
		r.RetryAfter = time.Duration(min(max(f.RetryAfterMs, 0), maxHint.Milliseconds())) * time.Millisecond
		if f.ServerTimeNs != 0 {
			r.ServerTime = time.Unix(0, f.ServerTimeNs)
		}
	}
	if r.Answered {
		r.Lasting = lasting(st.Code())
		if next := p.advice(r.Reason); next != "" {
			r.Next = next
		}
		return r
	}
	p.explain(r, st)
	return r
}

// lasting tells the refusals that only an administrator ends from those that
// pass: a busy or stopping server, a stream that another one replaced.
func lasting(c codes.Code) bool {
	switch c {
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.NotFound, codes.Unimplemented:
		return true
	}
	return false
}

// advice is the next step for a reason of the server, empty for one that this
// agent does not know better about than the server.
func (p place) advice(reason string) string {
	anew := "remove " + p.dir + " and enrol anew with a fresh token"
	switch reason {
	case "node_revoked":
		return "an administrator withdrew this node: " + anew + " if it should come back"
	case "unknown_node":
		return "check that " + p.server + " is the server at which this machine enrolled; if it is, " + anew
	case "foreign_certificate", "malformed_certificate":
		return "this certificate was made by another server or tenant: check that " + p.server + " is the server at which this machine enrolled; if the server was set up anew, " + anew
	case "certificate_expired":
		return "compare the two clocks: where the server's is wrong, set it right and this node goes on by itself; else the node was away for too long: " + anew
	case "certificate_not_yet_valid":
		return "the server's clock went back, or was wrong when this machine enrolled: set it right and this node goes on by itself; keep " + p.dir
	case "duplicate_identity":
		return "a copy of " + p.dir + " is in use on another machine, or this one restarted a moment ago; on the copy " + anew
	case "tenant_suspended":
		return "the operator of the server suspended the tenant: ask there; keep " + p.dir + ", this node goes on by itself afterwards"
	case "bad_checksum", "malformed_token":
		return "copy the whole enrolment token again, it begins with tte_"
	case "protocol":
		return "install the agent of the server's version"
	}
	return ""
}

package uplink

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// Refusal is an answer of the server that is no success.
type Refusal struct {
	Reason     string        // snake_case word, or the gRPC code where the server gave none
	Message    string        // safe to show
	Next       string        // what to do, may be empty
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

// refusal reads what the server says about an error. The text is cleaned: it
// ends in logs and terminals.
func refusal(err error) error {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	r := &Refusal{Reason: strings.ToLower(st.Code().String()), Message: inspector.CleanText(st.Message()), Cause: err}
	for _, d := range st.Details() {
		f, ok := d.(*pb.Fault)
		if !ok {
			continue
		}
		r.Reason, r.Next = inspector.CleanText(f.Reason), inspector.CleanText(f.Next)
		r.RetryAfter = time.Duration(min(max(f.RetryAfterMs, 0), maxHint.Milliseconds())) * time.Millisecond
		if f.ServerTimeNs != 0 {
			r.ServerTime = time.Unix(0, f.ServerTimeNs)
		}
	}
	return r
}

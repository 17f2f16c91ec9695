package ingest

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// statusCodes is the one table from kinds to gRPC codes.
var statusCodes = map[fault.Kind]codes.Code{
	fault.Internal: codes.Internal, fault.Invalid: codes.InvalidArgument, fault.Denied: codes.PermissionDenied,
	fault.NotFound: codes.NotFound, fault.Conflict: codes.Aborted, fault.Exhausted: codes.ResourceExhausted,
	fault.Unavailable: codes.Unavailable, fault.Deadline: codes.DeadlineExceeded,
	fault.Precondition: codes.FailedPrecondition, fault.Unauthorized: codes.Unauthenticated,
}

// answer turns an error into a gRPC status that carries the reason, the next
// step and the server's time, and nothing of the cause.
func (s *Server) answer(err error, retry time.Duration) error {
	if err == nil {
		return nil
	}
	f := fault.Of(err)
	st := status.New(statusCodes[f.Kind], f.Msg)
	detail := &pb.Fault{Reason: f.Reason, Next: f.Next, ServerTimeNs: s.cfg.Now().UnixNano(), RetryAfterMs: retry.Milliseconds()}
	if with, err := st.WithDetails(detail); err == nil {
		st = with
	}
	return st.Err()
}

// Faults of this package's own.
func errBusy(what string) error {
	return fault.Newf(fault.Exhausted, "too_many_"+what, "the server admits no more %s at this moment", what).Do("try again after the time given")
}

func errProtocol(msg string) error {
	return fault.New(fault.Invalid, "protocol", msg).Do("update the agent to the server's version")
}

package tenantdb

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/telltale-dev/telltale/tenants/fault"
)

// Fault turns an error of the database into a fault that keeps it as its
// cause. Faults and errors that do not come from the database are returned
// unchanged; nil stays nil.
//
// A broken connection, a server that starts, stops or is full, and a lock that
// did not come in time are Unavailable; a time-out is Deadline; a violated
// unique, foreign or exclusion key is Conflict (the constraint's name is in
// the cause, see Violated); text that the database cannot hold is Invalid; no
// row is NotFound. All else, a refusal by a row policy included, is a defect
// of ours and Internal.
func Fault(err error) error {
	var known *fault.Error
	var pe *pgconn.PgError
	var ne net.Error
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.As(err, &pe):
		return fromCode(pe).Because(err)
	case errors.Is(err, pgx.ErrNoRows):
		return fault.New(fault.NotFound, "not_found", "no such object").Because(err)
	case errors.Is(err, context.DeadlineExceeded):
		return timedOut().Because(err)
	case errors.Is(err, context.Canceled):
		return fault.New(fault.Deadline, "canceled", "the caller went away before the answer").Because(err)
	case isConnectError(err), errors.As(err, &ne), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, net.ErrClosed), errors.Is(err, puddle.ErrClosedPool), pgconn.SafeToRetry(err):
		return away().Because(err)
	}
	return err
}

func isConnectError(err error) bool {
	var ce *pgconn.ConnectError
	return errors.As(err, &ce)
}

func away() *fault.Error {
	return fault.New(fault.Unavailable, "database_unavailable", "the database does not answer").Do("try again in a moment")
}

func timedOut() *fault.Error {
	return fault.New(fault.Deadline, "database_deadline", "the database did not answer in time").Do("ask for less, or try again")
}

// fromCode reads SQLSTATE (PostgreSQL's Appendix A).
func fromCode(pe *pgconn.PgError) *fault.Error {
	switch pe.Code {
	case "23505", "23P01":
		return fault.New(fault.Conflict, "already_exists", "it exists already")
	case "23503":
		return fault.New(fault.Conflict, "reference", "something that this refers to is gone, or something still refers to this")
	case "22021", "22P05":
		return fault.New(fault.Invalid, "invalid_text", "text must be valid UTF-8 without zero bytes")
	case "57014", "25P03", "57P05":
		return timedOut()
	case "55P03", "40001", "40P01":
		return fault.New(fault.Unavailable, "database_busy", "other work is in the way in the database").Do("try again in a moment")
	case "25006":
		return fault.New(fault.Unavailable, "database_read_only", "the database does not take writes now").Do("try again in a moment")
	}
	for _, class := range []string{"08", "53", "57P", "58"} {
		if strings.HasPrefix(pe.Code, class) {
			return away()
		}
	}
	return fault.New(fault.Internal, "database", "the server failed to use its database").Do("try again; give the operator the reference id if it stays")
}

// Violated reports whether err stems from the violation of the named
// constraint.
func Violated(err error, constraint string) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && strings.HasPrefix(pe.Code, "23") && pe.ConstraintName == constraint
}

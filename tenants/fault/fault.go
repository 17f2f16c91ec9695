// Package fault holds the error kinds of the server side and nothing else.
//
// A fault is made where a failure is understood, wrapped on its way up with
// what was attempted, and turned into a status once, by the adapter that
// answers (api/rest, mcp, api/ingest). Its message and next step are safe to
// show to any caller; its cause never leaves the process.
package fault

import (
	"errors"
	"fmt"
)

// Kind says what sort of failure a fault is. The zero value is Internal.
type Kind uint8

// The kinds. Another tenant's row, or one outside the caller's node selector,
// is NotFound and never Denied, so that existence is not disclosed.
const (
	Internal     Kind = iota // a defect or an unexpected dependency error
	Invalid                  // an argument is malformed or out of its bounds
	Denied                   // the principal lacks a scope
	NotFound                 // no such object for this principal
	Conflict                 // the object is in another state than the call needs
	Exhausted                // a quota, rate or size limit was reached
	Unavailable              // a node, replica or dependency is away
	Deadline                 // the work did not end in time
	Precondition             // a feature is off, or a precondition does not hold
	Unauthorized             // no valid credential
)

var names = [...]string{
	Internal: "INTERNAL", Invalid: "INVALID_ARGUMENT", Denied: "PERMISSION_DENIED",
	NotFound: "NOT_FOUND", Conflict: "CONFLICT", Exhausted: "RESOURCE_EXHAUSTED",
	Unavailable: "UNAVAILABLE", Deadline: "DEADLINE_EXCEEDED",
	Precondition: "FAILED_PRECONDITION", Unauthorized: "UNAUTHENTICATED",
}

// Kinds lists every kind; adapters walk it to prove that their status tables
// are complete.
func Kinds() []Kind {
	ks := make([]Kind, len(names))
	for i := range ks {
		ks[i] = Kind(i)
	}
	return ks
}

// String returns the kind's word on the wire, for example "INVALID_ARGUMENT".
func (k Kind) String() string {
	if int(k) < len(names) {
		return names[k]
	}
	return names[Internal]
}

// ParseKind reads a kind's word, for example one that a node sent.
func ParseKind(word string) (k Kind, ok bool) {
	for i, n := range names {
		if n == word {
			return Kind(i), true
		}
	}
	return Internal, false
}

// Error is one fault. Every field but Kind may be empty.
type Error struct {
	Kind   Kind
	Reason string // enumerated machine word in snake_case, for example "unknown_layout"
	Field  string // the argument at fault, as the caller spelt it
	Msg    string // safe sentence: what is wrong, with the bound where there is one
	Next   string // safe sentence: what the caller should do now
	Cause  error  // for logs only
}

// ErrStopping is the cause with which a server that stops ends the contexts of
// its callers: none of them went away.
var ErrStopping = New(Unavailable, "server_stopping", "this server is stopping").Do("send the request again: another server answers")

// Error returns the safe message followed by the cause; it is meant for logs.
// Adapters show Msg and Next instead.
func (e *Error) Error() string {
	s := e.Kind.String()
	if e.Field != "" {
		s += " " + e.Field
	}
	if e.Msg != "" {
		s += ": " + e.Msg
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// New makes a fault of a kind with a reason and a safe message.
func New(k Kind, reason, msg string) *Error { return &Error{Kind: k, Reason: reason, Msg: msg} }

// Newf is New with a formatted message.
func Newf(k Kind, reason, format string, args ...any) *Error {
	return New(k, reason, fmt.Sprintf(format, args...))
}

// Bad makes an Invalid fault for one argument.
func Bad(field, format string, args ...any) *Error {
	return &Error{Kind: Invalid, Reason: "invalid_argument", Field: field, Msg: fmt.Sprintf(format, args...)}
}

// Do returns a copy of the fault with its next step set.
func (e *Error) Do(next string) *Error {
	c := *e
	c.Next = next
	return &c
}

// Because returns a copy of the fault with its cause set.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.Cause = cause
	return &c
}

// Respell gives the argument that a fault names the name under which the
// caller sent it: names maps a service's word to the adapter's. An error
// without a fault, or whose argument is not in names, comes back as it is.
func Respell(err error, names map[string]string) error {
	var f *Error
	if !errors.As(err, &f) {
		return err
	}
	name, ok := names[f.Field]
	if !ok {
		return err
	}
	c := *f
	c.Field = name
	return &c
}

// Of returns the fault in err's chain. Any other error becomes an Internal
// fault that carries it as its cause and shows nothing of it. Of(nil) is nil.
func Of(err error) *Error {
	if err == nil {
		return nil
	}
	var f *Error
	if errors.As(err, &f) {
		return f
	}
	return &Error{Kind: Internal, Reason: "internal", Msg: "the server failed to answer", Next: "try again; give the operator the reference id if it stays", Cause: err}
}

// Is reports whether err's chain holds a fault of kind k.
func Is(err error, k Kind) bool {
	var f *Error
	return errors.As(err, &f) && f.Kind == k
}

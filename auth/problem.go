package auth

import (
	"crypto/rand"
	"encoding/json"
	"net/http"

	"github.com/telltale-dev/telltale/tenants/fault"
)

// ReferenceHeader carries the reference id that a caller can quote. Every 401,
// 403 and 5xx has it, and it leads to the log line of the refusal.
const ReferenceHeader = "Telltale-Reference"

// Reference returns the reference id of a response, and gives it one if it has
// none yet.
func Reference(w http.ResponseWriter) string {
	h := w.Header()
	if have := h[ReferenceHeader]; len(have) > 0 && have[0] != "" {
		return have[0]
	}
	ref := newReference()
	h[ReferenceHeader] = []string{ref}
	return ref
}

// newReference is 100 random bits in base32.
func newReference() string {
	const code = "abcdefghijklmnopqrstuvwxyz234567"
	var b [20]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	for i, c := range b {
		b[i] = code[c%byte(len(code))]
	}
	return string(b[:])
}

// Problem is a problem document (RFC 9457). Everything in it is safe for any
// caller; Field, Detail and Next may be empty.
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

// statuses is the one place where a kind of fault becomes an HTTP status.
var statuses = map[fault.Kind]int{
	fault.Internal: http.StatusInternalServerError, fault.Invalid: http.StatusBadRequest, fault.Denied: http.StatusForbidden,
	fault.NotFound: http.StatusNotFound, fault.Conflict: http.StatusConflict, fault.Exhausted: http.StatusTooManyRequests,
	fault.Unavailable: http.StatusServiceUnavailable, fault.Deadline: http.StatusGatewayTimeout,
	fault.Precondition: http.StatusPreconditionFailed, fault.Unauthorized: http.StatusUnauthorized,
}

// Status is the HTTP status of a kind of fault.
func Status(k fault.Kind) int { return statuses[k] }

// ProblemOf is what a caller may read of a fault: nothing of its cause.
func ProblemOf(f *fault.Error, status int, reference string) Problem {
	p := Problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: f.Msg, Kind: f.Kind.String(),
		Reason: f.Reason, Field: f.Field, Next: []string{}, ReferenceID: reference,
	}
	if p.Reason == "" {
		p.Reason = "unspecified"
	}
	if f.Next != "" {
		p.Next = append(p.Next, f.Next)
	}
	return p
}

// writeFault answers any error with the status of its kind.
func writeFault(w http.ResponseWriter, err error) {
	f := fault.Of(err)
	problem(w, Status(f.Kind), f)
}

func problem(w http.ResponseWriter, status int, f *fault.Error) {
	p := ProblemOf(f, status, Reference(w))
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(p) // the client is gone if this fails
}

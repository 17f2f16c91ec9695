package tenants

import "time"

// Limits that are part of the product's contract. Each bite is visible: a
// reason to the caller and a counter per tenant.
const (
	MaxListRows      = 200                // rows of one list answer; more is clamped with a note
	DefaultListRows  = 50                 // rows when the caller names no limit
	AnswerBytes      = 24 << 10           // bytes of one tool answer unless asked otherwise
	MaxAnswerBytes   = 96 << 10           // bytes of one tool answer at most
	MaxRequestBytes  = 1 << 20            // bytes of one HTTP request body
	MaxAgentMessage  = 4 << 20            // bytes of one gRPC message of an agent
	MaxSeriesPerNode = 1000               // series of one node over all its layouts in use
	MaxNodeLabels    = 32                 // labels of one node
	SkewIgnored      = 2 * time.Second    // clock skew up to this is ignored
	SkewCorrected    = time.Hour          // clock skew up to this is corrected and marked
	MaxReplayAge     = 24 * time.Hour     // older data is kept out and counted
	WindowLength     = 10 * time.Second   // length of one metric window
	NodeStaleAfter   = 45 * time.Second   // silence after which a node counts as away
	WindowRetention  = 6 * time.Hour      // age at which raw windows are dropped
	NodeCertLifetime = 7 * 24 * time.Hour // lifetime of a node's client certificate
	RevocationDelay  = 5 * time.Second    // a revocation bites on every replica within this
)

// ClampRows applies the list limit: zero or less asks for the default, more
// than the maximum is clamped, and clamped says so.
func ClampRows(n int) (rows int, clamped bool) {
	switch {
	case n <= 0:
		return DefaultListRows, false
	case n > MaxListRows:
		return MaxListRows, true
	}
	return n, false
}

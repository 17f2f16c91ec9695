package tenants

import "time"

// Every answer about nodes says what it covers. These small structs are shared
// by the services and rendered as they are by every adapter.

// Window is the half-open span (From, To] that an answer speaks of.
type Window struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// Coverage says how many nodes a question was about and which of them are not
// part of the answer. Asked = Answered + len(NotCovered) + More.
type Coverage struct {
	Asked      int          `json:"asked"`
	Answered   int          `json:"answered"`
	NotCovered []NotCovered `json:"not_covered"`    // at most MaxNotCovered rows, never null
	More       int          `json:"more,omitempty"` // nodes not covered beyond those rows
}

// MaxNotCovered bounds the rows of Coverage.NotCovered.
const MaxNotCovered = 50

// NotCovered is one node that did not answer, and why: "offline", "stale",
// "never", "quarantined", "duplicate", "revoked", "off", "no_data".
type NotCovered struct {
	Node   string `json:"node"`
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Miss adds a node that is not covered, within the bound.
func (c *Coverage) Miss(n NotCovered) {
	if len(c.NotCovered) >= MaxNotCovered {
		c.More++
		return
	}
	c.NotCovered = append(c.NotCovered, n)
}

// Truncated says that an answer leaves rows out. Total is nil when counting
// them would cost more than the answer.
type Truncated struct {
	Returned   int    `json:"returned"`
	Total      *int   `json:"total,omitempty"`
	NextCursor string `json:"next_cursor,omitempty"`
	Hint       string `json:"hint,omitempty"`
}

// NodeRef names one node in an answer.
type NodeRef struct {
	Node string `json:"node"`
	Name string `json:"name"`
}

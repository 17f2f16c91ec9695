package mcp

import (
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

// The types below are what cmd/telltaled's former adapter of tenants/explain
// fills. The tool takes the service as it is; they go with that adapter.

// ExplainQuery names one thing to explain.
type ExplainQuery struct {
	Node, Event, Ticket, Refusal string
}

// Explanation is a cause chain with what it rests on.
type Explanation struct {
	Subject    string
	At         time.Time
	Summary    string
	Window     tenants.Window
	Coverage   tenants.Coverage
	Chain      []Cause
	Changes    []ChangeSeen
	LookedAt   []string
	NotLooked  []NotLooked
	Suggestion []Next
}

// Cause is one link of a chain.
type Cause struct {
	At                                 time.Time
	Node, Name, What, Sure, Why, Event string
}

// ChangeSeen is a change around the subject.
type ChangeSeen struct {
	At               time.Time
	Node, Name, What string
	Related          bool
	Why              string
}

// NotLooked is what could not be looked at.
type NotLooked struct{ What, Reason string }

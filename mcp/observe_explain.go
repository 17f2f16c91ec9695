package mcp

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Explain answers why something is as it is.
type Explain interface {
	Explain(ctx context.Context, scope tenants.Scope, q ExplainQuery) (Explanation, error)
}

// ExplainQuery names one thing to explain: exactly one field is set.
type ExplainQuery struct {
	Node    string // id or unique name
	Event   string
	Ticket  string
	Refusal string // the reason word of a refusal
}

// Explanation is a cause chain with what it rests on.
type Explanation struct {
	Subject    string           `json:"subject"` // "event retransmit_burst on db1"
	At         time.Time        `json:"at"`
	Summary    string           `json:"summary"` // the answer in one or two sentences
	Window     tenants.Window   `json:"window"`
	Coverage   tenants.Coverage `json:"coverage"`
	Chain      []Cause          `json:"chain"` // from the subject back to its first cause
	Changes    []ChangeSeen     `json:"changes"`
	LookedAt   []string         `json:"looked_at"`
	NotLooked  []NotLooked      `json:"not_looked_at"`
	Suggestion []Next           `json:"next,omitempty"`
}

// Cause is one link: what happened and how sure it is.
type Cause struct {
	At    time.Time `json:"at"`
	Node  string    `json:"node,omitempty"`
	Name  string    `json:"name,omitempty"`
	What  string    `json:"what"`
	Sure  string    `json:"confidence"` // "certain", "likely", "possible"
	Why   string    `json:"why"`        // what this rests on
	Event string    `json:"event_id,omitempty"`
}

// ChangeSeen is a change around the subject, related to it or not.
type ChangeSeen struct {
	At      time.Time `json:"at"`
	Node    string    `json:"node,omitempty"`
	Name    string    `json:"name,omitempty"`
	What    string    `json:"what"`
	Related bool      `json:"related"`
	Why     string    `json:"why"`
}

// NotLooked is what the explanation could not look at.
type NotLooked struct {
	What   string `json:"what"`
	Reason string `json:"reason"`
}

// observeExplain is the tool that says why.
func observeExplain(s Services) []Tool {
	if s.Explain == nil {
		return nil
	}
	return []Tool{{
		Name: explain, Title: "Explain", Set: observeSet, Scope: tenants.Read,
		Description: "Why a node, event, task or refusal is as it is: cause chain with times, what changed around it, what was not looked at, next step. " +
			"Use it first for every \"why\". Send one argument.",
		Args: []Arg{
			nodeArgBare(), {Name: "event_id", Kind: argString}, {Name: ticketArg.Name, Kind: argString},
			{Name: "refusal", Kind: argString, Words: "reason word of an error"}, maxBytes,
		},
		Output: Explanation{},
		Run:    func(ctx context.Context, c Call) (Answer, error) { return explainOne(ctx, s, c) },
	}}
}

func explainOne(ctx context.Context, s Services, c Call) (Answer, error) {
	q := ExplainQuery{Node: c.Args.str(nodeArg.Name), Event: c.Args.str("event_id"), Ticket: c.Args.str(ticketArg.Name), Refusal: c.Args.str("refusal")}
	sent := 0
	for _, v := range []string{q.Node, q.Event, q.Ticket, q.Refusal} {
		if v != "" {
			sent++
		}
	}
	if sent != 1 {
		return Answer{}, &fault.Error{Kind: fault.Invalid, Reason: "one_subject", Field: nodeArg.Name, Msg: "explain takes exactly one of node, event_id, ticket_id and refusal", Next: "send the one that the question is about"}
	}
	got, err := s.Explain.Explain(ctx, c.Scope, q)
	if err != nil {
		return Answer{}, err
	}
	var render func(rows int) Answer
	render = func(rows int) Answer {
		body := got
		if rows > 0 { // the chain is the answer: it is kept longest
			body.Changes = body.Changes[:min(len(body.Changes), rows/2)]
			body.Chain = body.Chain[:min(len(body.Chain), max(1, rows-len(body.Changes)))]
			body.NotLooked = append(slices.Clone(body.NotLooked), NotLooked{"further links and changes", "cut to fit the answer's byte budget; raise max_bytes"})
		}
		return Answer{Body: body, Text: explainText(body), Rows: len(body.Chain) + len(body.Changes), Fit: render}
	}
	return render(0), nil
}

// explainText reads as a chain: what happened, because of what, seen from what.
func explainText(e Explanation) string {
	var p page
	p.line("%s: %s", inspector.CleanText(e.Subject), inspector.CleanText(e.Summary))
	for i, c := range e.Chain {
		lead := "because"
		if i == 0 {
			lead = "what"
		}
		p.line("%s: %s%s, %s (%s: %s)", lead, stamp(c.At), onNode(c.Name), inspector.CleanText(c.What), c.Sure, inspector.CleanText(c.Why))
	}
	if len(e.Chain) == 0 {
		p.line("no cause was found; that is unknown, not proof that there is none")
	}
	for _, related := range []bool{true, false} {
		for _, c := range e.Changes {
			if c.Related == related {
				word := "unrelated change"
				if related {
					word = "related change"
				}
				p.line("%s: %s%s, %s (%s)", word, stamp(c.At), onNode(c.Name), inspector.CleanText(c.What), inspector.CleanText(c.Why))
			}
		}
	}
	for _, l := range e.LookedAt {
		p.line("looked at: %s", inspector.CleanText(l))
	}
	for _, n := range e.NotLooked {
		p.line("not looked at: %s (%s)", inspector.CleanText(n.What), inspector.CleanText(n.Reason))
	}
	p.line("from %s to %s", stamp(e.Window.From), stamp(e.Window.To))
	p.coverage(e.Coverage)
	p.next(e.Suggestion)
	return p.String()
}

func onNode(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" on %s", inspector.CleanText(name))
}

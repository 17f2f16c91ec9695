package mcp

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	causes "github.com/telltale-dev/telltale/tenants/explain"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// maxApart is how many unrelated changes the text of an answer lists.
const maxApart = 8

// Explain answers why something is as it is; tenants/explain satisfies it.
type Explain interface {
	Explain(context.Context, tenants.Scope, causes.Query) (causes.Explanation, error)
}

// observeExplain is the tool that says why.
func observeExplain(s Services) []Tool {
	if s.Explain == nil {
		return nil
	}
	return []Tool{{
		Name: explain, Title: "Explain", Set: observeSet, Scope: tenants.Read,
		Description: "Why a node, event, task or refusal is as it is: cause chain, what changed around it, what was not looked at. " +
			"Use it first for every \"why\". Send one argument; node may go with refusal.",
		Args: []Arg{
			nodeArgBare(), {Name: "event_id", Kind: argString}, {Name: ticketArg.Name, Kind: argString},
			{Name: "refusal", Kind: argString, Words: "reason word of an error"}, maxBytes,
		},
		Output: causes.Explanation{},
		Run:    func(ctx context.Context, c Call) (Answer, error) { return explainOne(ctx, s, c) },
	}}
}

func explainOne(ctx context.Context, s Services, c Call) (Answer, error) {
	q := causes.Query{Node: c.Args.str(nodeArg.Name), Event: c.Args.str("event_id"), Task: c.Args.str(ticketArg.Name), Refusal: c.Args.str("refusal")}
	got, err := s.Explain.Explain(ctx, c.Scope, q)
	if err != nil {
		return Answer{}, fault.Respell(err, map[string]string{"event": "event_id", "task": ticketArg.Name})
	}
	var render func(rows int) Answer
	render = func(rows int) Answer {
		body := got
		if rows > 0 { // the chain is the answer: it is kept longest
			body.Changes = body.Nearest(rows / 2)
			body.Chain = body.Chain[:min(len(body.Chain), max(1, rows-len(body.Changes)))]
			body.NotLooked = append(slices.Clone(body.NotLooked), causes.Omission{What: "further links and changes", Why: "cut to fit the answer's byte budget; raise max_bytes"})
		}
		return Answer{Body: body, Text: explainText(body), Rows: len(body.Chain) + len(body.Changes), Fit: render}
	}
	return render(0), nil
}

// explainText reads as a chain: what happened, because of what, and what else
// is so; then what happened around it.
func explainText(e causes.Explanation) string {
	var p page
	name := e.Subject[strings.LastIndexByte(e.Subject, ' ')+1:]
	p.line("%s: %s", inspector.CleanText(e.Subject), inspector.CleanText(strings.TrimPrefix(e.Verdict, name+": ")))
	for i, c := range e.Chain {
		lead := "because"
		switch {
		case i == 0:
			lead = "what"
		case c.Role == causes.State:
			lead = "also"
		}
		p.line("%s: %s%s, %s (%s: %s)%s", lead, stamp(c.At), onNode(c.Name), inspector.CleanText(c.What), c.Confidence, inspector.CleanText(c.Why), ofEvent(c.Event))
	}
	if len(e.Chain) == 0 {
		p.line("no cause was found; that is unknown, not proof that there is none")
	}
	for i, c := range e.Open {
		if i == 0 {
			p.line("open events, gravest first:")
		}
		p.line("open: %s, %s (%s)%s", stamp(c.At), inspector.CleanText(c.What), inspector.CleanText(c.Why), ofEvent(c.Event))
	}
	p.around(e)
	rows := []string{}
	for _, m := range e.Metrics {
		rows = append(rows, m.Metric+" "+m.Stat)
		for _, v := range []*float64{m.Before, m.During, m.After} {
			cell := "unknown"
			if v != nil {
				cell = quantity(*v, string(m.Unit), m.Stat == "rate_s")
			}
			rows = append(rows, cell)
		}
	}
	p.table([]string{"METRIC", "BEFORE", "DURING", "AFTER"}, rows)
	for _, l := range e.Looked {
		p.line("looked at: %s", inspector.CleanText(l))
	}
	for _, n := range e.NotLooked {
		p.line("not looked at: %s (%s)", inspector.CleanText(n.What), inspector.CleanText(n.Why))
	}
	if !e.Window.To.IsZero() {
		p.line("from %s to %s", stamp(e.Window.From), stamp(e.Window.To))
	}
	if e.Coverage.Asked > 0 {
		p.coverage(e.Coverage)
	}
	for _, n := range e.Next {
		p.next([]Next{{n.Tool, n.Args, n.Why}})
	}
	return p.String()
}

// around lists what is related, and the nearest of what is not.
func (p *page) around(e causes.Explanation) {
	var apart []causes.Around
	write := func(word string, c causes.Around) {
		p.line("%s: %s%s, %s (%s)%s", word, stamp(c.At), onNode(c.Name), inspector.CleanText(c.What), inspector.CleanText(c.Why), ofEvent(c.Event))
	}
	for _, c := range e.Changes {
		if c.Related {
			write("related", c)
		} else {
			apart = append(apart, c)
		}
	}
	slices.SortStableFunc(apart, func(a, b causes.Around) int { return cmp.Compare(a.At.Sub(e.At).Abs(), b.At.Sub(e.At).Abs()) })
	for i, c := range apart {
		if i == maxApart {
			p.line("unrelated: %d more, further away in time, are left out here", len(apart)-maxApart)
			break
		}
		write("unrelated", c)
	}
}

func onNode(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" on %s", inspector.CleanText(name))
}

func ofEvent(id string) string {
	if id == "" {
		return ""
	}
	return " event " + id
}

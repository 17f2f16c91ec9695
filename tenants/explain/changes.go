package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// sameMoment is how far apart changes of signals are one change: an agent
// that starts opens one module after the other.
const sameMoment = 15 * time.Second

// what says what a change of a node is.
func (c Change) what() string {
	was := ""
	if c.Before != "" || c.After != "" {
		was = fmt.Sprintf(": %s → %s", word(c.Before), word(c.After))
	}
	switch c.Kind {
	case "agent_started":
		return "the agent was started"
	case "agent_upgraded":
		return "the agent has another version" + was
	case "boot":
		return "the machine was booted"
	case "kernel":
		return "another kernel" + was
	case "config":
		return "the agent has another configuration"
	case "module_off":
		return fmt.Sprintf("module %s was switched off by %s", inspector.CleanText(c.Subject), word(c.After))
	case "module_on":
		return fmt.Sprintf("module %s was switched on again by %s", inspector.CleanText(c.Subject), word(c.After))
	case "capability":
		return "signal " + inspector.CleanText(c.Subject) + was
	}
	return c.Kind + was
}

// turn says of a change of a signal what became of it; of others nothing.
func (c Change) turn() string {
	if c.Kind != "capability" {
		return ""
	}
	level, _, _ := strings.Cut(c.After, ":")
	switch inspector.Level(level) {
	case inspector.Full:
		return "came on"
	case inspector.Off:
		return "went off"
	}
	return "changed"
}

// gather lists changes beside the subject, as beside judges each. Signals of
// one node that changed alike at one moment, and are judged alike, are one line.
func (x *Explanation) gather(list []Change, beside func(Change) Around) {
	type group struct {
		node, turn, why string
		related         bool
	}
	type bundle struct {
		at   time.Time // of the earliest
		all  []Change
		line int // in x.Changes
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Change) int { return a.At.Compare(b.At) })
	open := map[group]*bundle{}
	var bundles []*bundle
	for _, c := range list {
		a := beside(c)
		turn := c.turn()
		if turn == "" {
			x.Changes = append(x.Changes, a)
			continue
		}
		g := group{c.Node, turn, a.Why, a.Related}
		b := open[g]
		if b == nil || c.At.Sub(b.at) > sameMoment {
			b = &bundle{at: c.At, line: len(x.Changes)}
			open[g], bundles = b, append(bundles, b)
			x.Changes = append(x.Changes, a)
		}
		b.all = append(b.all, c)
	}
	for _, b := range bundles {
		if len(b.all) > 1 {
			x.Changes[b.line].What = together(b.all, list)
		}
	}
}

// together is the line of several signals of a node.
func together(group, list []Change) string {
	first, last := group[0], group[len(group)-1]
	var components, reasons []string
	for _, c := range group {
		component, _, _ := strings.Cut(c.Subject, ".")
		if component = inspector.CleanText(component); !slices.Contains(components, component) {
			components = append(components, component)
		}
		if _, reason, ok := strings.Cut(c.After, ": "); ok && !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	slices.Sort(components)
	text := fmt.Sprintf("%d signals of %s %s at %s", len(group), strings.Join(components, ", "), first.turn(), clock(first.At))
	for _, c := range list {
		if c.Node == first.Node && slices.Contains([]string{"agent_started", "agent_upgraded", "boot"}, c.Kind) &&
			!c.At.Before(first.At.Add(-noticed)) && !c.At.After(last.At) {
			text += ", when the agent started"
			break
		}
	}
	if len(reasons) > 0 {
		text += " (" + inspector.CleanText(reasons[0])
		if len(reasons) > 1 {
			text += " and other reasons"
		}
		text += ")"
	}
	return text
}

func word(s string) string {
	if s == "" {
		return "unknown"
	}
	return inspector.CleanText(s)
}

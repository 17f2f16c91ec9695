package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

const (
	nodeSpan = 24 * time.Hour // how far back the events and changes of a node are looked at
	maxOpen  = 5              // open events listed
)

// node explains how a node is.
func (s *Service) node(ctx context.Context, scope tenants.Scope, ref string) (Explanation, error) {
	n, err := s.nodes.Node(ctx, scope, ref)
	if err != nil {
		return Explanation{}, err
	}
	now := s.now().UTC()
	x := blank("node "+n.Name, now)
	x.Window = tenants.Window{From: now.Add(-nodeSpan), To: now}
	got, err := s.events.Around(ctx, scope, n.ID, nil, x.Window.From, x.Window.To)
	if err != nil {
		return Explanation{}, err
	}
	changes, err := s.changes(ctx, scope, []string{n.ID}, "the node", &x)
	if err != nil {
		return Explanation{}, err
	}
	x.Coverage = got.Coverage
	x.looked(fmt.Sprintf("streams, signals, switches and kept-out data of %s", n.Name))
	x.looked(fmt.Sprintf("%d events and %d changes of the last %s", len(got.Events), len(changes), span(nodeSpan)))
	if got.More {
		x.notLooked("further events of the node", "more than one page within the time")
	}
	what, why, at := s.status(n)
	x.At = at
	x.add(n, at, what, why, "")
	if c, ok := closings[n.CloseReason]; ok && n.Status == "offline" && n.ClosedAt != nil {
		x.add(n, at, c.what, c.why+" ("+n.CloseReason+")", "")
		why = c.what + " (" + c.why + "): " + why
	}
	open := slices.DeleteFunc(slices.Clone(got.Events), func(e Event) bool { return e.State == inspector.EventEnded })
	s.weaknesses(n, &x)
	openEvents(open, &x)
	x.gather(changes, func(c Change) Around { return besideNode(n, c) })
	x.cut(now)
	x.Verdict = nodeVerdict(n, what, why, open, changes)
	x.Next = nextForNode(n)
	if n.Status != "online" {
		x.notLooked("what happens on "+n.Name+" now", "it is "+n.Status)
	}
	return x, nil
}

func (x *Explanation) add(n Node, at time.Time, what, why, role string) {
	x.Chain = append(x.Chain, Link{Role: role, At: at.UTC(), Node: n.ID, Name: n.Name, What: what, Why: why, Confidence: Recorded})
}

// closings are the words with which the end of a stream is recorded.
var closings = map[string]struct{ what, why string }{
	"eof":        {"the agent was stopped", "it ended its stream in good order, as an agent does that is stopped"},
	"broken":     {"the connection was lost", "its stream broke off: the machine, the agent or the way between them went away"},
	"lost":       {"the connection was lost", "its stream fell silent and was given up"},
	"refused":    {"its stream was refused", "the server could not accept what it sent"},
	"expired":    {"its certificate expired", "its stream was ended for it"},
	"revoked":    {"its identity was revoked", "its stream was ended for it"},
	"suspended":  {"the tenant was suspended", "its stream was ended for it"},
	"replaced":   {"its stream gave way to a younger one", "that one has ended since, or was never let in"},
	"drained":    {"its stream reached its age", "it was asked to connect again and has not come back"},
	"stopping":   {"the server process that held it stopped", "it was asked to connect again and has not come back"},
	"not_stored": {"its stream was cut", "what it sent could not be stored, and it has not come back"},
}

// status says how a node is, what that rests on, and since when.
func (s *Service) status(n Node) (what, why string, at time.Time) {
	at = s.now().UTC()
	seen := "it was never heard of"
	if n.LastSeen != nil {
		seen = "last heard of " + stamp(*n.LastSeen)
		if n.Status != "online" {
			at = n.LastSeen.UTC()
		}
	}
	what = "the node is " + n.Status
	switch n.Status {
	case "offline":
		switch {
		case n.ClosedAt != nil:
			at = n.ClosedAt.UTC()
			why = fmt.Sprintf("its stream ended %s: %s", stamp(at), word(n.CloseReason))
		default:
			why = seen + ": the stream was never closed, so the server that held it, the machine or the way between them went away"
		}
		if n.CertExpires != nil && n.CertExpires.Before(s.now()) {
			why += "; its certificate expired " + stamp(*n.CertExpires)
		}
	case "stale":
		why = seen + ": its stream is open and silent"
	case "quarantined":
		why = "its clock is more than an hour off"
		if n.SkewMS != nil {
			why = fmt.Sprintf("its clock is %v off, at most %v is corrected: new data is kept out", (time.Duration(*n.SkewMS) * time.Millisecond).Round(time.Second), tenants.SkewCorrected)
		}
	case "duplicate":
		why = "one identity is live on two machines, boots or agents at once: an image was cloned, or a directory copied"
	case "revoked":
		why = "its certificate was revoked; nothing of it is accepted"
	case "never":
		why = "it was enrolled, but no agent ever opened a stream"
	default:
		why = seen
	}
	return what, why, at
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// weaknesses adds what does not work fully on a node.
func (s *Service) weaknesses(n Node, x *Explanation) {
	for _, o := range n.Off {
		x.add(n, o.At, "module "+o.Module+" is off", "switched off from the server by "+word(o.By), State)
	}
	for i, w := range n.Weak {
		if i == maxWeak {
			x.notLooked(fmt.Sprintf("%d further signals that do not work fully", len(n.Weak)-maxWeak), "the first ones are listed")
			break
		}
		x.add(n, w.Since, fmt.Sprintf("signal %s.%s is %s", w.Component, w.Signal, w.Level), word(w.Reason), State)
	}
	for i, k := range n.Kept {
		if i == maxWeak {
			x.notLooked(fmt.Sprintf("%d further reasons why reports were kept out", len(n.Kept)-maxWeak), "the first ones are listed")
			break
		}
		x.add(n, k.LastAt, fmt.Sprintf("%d reports were kept out", k.Count), k.why(), State)
	}
}

// why says for what reports were kept out, and until when.
func (k Kept) why() string {
	text := k.Reason
	if m := meaning(k.Reason); m != "" {
		text += ": " + m
	}
	return text + "; the last one " + stamp(k.LastAt)
}

// openEvents lists what is going on, the gravest first: none of it makes a node
// online or offline.
func openEvents(open []Event, x *Explanation) {
	slices.SortStableFunc(open, func(a, b Event) int {
		return cmp.Or(b.Severity.Rank()-a.Severity.Rank(), b.First.Compare(a.First))
	})
	for _, e := range open[:min(len(open), maxOpen)] {
		x.Open = append(x.Open, Link{Role: State, At: e.First, Node: e.Node, Name: e.Name, What: title(e), Why: own(e), Confidence: Recorded, Event: e.ID})
	}
	if len(open) > maxOpen {
		x.notLooked(fmt.Sprintf("%d further open events", len(open)-maxOpen), "the gravest are listed")
	}
}

// besideNode lists a change beside the state of its node.
func besideNode(n Node, c Change) Around {
	a := Around{At: c.At, Node: c.Node, Name: c.Name, What: c.what(), Why: "no shared scope"}
	for _, o := range n.Off {
		if c.Kind == "module_off" && c.Subject == o.Module {
			a.Related, a.Why = true, "the module is off now"
		}
	}
	for _, w := range n.Weak {
		if c.Kind == "capability" && c.Subject == w.Component+"."+w.Signal {
			a.Related, a.Why = true, "the signal is "+w.Level+" now"
		}
	}
	return a
}

func nodeVerdict(n Node, what, why string, open []Event, changes []Change) string {
	parts := []string{fmt.Sprintf("%s: %s, %s", n.Name, what, why)}
	if len(n.Off) > 0 || len(n.Weak) > 0 {
		parts = append(parts, fmt.Sprintf("switched off from the server: %d; signals that do not work fully: %d", len(n.Off), len(n.Weak)))
	}
	if len(open) > 0 {
		parts = append(parts, fmt.Sprintf("%s open, the gravest %s since %s", areOpen(len(open)), title(open[0]), clock(open[0].First)))
	}
	if len(changes) > 0 {
		parts = append(parts, fmt.Sprintf("the last change was %s at %s", changes[0].what(), clock(changes[0].At)))
	}
	return strings.Join(parts, "; ") + "."
}

func areOpen(n int) string {
	if n == 1 {
		return "1 event is"
	}
	return fmt.Sprintf("%d events are", n)
}

func nextForNode(n Node) []inspector.NextStep {
	args := map[string]any{"node": n.ID}
	step := inspector.NextStep{Tool: "get_node", Args: args, Why: "its streams, signals and loss in full"}
	if n.Status != "online" {
		return []inspector.NextStep{step}
	}
	return []inspector.NextStep{{Tool: "list_events", Args: args, Why: "what it reported"}, step}
}

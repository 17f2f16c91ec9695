package explain

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

const (
	causeWithin = 15 * time.Minute // a cause was still there this long before its effect
	aroundSpan  = 30 * time.Minute // what lies this far around is listed
	maxDepth    = 4                // links from a cause to a cause
	maxLinks    = 12
	edgeRank    = 2
)

// ties are the labels that place a record: two records of one node that bear
// the same value of one of them speak of the same thing.
var ties = [...]string{"device", "interface", "cgroup", "container", "exe", "comm", "component", "reason", "port"}

// vague values place nothing.
var vague = [...]string{"", "other", "unknown", "-", "/"}

// places collects the tie labels of an event, of its scope and its samples.
func places(e Event) map[string][]string {
	out := map[string][]string{}
	add := func(k, v string) {
		if !slices.Contains(vague[:], v) && !slices.Contains(out[k], v) {
			out[k] = append(out[k], v)
		}
	}
	for _, labels := range append([]map[string]string{e.Scope}, e.Samples...) {
		for _, k := range ties {
			add(k, labels[k])
		}
		if exe := labels["exe"]; exe != "" { // the kernel keeps 15 bytes of a program's name
			name := path.Base(exe)
			add("comm", name[:min(len(name), 15)])
		}
	}
	return out
}

// shared finds a value that both bear; else a key of which both bear values,
// none of them the same: they speak of different things.
func shared(a, b map[string][]string) (same, apart string) {
	for _, k := range ties {
		for _, v := range a[k] {
			if slices.Contains(b[k], v) {
				return k + "=" + v, ""
			}
		}
	}
	for _, k := range ties {
		if apart == "" && len(a[k]) > 0 && len(b[k]) > 0 && k != "comm" && k != "reason" {
			apart = k
		}
	}
	return "", apart
}

// relation is why one event may have brought another one about.
type relation struct {
	cause bool   // it belongs into the chain
	also  bool   // it is the same trouble, or tied to it in no known order: not its cause
	rank  int    // the higher, the firmer; from edgeRank on the kinds declare it
	why   string // of what it is, or is not
}

// relate looks whether c may be a cause of e.
func (s *Service) relate(e, c Event) relation {
	same, apart := shared(places(e), places(c))
	switch {
	case c.Node != e.Node:
		if c.Kind == e.Kind {
			return relation{why: "the same kind on another node with the same labels: a common cause is possible, none is recorded"}
		}
		return relation{why: "another node: no record ties the two together"}
	case c.Fingerprint != "" && c.Fingerprint == e.Fingerprint:
		return relation{also: true, why: "another spell of the same trouble, not its cause"}
	case e.promoted() || c.promoted():
		return s.relateFinding(e, c, same, apart)
	case s.order(c, e) == after:
		if same != "" {
			return relation{why: "shares " + same + ", but came after it began"}
		}
		return relation{why: "came after it began; no shared scope"}
	case e.First.Sub(c.Last) > causeWithin:
		return relation{why: fmt.Sprintf("over for more than %v when it began", causeWithin)}
	case c.Kind == e.Kind && same != "":
		return relation{also: true, why: "the same kind, shares " + same}
	}
	edge := s.edge(c.Kind, e.Kind)
	switch {
	case edge && same != "":
		return relation{cause: true, rank: 3, why: fmt.Sprintf("%s can bring %s about, and both bear %s", c.Kind, e.Kind, same)}
	case edge && apart != "":
		return relation{why: fmt.Sprintf("%s can bring %s about, but this is another %s", c.Kind, e.Kind, apart)}
	case edge:
		return relation{cause: true, rank: edgeRank, why: fmt.Sprintf("%s can bring %s about on the same node", c.Kind, e.Kind)}
	case same != "" && s.order(c, e) == unclear:
		return relation{also: true, why: fmt.Sprintf("both bear %s; its time is only known to %s, so which came first is not known", same, span(s.slack(c)))}
	case same != "":
		return relation{cause: true, rank: 1, why: "both bear " + same}
	case apart != "":
		return relation{why: "no shared scope: another " + apart}
	}
	return relation{why: "no shared scope"}
}

func (s *Service) edge(cause, effect string) bool {
	k, ok := s.reg.Event(effect)
	return ok && slices.Contains(k.CausedBy, cause)
}

// title is what an event is, with its scope.
func title(e Event) string {
	t := inspector.CleanText(e.Title)
	if t == "" {
		t = e.Kind
	}
	if len(e.Scope) == 0 {
		return t
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(e.Scope)) {
		parts = append(parts, inspector.CleanText(k+"="+e.Scope[k]))
	}
	return t + " (" + strings.Join(parts, ", ") + ")"
}

// clock writes a moment for a sentence.
func clock(t time.Time) string { return t.UTC().Format("15:04:05") }

// span writes a duration for a sentence.
func span(d time.Duration) string {
	switch d = d.Abs(); {
	case d < time.Second:
		return "less than a second"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d h", int(d.Hours()))
}

package explain

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// reason is what one word of a refusal means.
type reason struct {
	means string // completes "it means that …"
	bound string // the limit at fault; empty: none
	next  string
	// holds looks whether it holds for a node now; nil: a node says nothing
	// of it.
	holds func(Node) (string, bool)
}

// meaning is what a reason means; empty for an unknown one.
func meaning(word string) string { return reasons[word].means }

// Meaning is what a reason of a fault means, completing "it means that …", and
// what to do next; known is false for a word that no fault has.
func Meaning(word string) (means, next string, known bool) {
	r, _, known := wordOf(word)
	return r.means, r.next, known
}

// Reasons lists every reason that can be explained, sorted.
func Reasons() []string { return slices.Sorted(maps.Keys(reasons)) }

// refusal explains a reason, and whether it holds for a node now.
func (s *Service) refusal(ctx context.Context, scope tenants.Scope, name, ref string) (Explanation, error) {
	r, kind, ok := wordOf(name)
	if !ok {
		clean, _ := inspector.CleanLabel(name)
		return Explanation{}, fault.Bad("refusal", "no reason %.60q is known; near are %s", clean, strings.Join(nearest(clean, 5), ", ")).
			Do("take the word from the field reason of the error")
	}
	now := s.now().UTC()
	x := blank("refusal "+name, now)
	x.Window = tenants.Window{From: now, To: now}
	x.Verdict = fmt.Sprintf("%s means that %s.", name, r.means)
	link := Link{At: now, What: name + ": " + r.means, Why: "the product's list of reasons", Confidence: Recorded}
	if r.bound != "" {
		link.What += "; the bound is " + r.bound
		x.Verdict = fmt.Sprintf("%s means that %s; the bound is %s.", name, r.means, r.bound)
	}
	x.Chain = append(x.Chain, link)
	x.looked("the list of reasons")
	do := r.next
	if ref == "" {
		x.notLooked("whether it holds now", "no node was named")
	} else {
		n, err := s.nodes.Node(ctx, scope, ref)
		if err != nil {
			return Explanation{}, err
		}
		if x.holds(r, n, now) {
			do = "try again, for it does not hold now"
		}
		x.Next = []inspector.NextStep{{Tool: "get_node", Args: map[string]any{"node": n.ID}, Why: "the state of the node in full"}}
	}
	x.Verdict += " Next: " + do + "."
	if kind {
		x.Verdict += " " + name + " is a kind of error: the reason word after it, such as " + inspector.ReasonPidGone + ", says more; send that as refusal."
		x.notLooked("the reason", "a kind of error was named")
	}
	return x, nil
}

// holds lays a reason beside the present state of a node; over: it is seen not
// to hold.
func (x *Explanation) holds(r reason, n Node, now time.Time) (over bool) {
	x.looked("the present state of " + n.Name)
	if r.holds == nil {
		x.notLooked("whether it holds on "+n.Name+" now", "the node's state says nothing of this reason")
		return false
	}
	text, holds := r.holds(n)
	x.add(n, now, text, "the node's state now", State)
	if holds {
		x.Verdict += fmt.Sprintf(" It holds on %s now: %s.", n.Name, text)
	} else {
		x.Verdict += fmt.Sprintf(" It does not hold on %s now: %s.", n.Name, text)
	}
	return !holds
}

// nearest lists the known reasons that look most like a word.
func nearest(word string, n int) []string {
	list := Reasons()
	score := map[string]int{}
	for _, r := range list {
		score[r] = distance(word, r)
		for part := range strings.SplitSeq(r, "_") {
			if len(part) > 3 && strings.Contains(strings.ToLower(word), part) {
				score[r] -= 2 * len(part)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b string) int { return cmp.Compare(score[a], score[b]) })
	return list[:min(n, len(list))]
}

// distance is Levenshtein's, of words of at most 128 bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			last, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, last+cost)
		}
	}
	return row[len(b)]
}

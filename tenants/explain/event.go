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
	maxAround = 100 // rows of Explanation.Changes
	maxDetail = 20  // earlier events whose samples are read
	maxWeak   = 8
	maxPeers  = 50 // whose changes are read
)

// event explains one event.
func (s *Service) event(ctx context.Context, scope tenants.Scope, id string) (Explanation, error) {
	e, err := s.events.Event(ctx, scope, id)
	if err != nil {
		return Explanation{}, err
	}
	n, err := s.nodes.Node(ctx, scope, e.Node)
	if err != nil {
		return Explanation{}, err
	}
	x := blank(fmt.Sprintf("event %s on %s", e.Kind, e.Name), e.First)
	x.Window = tenants.Window{From: e.First.Add(-aroundSpan), To: earlier(e.First.Add(aroundSpan), s.now())}
	x.Metrics = e.Metrics
	here, err := s.events.Around(ctx, scope, e.Node, nil, x.Window.From, x.Window.To)
	if err != nil {
		return Explanation{}, err
	}
	x.Coverage = here.Coverage
	near := slices.DeleteFunc(here.Events, func(c Event) bool { return c.ID == e.ID })
	kept := []*Event{&e}
	for i := range near {
		kept = append(kept, &near[i])
	}
	s.findings(ctx, scope, kept, &x)
	x.looked(fmt.Sprintf("the event's own record and %d metrics around it", len(e.Metrics)))
	x.looked(fmt.Sprintf("%d other events of %s within %s", len(near), e.Name, span(aroundSpan)))
	if here.More {
		x.notLooked("further events of the node", "more than one page within the time")
	}
	s.detail(ctx, scope, e, near, &x)
	s.chain(e, near, &x)
	changes, err := s.changes(ctx, scope, []string{e.Node}, e.Name, &x)
	if err != nil {
		return Explanation{}, err
	}
	x.looked("starts, versions, configuration, switches and signals of " + e.Name)
	x.gather(changes, func(c Change) Around { return s.besideEvent(e, c) })
	if err := s.peers(ctx, scope, e, n, &x); err != nil {
		return Explanation{}, err
	}
	x.cut(e.First)
	x.gaps(e, n)
	x.Verdict = verdict(e, x.Chain, here.More)
	x.Next = s.nextFor(e)
	return x, nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b.UTC()
	}
	return a.UTC()
}

// detail reads the samples of the events just before: they may bear what a
// scope does not. Where they are too many to read, each kind has its turn, so
// that a storm of one hides no other; those of the event's own kind, which is
// no cause of itself, come last.
func (s *Service) detail(ctx context.Context, scope tenants.Scope, e Event, near []Event, x *Explanation) {
	turn, of := map[string]int{e.Kind: len(near)}, make([]int, len(near))
	var before []int
	for i, c := range near {
		if s.order(c, e) == after || e.First.Sub(c.Last) > causeWithin {
			continue
		}
		of[i] = turn[c.Kind]
		turn[c.Kind]++
		before = append(before, i)
	}
	slices.SortStableFunc(before, func(a, b int) int { return cmp.Compare(of[a], of[b]) })
	if len(before) > maxDetail {
		x.notLooked("the samples of further earlier events", fmt.Sprintf("more than %d of them", maxDetail))
		before = before[:maxDetail]
	}
	for _, i := range before {
		whole, err := s.events.Event(ctx, scope, near[i].ID)
		if err != nil {
			x.notLooked("the samples of "+title(near[i]), "they could not be read")
			continue
		}
		whole.Began = near[i].Began
		near[i] = whole
	}
}

// chain follows causes back from e, and lists the others beside it.
func (s *Service) chain(e Event, near []Event, x *Explanation) {
	x.Chain = append(x.Chain, Link{At: e.First, Node: e.Node, Name: e.Name, What: title(e), Event: e.ID, Confidence: Recorded, Why: own(e)})
	why := map[string]relation{}
	for from, depth := []Event{e}, 0; len(from) > 0 && depth < maxDepth; depth++ {
		var next []Event
		for _, effect := range from {
			for _, c := range firmest(s, effect, near) {
				if _, ok := why[c.ID]; ok || len(x.Chain) >= maxLinks {
					continue
				}
				r := s.relate(effect, c)
				if depth > 0 && (r.rank < edgeRank || s.relate(e, c).also) {
					continue // a label alone carries no further, and no trouble causes itself
				}
				why[c.ID] = r
				x.Chain = append(x.Chain, Link{At: c.First, Node: c.Node, Name: c.Name, What: title(c), Event: c.ID, Confidence: Related,
					Why: s.apartText(c, effect) + ": " + r.why})
				next = append(next, c)
			}
		}
		from = next
	}
	for _, c := range near {
		r, ok := why[c.ID]
		if !ok {
			r = s.relate(e, c)
		}
		x.Changes = append(x.Changes, Around{At: c.First, Node: c.Node, Name: c.Name, What: title(c), Event: c.ID, Related: ok || r.also, Why: r.why})
	}
}

// firmest lists the causes of an event, the firmest and then the latest first.
func firmest(s *Service, effect Event, near []Event) []Event {
	rank := map[string]int{}
	var out []Event
	for _, c := range near {
		if r := s.relate(effect, c); r.cause {
			rank[c.ID] = r.rank
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b Event) int { return cmp.Or(rank[b.ID]-rank[a.ID], b.First.Compare(a.First)) })
	return out
}

// own is what the event's record says of itself.
func own(e Event) string {
	text := fmt.Sprintf("%s, %s, seen %d times until %s", e.Severity, e.State, e.Count, clock(e.Last))
	if e.promoted() {
		text = fmt.Sprintf("%s, a finding of task %s, seen %d times; %s: it may have begun before", e.Severity, inspector.CleanText(e.Ticket), e.Count, e.found())
	}
	if e.Lost > 0 {
		text += fmt.Sprintf(", at least: %d were lost on the way", e.Lost)
	}
	return text
}

// besideEvent lists a change of the node beside an event.
func (s *Service) besideEvent(e Event, c Change) Around {
	a := Around{At: c.At, Node: c.Node, Name: c.Name, What: c.what(), Why: "no shared scope"}
	component, _, _ := strings.Cut(c.Subject, ".")
	k, _ := s.reg.Event(e.Kind)
	switch {
	case c.At.After(e.First) && !e.promoted():
		a.Why = "came after it began; no shared scope"
	case c.Subject != "" && slices.Contains(places(e)["component"], component):
		a.Related, a.Why = true, "both bear component="+component
	case c.Subject != "" && component == k.Component:
		a.Why = "no shared scope: it changes what is seen of " + component + ", not what happens"
	}
	return a
}

// peers lists what happened on the other nodes that bear the node's labels.
func (s *Service) peers(ctx context.Context, scope tenants.Scope, e Event, n Node, x *Explanation) error {
	if len(n.Labels) == 0 {
		x.notLooked("peers of "+e.Name, "the node bears no labels, so none are known")
		return nil
	}
	got, err := s.events.Around(ctx, scope, "", n.Labels, x.Window.From, x.Window.To)
	if err != nil {
		return err
	}
	x.looked(fmt.Sprintf("events of the %d nodes that bear all labels of %s", got.Coverage.Asked, e.Name))
	x.Coverage = got.Coverage
	if got.More {
		x.notLooked("further events of peers", "more than one page within the time")
	}
	var told []string // peers that reported something
	for _, c := range got.Events {
		if c.Node == e.Node {
			continue
		}
		x.Changes = append(x.Changes, Around{At: c.First, Node: c.Node, Name: c.Name, What: title(c), Event: c.ID, Why: s.relate(e, c).why})
		if !slices.Contains(told, c.Node) && len(told) < maxPeers {
			told = append(told, c.Node)
		}
	}
	if len(told) > 0 {
		changes, err := s.changes(ctx, scope, told, "peers", x)
		if err != nil {
			return err
		}
		x.looked(fmt.Sprintf("changes of the %d peers that reported events", len(told)))
		x.gather(changes, func(c Change) Around {
			return Around{At: c.At, Node: c.Node, Name: c.Name, What: c.what(), Why: "another node: no record ties the two together"}
		})
	}
	if got.Coverage.Asked-1 > len(told) {
		x.notLooked("changes of peers that reported nothing", "no event of theirs lies within the time, as far as they could tell")
	}
	return nil
}

// cut puts what lies around in order of time; what is related and what is near
// to the moment is kept.
func (x *Explanation) cut(at time.Time) {
	if len(x.Changes) > maxAround {
		x.notLooked(fmt.Sprintf("%d further changes", len(x.Changes)-maxAround), "the nearest and the related ones are listed")
	}
	x.Changes = closest(x.Changes, at, maxAround)
}

// Nearest returns at most most of the changes, in order of time: what is
// related and what is near to the explained moment.
func (x *Explanation) Nearest(most int) []Around { return closest(x.Changes, x.At, most) }

func closest(list []Around, at time.Time, most int) []Around {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Around) int {
		if a.Related != b.Related {
			return map[bool]int{true: -1, false: 1}[a.Related]
		}
		return cmp.Compare(a.At.Sub(at).Abs(), b.At.Sub(at).Abs())
	})
	list = list[:min(len(list), most)]
	slices.SortStableFunc(list, func(a, b Around) int { return a.At.Compare(b.At) })
	return list
}

// gaps names what nothing could be known of.
func (x *Explanation) gaps(e Event, n Node) {
	for _, m := range x.Coverage.NotCovered {
		x.notLooked("later events of "+m.Name, "the node is "+m.Reason+": it may hold some back")
	}
	if e.Context != "complete" {
		why := e.ContextReason
		if why == "" {
			why = e.Context
		}
		x.notLooked("all of the metrics around it", why)
	}
	weak := 0
	for _, w := range n.Weak {
		if w.Level != string(inspector.Off) {
			continue
		}
		if weak++; weak > maxWeak {
			break
		}
		x.notLooked("events that stand on "+w.Component+"."+w.Signal, "off on "+n.Name+": "+word(w.Reason))
	}
	told := 0
	for _, k := range n.Kept {
		if k.LastAt.Before(x.Window.From) {
			continue
		}
		if told++; told > maxWeak {
			break
		}
		x.notLooked(fmt.Sprintf("%d reports of %s that were kept out, some of them perhaps then", k.Count, n.Name), k.why())
	}
	for _, o := range n.Off {
		x.notLooked("events of "+o.Module, "the module is switched off since "+clock(o.At))
	}
}

func verdict(e Event, chain []Link, more bool) string {
	head := fmt.Sprintf("%s on %s began %s", title(e), e.Name, clock(e.First))
	if e.promoted() {
		head = fmt.Sprintf("%s on %s was found by a task: %s", title(e), e.Name, e.found())
	}
	switch {
	case len(chain) < 2 && e.promoted():
		return head + "; it may have begun before, and no other record is known to bring it about, so its cause is not known here."
	case len(chain) < 2 && more:
		return fmt.Sprintf("%s; of the many events around it not all were looked at, and none of those that were shares its scope, so its cause is not known here.", head)
	case len(chain) < 2:
		return fmt.Sprintf("%s; nothing recorded in the %s before it shares its scope, so its cause is not known here.", head, span(causeWithin))
	}
	c, root := chain[1], chain[len(chain)-1]
	text := fmt.Sprintf("%s, %s after %s (%s)", head, span(e.First.Sub(c.At)), c.What, c.Why)
	if c.At.After(e.First) {
		text = fmt.Sprintf("%s, possibly because of %s (%s)", head, c.What, c.Why)
	}
	if root.At.Before(c.At) && root.Event != c.Event {
		text += fmt.Sprintf("; the chain goes back to %s at %s", root.What, clock(root.At))
	}
	return text + "."
}

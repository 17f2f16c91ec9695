package runner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// maxArgBytes is the most that the arguments of one order may have.
const maxArgBytes = 64 << 10

// check holds an order against everything that this node knows by itself: the
// server has checked the same, and need not be right.
func (t *Tasks) check(o inspector.TaskOrder, now time.Time) (inspector.TaskKind, inspector.Args, *inspector.Refusal) {
	k, known := t.kinds.Task(o.Kind)
	if known {
		_, known = t.runs[o.Kind]
	}
	switch {
	case !known:
		return k, nil, refuse("INVALID_ARGUMENT", inspector.ReasonUnknownKind, "this node's agent knows no such task",
			"ask for a task that the node lists; a newer agent may know more")
	case !t.allowed(k):
		return k, nil, refuse("PERMISSION_DENIED", inspector.ReasonNotAllowed, k.Name+" is not among the tasks that this node's own configuration allows",
			"whoever runs the node may add it to tasks-allow")
	case !slices.Contains(o.Scopes, string(k.Scope)):
		return k, nil, refuse("PERMISSION_DENIED", inspector.ReasonScope, fmt.Sprintf("%s needs the scope %s", k.Name, k.Scope), "use a token that holds this scope")
	case t.seen[o.ID]:
		return k, nil, refuse("FAILED_PRECONDITION", inspector.ReasonDuplicateTask, "a task with this id was started before", "look at that task's result")
	case !o.StartBefore.After(now) || !o.Deadline.After(now):
		return k, nil, refuse("DEADLINE_EXCEEDED", inspector.ReasonLate, "the order reached the node after it had to start", "ask again")
	case o.Deadline.Sub(now) > inspector.MaxTaskSeconds*time.Second+orderGrace:
		return k, nil, refuse("INVALID_ARGUMENT", inspector.ReasonInvalidArgument,
			fmt.Sprintf("the deadline is further away than %d s", inspector.MaxTaskSeconds+int(orderGrace.Seconds())), "ask for a shorter task")
	}
	args, refusal := readArgs(k, o.Args)
	if refusal != nil {
		return k, nil, refusal
	}
	return k, args, t.room(k)
}

// room says why the node cannot do one more task of a kind now.
func (t *Tasks) room(k inspector.TaskKind) *inspector.Refusal {
	off := ""
	if t.cfg.Off != nil {
		off = t.cfg.Off(k.Component, k.Signals)
	}
	heavy, traces, queries := t.slots[inspector.CostHeavy], t.slots[inspector.CostTrace]+t.slots[inspector.CostHeavy], t.slots[inspector.CostQuery]
	const wait = "wait for a running task to end, or cancel one"
	switch {
	case t.stopping:
		return refuseStopping()
	case off != "":
		return refuse("FAILED_PRECONDITION", inspector.ReasonFeatureOff, fmt.Sprintf("%s is off on this node: %s", k.Component, off), "call get_node to see what the node can do, or ask another node")
	case k.Cost == inspector.CostQuery && queries >= inspector.NodeQueries:
		return refuse("RESOURCE_EXHAUSTED", inspector.ReasonTooManyQueries, fmt.Sprintf("the node answers at most %d queries at once", inspector.NodeQueries), wait)
	case k.Cost == inspector.CostQuery:
		return nil
	case t.shed != "":
		return refuseBudget(t.shed)
	case k.Cost == inspector.CostHeavy && heavy >= inspector.NodeHeavy:
		return refuse("RESOURCE_EXHAUSTED", inspector.ReasonTooManyHeavy, fmt.Sprintf("the node runs at most %d heavy task at once", inspector.NodeHeavy), wait)
	case traces >= inspector.NodeTraces:
		return refuse("RESOURCE_EXHAUSTED", inspector.ReasonTooManyTraces, fmt.Sprintf("the node runs at most %d traces at once", inspector.NodeTraces), wait)
	}
	return nil
}

func (t *Tasks) allowed(k inspector.TaskKind) bool { return Allowed(t.cfg.Allow, k) }

// Allowed reports whether a node's own list allows a kind. An empty list
// allows what only looks.
func Allowed(list []string, k inspector.TaskKind) bool {
	if len(list) == 0 {
		return k.Scope == inspector.ScopeRead || k.Scope == inspector.ScopeDiagnose
	}
	return slices.Contains(list, k.Name)
}

// readArgs decodes and checks the arguments. What a JSON decoder would let
// pass is refused: a key that is there twice, text that is not UTF-8,
// anything after the object.
func readArgs(k inspector.TaskKind, raw []byte) (inspector.Args, *inspector.Refusal) {
	invalid := func(arg, reason, msg string) *inspector.Refusal {
		r := refuse("INVALID_ARGUMENT", reason, msg, "correct the argument and ask again")
		r.Arg = arg
		return r
	}
	if len(raw) > maxArgBytes {
		return nil, invalid("", inspector.ReasonInvalidArgument, fmt.Sprintf("the arguments have more than %d bytes", maxArgBytes))
	}
	values, err := object(raw)
	if err != nil {
		return nil, invalid("", inspector.ReasonInvalidArgument, "the arguments are not one JSON object: "+err.Error())
	}
	args, err := k.Check(values)
	if a, ok := errors.AsType[*inspector.ArgError](err); ok {
		return nil, invalid(a.Arg, a.Reason, a.Arg+": "+a.Msg)
	}
	if err != nil {
		return nil, invalid("", inspector.ReasonInvalidArgument, err.Error())
	}
	return args, nil
}

func object(raw []byte) (map[string]any, error) {
	if !utf8.Valid(raw) {
		return nil, errors.New("not valid UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, errors.New("does not begin with {")
	}
	out := map[string]any{}
	for d.More() {
		key, err := d.Token()
		name, ok := key.(string)
		if err != nil || !ok {
			return nil, errors.New("malformed")
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("%q is there twice", clip(inspector.CleanText(name), 64))
		}
		var v any
		if err := d.Decode(&v); err != nil {
			return nil, errors.New("malformed")
		}
		out[name] = v
	}
	if _, err := d.Token(); err != nil {
		return nil, errors.New("cut short")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
	}
	return out, nil
}

func refuse(kind, reason, msg, next string) *inspector.Refusal {
	return &inspector.Refusal{Kind: kind, Reason: reason, Msg: clip(inspector.CleanText(msg), maxMessage), Next: next}
}

func refuseStopping() *inspector.Refusal {
	return refuse("UNAVAILABLE", inspector.ReasonAgentStopping, "the node's agent is stopping", "ask again when the node is back")
}

func refuseBudget(why string) *inspector.Refusal {
	return refuse("RESOURCE_EXHAUSTED", inspector.ReasonBudget, why, "wait until the agent is below its budget; the node's agent_budget event ends then")
}

// maxMessage is the most bytes of a refusal's sentence.
const maxMessage = 500

// clip cuts a text to at most n bytes, at the boundary of a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

var (
	reasonWord   = regexp.MustCompile(`^[a-z][a-z0-9_]{1,39}$`)
	refusalKinds = []string{"INVALID_ARGUMENT", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "NOT_FOUND", "UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL"}
)

// tidy bounds and cleans a refusal that a module made.
func tidy(r inspector.Refusal) *inspector.Refusal {
	if !slices.Contains(refusalKinds, r.Kind) {
		r.Kind = "INTERNAL"
	}
	if !reasonWord.MatchString(r.Reason) {
		r.Reason = inspector.ReasonTaskFailed
	}
	r.Arg, _ = inspector.CleanLabel(r.Arg)
	r.Msg, r.Next = clip(inspector.CleanText(r.Msg), maxMessage), clip(inspector.CleanText(r.Next), maxMessage)
	return &r
}

package inspector

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// TaskScope names what a caller must hold to start a task.
type TaskScope string

// The task scopes.
const (
	ScopeRead     TaskScope = "telltale:read"
	ScopeDiagnose TaskScope = "telltale:diagnose"
	ScopeAct      TaskScope = "telltale:act"
	ScopeMaintain TaskScope = "telltale:maintain"
)

// Cost says which limit of a node a task counts against.
type Cost string

// The costs.
const (
	CostQuery Cost = "query" // reads what is there; never makes a ticket
	CostTrace Cost = "trace" // bounded kernel tracing
	CostHeavy Cost = "heavy" // a trace of which a node runs one at a time
)

// Limits of one node. A task beyond them is refused, not queued.
const (
	NodeTraces  = 4  // traces at once, the heavy one among them
	NodeHeavy   = 1  // heavy tasks at once
	NodeQueries = 16 // queries at once
)

// MaxTaskSeconds is the longest duration of any task.
const MaxTaskSeconds = 300

// ArgKind is the form of one task argument.
type ArgKind string

// The argument kinds.
const (
	IntArg  ArgKind = "integer"
	TextArg ArgKind = "string"
	EnumArg ArgKind = "enum"
)

// Arg is one argument of a task kind, with its bounds. The same bounds are
// checked by the server and again by the agent; a value outside is refused,
// never clamped.
type Arg struct {
	Name    string
	Kind    ArgKind
	Help    string
	Min     int64    // IntArg
	Max     int64    // IntArg; TextArg: most bytes
	Default int64    // IntArg: the value when the argument is absent; 0 means absent
	Values  []string // EnumArg
}

// Names of the arguments that every trace has.
const (
	ArgDuration   = "duration_s"
	ArgMaxEvents  = "max_events"
	ArgSampleRate = "sample_rate"
)

// TraceArgs are the arguments that every bounded trace takes. limit is the
// kind's own longest duration in seconds, at most MaxTaskSeconds.
func TraceArgs(limit int64) []Arg {
	return []Arg{
		{Name: ArgDuration, Kind: IntArg, Min: 1, Max: limit, Default: 5, Help: "seconds to look; up to 8 are answered in the call, more gives a ticket"},
		{Name: ArgMaxEvents, Kind: IntArg, Min: 1, Max: 10_000, Default: 200, Help: "most events looked at one by one; counts go on beyond it"},
		{Name: ArgSampleRate, Kind: IntArg, Min: 1, Max: 100, Default: 1, Help: "look at 1 in n events one by one; counts stay complete"},
	}
}

// TaskKind is one entry of the white list of work that a node accepts.
type TaskKind struct {
	Name      string // "trace_network_drops", at most 25 characters
	Component string // set by Registry.Add
	Title     string
	Help      string // for people and models: what it answers, when to use it, what next
	Scope     TaskScope
	Cost      Cost
	Args      []Arg
	Targets   []string // at least one of these arguments must be given; empty: no target is mandatory
	Signals   []string // capability signals of the component that it stands on
	// Counts is what Count of a row counts, in the plural, by the row's label
	// "row"; "" for the others.
	Counts map[string]string
	// Aim says where a target comes from, to who gave none.
	Aim string
}

// Args are checked arguments: every default filled in. An absent optional
// argument has no entry. Integers are int64, everything else is a string.
type Args map[string]any

// Int returns an integer argument, 0 when absent.
func (a Args) Int(name string) int64 {
	n, _ := a[name].(int64)
	return n
}

// Text returns a text or enum argument, "" when absent.
func (a Args) Text(name string) string {
	s, _ := a[name].(string)
	return s
}

// Has reports whether an argument was given or has a default.
func (a Args) Has(name string) bool { _, ok := a[name]; return ok }

// ArgError says which argument is wrong and what its bound is.
type ArgError struct {
	Arg    string // as the caller spelt it
	Reason string // "unknown_argument", "out_of_bounds", "malformed", "no_target"
	Msg    string
}

func (e *ArgError) Error() string { return e.Arg + ": " + e.Msg }

// Check refuses arguments that are unknown, of the wrong form or out of
// bounds, and a missing mandatory target; the error is an *ArgError. raw holds
// decoded JSON: numbers as float64, json.Number or int64; null is absent.
func (k TaskKind) Check(raw map[string]any) (Args, error) {
	for name := range raw {
		if !slices.ContainsFunc(k.Args, func(a Arg) bool { return a.Name == name }) {
			name, _ = CleanLabel(name)
			return nil, &ArgError{name, "unknown_argument", fmt.Sprintf("%s has no such argument; it takes %s", k.Name, k.argNames())}
		}
	}
	out := Args{}
	for _, a := range k.Args {
		v := raw[a.Name]
		if v == nil {
			if a.Kind == IntArg && a.Default != 0 {
				out[a.Name] = a.Default
			}
			continue
		}
		checked, err := a.check(v)
		if err != nil {
			return nil, err
		}
		out[a.Name] = checked
	}
	if len(k.Targets) > 0 && !slices.ContainsFunc(k.Targets, func(t string) bool { return raw[t] != nil }) {
		return nil, &ArgError{k.Targets[0], "no_target", fmt.Sprintf("%s needs a target: give one of %s", k.Name, strings.Join(k.Targets, ", "))}
	}
	return out, nil
}

func (a Arg) check(v any) (any, error) {
	switch a.Kind {
	case IntArg:
		n, ok := whole(v)
		if !ok {
			return nil, &ArgError{a.Name, "malformed", fmt.Sprintf("want a whole number from %d to %d", a.Min, a.Max)}
		}
		if n < a.Min || n > a.Max {
			return nil, &ArgError{a.Name, "out_of_bounds", fmt.Sprintf("%d is not within %d to %d", n, a.Min, a.Max)}
		}
		return n, nil
	case EnumArg:
		s, _ := v.(string)
		if !slices.Contains(a.Values, s) {
			return nil, &ArgError{a.Name, "out_of_bounds", "want one of " + strings.Join(a.Values, ", ")}
		}
		return s, nil
	default:
		s, ok := v.(string)
		if !ok || s == "" || int64(len(s)) > a.Max || !utf8.ValidString(s) || CleanText(s) != s {
			return nil, &ArgError{a.Name, "malformed", fmt.Sprintf("want 1 to %d bytes of plain text", a.Max)}
		}
		return s, nil
	}
}

func whole(v any) (int64, bool) {
	switch n := v.(type) {
	case int64:
		return n, true
	case int:
		return int64(n), true
	case float64:
		if n != math.Trunc(n) || math.Abs(n) > 1<<53 {
			return 0, false
		}
		return int64(n), true
	case json.Number:
		i, err := n.Int64()
		return i, err == nil
	}
	return 0, false
}

func (k TaskKind) argNames() string {
	names := make([]string, len(k.Args))
	for i, a := range k.Args {
		names[i] = a.Name
	}
	return strings.Join(names, ", ")
}

// TaskRun does one task on a node. ctx ends when the task is cancelled, and
// has a deadline a little beyond its duration; a task that is cancelled
// returns what it has with ctx's error. partial may be called now and then
// with what is known so far; it does not block and does not keep its argument.
// An error that a caller can act on is a *Refusal. Safe for concurrent use.
type TaskRun func(ctx context.Context, args Args, partial func(*TaskResult)) (*TaskResult, error)

// Refusal is why a node did not do a task, or did not end it. Kind is a word
// of the product's error kinds.
type Refusal struct {
	Kind   string // "INVALID_ARGUMENT", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "NOT_FOUND", "UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL"
	Reason string // enumerated word in snake_case, see the constants
	Arg    string // the argument at fault, if one is
	Msg    string // a safe sentence
	Next   string // what the caller should do now
}

func (r *Refusal) Error() string { return r.Reason + ": " + r.Msg }

// Reasons of a refusal by a node.
const (
	ReasonPidGone         = "pid_gone"          // no such process, or it ended
	ReasonUnknownDevice   = "unknown_device"    // no such block device
	ReasonUnknownIface    = "unknown_interface" // no such network interface
	ReasonUnknownCgroup   = "unknown_cgroup"    // no such cgroup or container
	ReasonFeatureOff      = "feature_off"       // the kernel, the privileges or a switch keep it off
	ReasonUnknownKind     = "unknown_task"      // not in this agent's white list
	ReasonNotAllowed      = "not_allowed"       // the node's own configuration forbids it
	ReasonScope           = "insufficient_scope"
	ReasonTooManyTraces   = "too_many_traces"
	ReasonTooManyHeavy    = "too_many_heavy"
	ReasonTooManyQueries  = "too_many_queries"
	ReasonLate            = "past_deadline" // the request came after its start deadline
	ReasonDuplicateTask   = "duplicate_task"
	ReasonBudget          = "agent_budget" // the agent is over its own budget
	ReasonMemory          = "memory_budget"
	ReasonAgentRestarted  = "agent_restarted"
	ReasonAgentStopping   = "agent_stopping"
	ReasonTaskPanicked    = "task_panicked"
	ReasonTaskFailed      = "task_failed"
	ReasonResultTooLarge  = "result_too_large"
	ReasonInvalidArgument = "invalid_argument"
)

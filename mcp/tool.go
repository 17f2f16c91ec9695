package mcp

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// Tool is one row of the table of tools: everything the adapter, its guard and
// its tests know of it.
type Tool struct {
	Name        string // at most 25 characters, verb_noun
	Title       string
	Description string // for a model: what it answers, when to use it, what next
	Set         string
	Scope       tenants.Scopes
	Writes      bool // changes something; hidden by ?readonly=1
	Destructive bool // what it changes cannot be had back; only of a tool that writes
	Repeatable  bool // a second call changes nothing more; only of a tool that writes
	Gated       bool // counts against the calls that one principal may have waiting
	Args        []Arg
	Secret      []string      // arguments whose values never reach a log line
	Deadline    time.Duration // zero: shortTask
	Output      any           // zero value of the structured answer, for ?schemas=1
	Run         func(context.Context, Call) (Answer, error)
}

// shortTask is the longest that a call without a ticket may take.
const shortTask = 8 * time.Second

// Call is one checked call of a tool.
type Call struct {
	Scope tenants.Scope
	Args  values
	Now   time.Time
	// Modern: the request's end is told to the tool, so that an abandoned call
	// can cancel its work; a call of the initialize era runs out.
	Modern   bool
	progress func(done, total float64, message string) // nil: nobody wants to know
	rows     int                                       // rows that the byte budget leaves; 0 while unknown
}

// limit reads the row limit of a list: clamped to what one answer may hold,
// with a note when the caller asked for more, and cut further when an answer
// of that many rows was over its byte budget.
func (c Call) limit(otherwise int) (rows int, note string) {
	asked := c.Args.int("limit", otherwise)
	rows, clamped := tenants.ClampRows(asked)
	if clamped {
		note = "limit was clamped to " + strconv.Itoa(tenants.MaxListRows)
	}
	if c.rows > 0 && c.rows < rows {
		rows = c.rows
	}
	return rows, note
}

// fitted reports whether the guard asks again for a smaller answer.
func (c Call) fitted() bool { return c.rows > 0 }

// Answer is what a tool says: the structured body and the same as text.
type Answer struct {
	Body any
	Text string
	Rows int // rows that a smaller limit would leave out; 0 when it has none
	// Fit says the same with fewer rows, from what is already known; nil: the
	// tool may be run again.
	Fit     func(rows int) Answer
	Task    *tasks.Task // the task that the answer is about, if it is about one
	Started bool        // this call started Task and it goes on
}

// hints are what a client may tell its user before a call.
func (t Tool) hints() *sdk.ToolAnnotations {
	no := false
	a := &sdk.ToolAnnotations{ReadOnlyHint: !t.Writes, IdempotentHint: !t.Writes || t.Repeatable, OpenWorldHint: &no}
	if t.Writes { // the hint has no meaning for a tool that only reads
		destructive := t.Destructive
		a.DestructiveHint = &destructive
	}
	return a
}

func (t Tool) word(schemas bool) *sdk.Tool {
	w := &sdk.Tool{Name: t.Name, Title: t.Title, Description: t.Description, InputSchema: schema(t.Args), Annotations: t.hints()}
	if schemas && t.Output != nil {
		w.OutputSchema = json.RawMessage(outputSchema(t.Output))
	}
	return w
}

// view is how one URL narrows what its caller sees. It never widens.
type view struct {
	sets     []string // empty: every set
	exclude  []string
	readonly bool
	schemas  bool
}

// readView reads ?toolsets=, ?exclude=, ?readonly= and ?schemas=. A name that
// is not in the table is refused: a typing error must not widen a list.
func readView(q url.Values, tools []Tool) (view, error) {
	var v view
	var err error
	sets, names := []string{}, []string{}
	for _, t := range tools {
		names = append(names, t.Name)
		if !slices.Contains(sets, t.Set) {
			sets = append(sets, t.Set)
		}
	}
	if v.sets, err = words(q, "toolsets", sets); err != nil {
		return v, err
	}
	if v.exclude, err = words(q, "exclude", append(names, sets...)); err != nil {
		return v, err
	}
	if v.readonly, err = onOff(q, "readonly"); err != nil {
		return v, err
	}
	v.schemas, err = onOff(q, "schemas")
	return v, err
}

func words(q url.Values, key string, known []string) ([]string, error) {
	var out []string
	for _, list := range q[key] {
		for w := range strings.SplitSeq(list, ",") {
			if w = strings.TrimSpace(w); w == "" {
				continue
			}
			if !slices.Contains(known, w) {
				return nil, fault.Bad(key, "the URL's %s names the unknown %q", key, clip(w, 40)).Do("known names: " + strings.Join(known, ", "))
			}
			out = append(out, w)
		}
	}
	return out, nil
}

func onOff(q url.Values, key string) (bool, error) {
	switch q.Get(key) {
	case "", "0", "false":
		return false, nil
	case "1", "true":
		return true, nil
	}
	return false, fault.Bad(key, "the URL's %s is neither 1 nor 0", key).Do("send " + key + "=1 or leave it out")
}

// shows reports whether the URL leaves the tool in, whoever calls.
func (v view) shows(t Tool) bool {
	switch {
	case slices.Contains(v.exclude, t.Name), slices.Contains(v.exclude, t.Set), v.readonly && t.Writes:
		return false
	case len(v.sets) > 0:
		return slices.Contains(v.sets, t.Set)
	}
	return true
}

// Next is a step that a finding suggests.
type Next struct {
	Tool      string         `json:"tool"`
	Arguments map[string]any `json:"arguments"`
	Why       string         `json:"why"`
}

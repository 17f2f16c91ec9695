package mcp

import (
	"context"
	"encoding/json"
	"maps"
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
	Component   string // of the registry, whose nodes alone can serve it; empty: none is needed
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

// deadline is the longest that a call may take.
func (t *Tool) deadline() time.Duration {
	if t.Deadline == 0 {
		return shortTask
	}
	return t.Deadline
}

// Call is one checked call of a tool.
type Call struct {
	Scope tenants.Scope
	Args  values
	Now   time.Time
	// Modern: the request's end is told to the tool, so that an abandoned call
	// can cancel its work; a call of the initialize era runs out.
	Modern   bool
	progress func(done, total float64, message string) // nil: nobody wants to know
	tools    func() []Tool                             // what the caller may call
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
	Raw  json.RawMessage // Body as it is to travel, if it is written and clean already
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

// viewParams are what a URL may say of the view.
var viewParams = []string{"toolsets", "exclude", "readonly", "schemas"}

// ignoredParams may stand in a URL and mean nothing: a token in a query string
// is never read, and no refusal may tell whether it is a good one.
var ignoredParams = []string{"access_token", "token"}

// readView reads ?toolsets=, ?exclude=, ?readonly= and ?schemas=. A parameter
// or a name that is not known is refused: a typing error must not widen a list.
func readView(query string, names []string) (view, error) {
	var v view
	if query == "" {
		return v, nil
	}
	q, err := url.ParseQuery(query)
	if err != nil {
		return v, fault.Bad("query", "the URL's query cannot be read").Do("send for example toolsets=observe&readonly=1")
	}
	for _, key := range slices.Sorted(maps.Keys(q)) {
		if !slices.Contains(viewParams, key) && !slices.Contains(ignoredParams, key) {
			return v, fault.Bad("query", "the URL has the unknown parameter %q", clip(key, 40)).Do("known parameters: " + strings.Join(viewParams, ", "))
		}
	}
	if v.sets, err = words(q, "toolsets", ToolSets()); err != nil {
		return v, err
	}
	if v.exclude, err = words(q, "exclude", names); err != nil {
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

// onOff reads a switch; of several, one that is on wins.
func onOff(q url.Values, key string) (on bool, err error) {
	for _, v := range q[key] {
		switch v {
		case "", "0", "false":
		case "1", "true":
			on = true
		default:
			return false, fault.Bad(key, "the URL's %s is neither 1 nor 0", key).Do("send " + key + "=1 or leave it out")
		}
	}
	return on, nil
}

// shows reports whether the URL leaves the tool in, whoever calls.
func (v *view) shows(t *Tool) bool {
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

package mcp

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Arg is one argument of a tool. The same words make the schema that a client
// sees and check what it sends, so the two cannot disagree.
type Arg struct {
	Name     string
	Kind     argKind
	Words    string // what it means, for a model
	Enum     []string
	Default  any // shown in the schema; the tool applies it
	Min, Max int // bounds of an integer; Max 0 = none in the schema
	Required bool
	Raw      bool // decoded as it is: the tool checks it by the words of its task
}

type argKind string

const (
	argString  argKind = "string"
	argInt     argKind = "integer"
	argBool    argKind = "boolean"
	argStrings argKind = "array"  // of strings
	argLabels  argKind = "object" // string to string
)

// Bounds of every argument, whatever its meaning.
const (
	maxStringArg = 1024
	maxListArg   = 50
	shownEnum    = 8 // words of a list's values in its schema; more are named by a refusal
)

// schema writes the argument list as a portable JSON schema: one flat object,
// no unions, no references, nothing required that has a default.
func schema(args []Arg) json.RawMessage {
	type prop struct {
		Type        argKind        `json:"type"`
		Description string         `json:"description,omitempty"`
		Enum        []string       `json:"enum,omitempty"`
		Items       map[string]any `json:"items,omitempty"`
		Extra       map[string]any `json:"additionalProperties,omitempty"`
		Minimum     *int           `json:"minimum,omitempty"`
		Maximum     *int           `json:"maximum,omitempty"`
		Default     any            `json:"default,omitempty"`
	}
	props := map[string]prop{}
	var required []string
	for _, a := range args {
		p := prop{Type: a.Kind, Description: a.Words, Default: a.Default}
		switch a.Kind {
		case argStrings:
			p.Items = map[string]any{"type": "string"}
			if len(a.Enum) > 0 && len(a.Enum) <= shownEnum {
				p.Items["enum"] = a.Enum
			}
		case argLabels:
			p.Extra = map[string]any{"type": "string"}
		case argInt:
			if a.Min > 1 { // "at least one" says itself
				p.Minimum = &a.Min
			}
			if a.Max > 0 {
				p.Maximum = &a.Max
			}
		default:
			p.Enum = a.Enum
		}
		switch a.Name { // in many tools: the instructions say once what they mean
		case maxBytesName, formatArg.Name:
			p.Minimum, p.Maximum, p.Default = nil, nil, nil
		case nodeArg.Name, limitArg.Name, cursorArg.Name, fromArg.Name, toArg.Name:
			p.Description = ""
		case inspector.ArgSampleRate:
			p.Default = nil // all
		}
		props[a.Name] = p
		if a.Required {
			required = append(required, a.Name)
		}
	}
	out, err := json.Marshal(struct {
		Type       string          `json:"type"`
		Properties map[string]prop `json:"properties"`
		Required   []string        `json:"required,omitempty"`
		Extra      bool            `json:"additionalProperties"`
	}{"object", props, required, false})
	if err != nil {
		panic(err) // the argument tables are constants of this package
	}
	return out
}

// values are the checked arguments of one call.
type values map[string]any

// decodeArgs checks raw against the tool's arguments. The fault names the
// argument, the bound and what to do.
func decodeArgs(tool string, args []Arg, raw json.RawMessage) (values, error) {
	sent := scan{body: raw}
	if len(raw) > 0 && string(raw) != "null" && (raw[0] != '{' || sent.message() != nil) {
		return nil, fault.Bad("arguments", "the arguments must be a JSON object")
	}
	slices.SortFunc(sent.top, func(a, b member) int { return bytes.Compare(a.key, b.key) })
	for _, m := range sent.top {
		if !slices.ContainsFunc(args, func(a Arg) bool { return a.Name == string(m.key) }) {
			return nil, fault.Bad(clip(string(m.key), 64), "%s has no argument of this name", tool).Do(knownArgs(args))
		}
	}
	out := make(values, len(sent.top))
	for _, a := range args {
		v := sent.top.get(a.Name)
		if v == nil || string(v) == "null" {
			if a.Required {
				return nil, fault.Bad(a.Name, "this argument is required%s", a.meaning()).Do("send it")
			}
			continue
		}
		got, err := a.decode(v)
		if err != nil {
			return nil, err
		}
		out[a.Name] = got
	}
	return out, nil
}

func (a Arg) meaning() string {
	if a.Words == "" {
		return ""
	}
	return ": " + a.Words
}

func knownArgs(args []Arg) string {
	if len(args) == 0 {
		return "call it without arguments"
	}
	known := make([]string, len(args))
	for i, a := range args {
		known[i] = a.Name
	}
	return "leave it out; known arguments: " + strings.Join(known, ", ")
}

func (a Arg) decode(raw json.RawMessage) (any, error) {
	if a.Raw {
		var v any
		if json.Unmarshal(raw, &v) != nil {
			return nil, a.bad("is not valid JSON")
		}
		return v, nil
	}
	switch a.Kind {
	case argString:
		var s string
		if json.Unmarshal(raw, &s) != nil {
			return nil, a.bad("must be a string")
		}
		return s, a.checkString(s)
	case argInt:
		return a.decodeInt(raw)
	case argBool:
		var b bool
		if json.Unmarshal(raw, &b) != nil {
			return nil, a.bad("must be true or false")
		}
		return b, nil
	case argStrings:
		var list []string
		if json.Unmarshal(raw, &list) != nil {
			var one string // a lone string is what models often send for a list of one
			if json.Unmarshal(raw, &one) != nil {
				return nil, a.bad("must be a list of strings")
			}
			list = []string{one}
		}
		if len(list) > maxListArg {
			return nil, a.bad("has " + strconv.Itoa(len(list)) + " entries, at most " + strconv.Itoa(maxListArg) + " are allowed")
		}
		for _, s := range list {
			if err := a.checkString(s); err != nil {
				return nil, err
			}
		}
		return list, nil
	default:
		var m map[string]string
		if json.Unmarshal(raw, &m) != nil {
			return nil, a.bad(`must be an object of strings, for example {"role":"db"}`)
		}
		if len(m) > maxListArg {
			return nil, a.bad("has more than " + strconv.Itoa(maxListArg) + " entries")
		}
		return m, nil
	}
}

func (a Arg) decodeInt(raw json.RawMessage) (any, error) {
	var f float64
	if json.Unmarshal(raw, &f) != nil || f != math.Trunc(f) {
		return nil, a.bad("must be a whole number")
	}
	if f < float64(a.Min) {
		return nil, a.bad("must be at least " + strconv.Itoa(a.Min))
	}
	if a.Max > 0 && f > float64(a.Max) {
		return nil, a.bad("must be at most " + strconv.Itoa(a.Max))
	}
	return int(min(f, math.MaxInt32)), nil // larger ones are clamped by their tool anyway
}

func (a Arg) checkString(s string) error {
	if len(s) > maxStringArg {
		return a.bad("has " + strconv.Itoa(len(s)) + " bytes, at most " + strconv.Itoa(maxStringArg) + " are allowed")
	}
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return a.bad("must be plain text")
	}
	if a.Enum != nil && !slices.Contains(a.Enum, s) {
		return a.bad("must be one of " + strings.Join(a.Enum, ", "))
	}
	return nil
}

func (a Arg) bad(what string) error {
	next := "correct it"
	if !a.Required {
		next += " or leave it out"
	}
	return fault.Bad(a.Name, "%s", what).Do(next)
}

func (v values) str(name string) string    { s, _ := v[name].(string); return s }
func (v values) strs(name string) []string { s, _ := v[name].([]string); return s }
func (v values) labels(name string) map[string]string {
	m, _ := v[name].(map[string]string)
	return m
}

func (v values) int(name string, otherwise int) int {
	if n, ok := v[name].(int); ok {
		return n
	}
	return otherwise
}

// when reads one end of a time window: an RFC 3339 time or a duration before
// now such as "15m". Missing and "now" are zero.
func (v values) when(name string, now time.Time) (time.Time, error) {
	s := v.str(name)
	if s == "" || s == "now" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(strings.TrimPrefix(s, "-")); err == nil {
		if d < 0 {
			d = -d
		}
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, fault.Bad(name, "%q is neither an RFC 3339 time nor a duration before now", clip(s, 40)).
			Do(`send for example "2026-03-01T12:00:00Z" or "15m"`)
	}
	return t, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

package rest

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Bounds of a query string.
const (
	maxQueryBytes = 8 << 10
	maxTextBytes  = 512
	maxCursor     = 1024
	maxListed     = 64 // entries of one comma separated parameter
)

// params reads one query string strictly. Each read names a parameter and
// keeps the first mistake; done reports it, or the first parameter that no
// read asked for. It is used by one goroutine.
type params struct {
	values url.Values
	asked  []string
	notes  []string
	err    error
}

// parseParams refuses what cannot be read in one way only: malformed escapes,
// a parameter named twice, an empty value, bytes that are not UTF-8.
func parseParams(raw string) *params {
	p := &params{}
	if len(raw) > maxQueryBytes {
		p.err = fault.Newf(fault.Invalid, "query_too_long", "the query string has %d bytes, at most %d are read", len(raw), maxQueryBytes)
		return p
	}
	v, err := url.ParseQuery(raw)
	if err != nil {
		p.err = fault.New(fault.Invalid, "invalid_argument", "the query string is malformed: check % escapes, and separate parameters with &").Because(err)
		return p
	}
	p.values = v
	for _, k := range sortedKeys(v) {
		switch {
		case !utf8.ValidString(k):
			p.fail(clip(k), "the parameter's name is not valid UTF-8")
		case len(v[k]) > 1:
			p.fail(clip(k), "the parameter is given %d times; give it once", len(v[k]))
		case v[k][0] == "":
			p.fail(clip(k), "the parameter is empty; leave it out instead")
		case !utf8.ValidString(v[k][0]) || strings.ContainsRune(v[k][0], 0):
			p.fail(clip(k), "the value is not text: it must be valid UTF-8 without NUL")
		}
	}
	return p
}

func (p *params) fail(field, format string, args ...any) {
	if p.err == nil {
		p.err = fault.Bad(field, format, args...)
	}
}

func (p *params) raw(name string) string {
	p.asked = append(p.asked, name)
	return p.values.Get(name)
}

// text reads free text of at most maxTextBytes; absent is "".
func (p *params) text(name string) string {
	s := p.raw(name)
	if err := checkText(name, s); s != "" && err != nil && p.err == nil {
		p.err = err
	}
	return s
}

// checkText refuses what is no short text.
func checkText(name, s string) error {
	switch {
	case s == "" || len(s) > maxTextBytes:
		return fault.Bad(name, "the value has %d bytes, want 1 to %d", len(s), maxTextBytes)
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return fault.Bad(name, "the value is not text: it must be valid UTF-8 without NUL")
	}
	return nil
}

// need is text that must be there.
func (p *params) need(name string) string {
	s := p.text(name)
	if s == "" {
		p.fail(name, "the parameter is required")
	}
	return s
}

// needWords is words that must be there.
func (p *params) needWords(name string) []string {
	w := p.words(name)
	if len(w) == 0 {
		p.fail(name, "the parameter is required")
	}
	return w
}

// member refuses a word that is not of the list.
func (p *params) member(name, word string, known []string) {
	if !slices.Contains(known, word) {
		p.fail(name, "%q is not known; want one of %s", clip(word), strings.Join(known, ", "))
	}
}

// cursor reads the opaque cursor of an earlier answer.
func (p *params) cursor() string {
	s := p.raw("cursor")
	if len(s) > maxCursor {
		p.fail("cursor", "not a cursor of this server: pass next_cursor of the former answer unchanged")
	}
	return s
}

// oneOf reads one word of a fixed list.
func (p *params) oneOf(name string, allowed ...string) string {
	s := p.raw(name)
	if s != "" {
		p.member(name, s, allowed)
	}
	return s
}

// limit reads the row limit: at least 1, and clamped with a note above the
// product's maximum however large the number is.
func (p *params) limit() int {
	s := p.raw("limit")
	if s == "" {
		return 0
	}
	if strings.Trim(s, "0123456789") != "" {
		p.fail("limit", "want a whole number from 1; more than %d is clamped to %d", tenants.MaxListRows, tenants.MaxListRows)
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil { // digits only: it can only be too large
		n = tenants.MaxListRows + 1
	}
	if n < 1 {
		p.fail("limit", "want a whole number from 1; more than %d is clamped to %d", tenants.MaxListRows, tenants.MaxListRows)
		return 0
	}
	rows, clamped := tenants.ClampRows(n)
	if clamped {
		p.notes = append(p.notes, "limit was clamped to "+strconv.Itoa(rows))
	}
	return rows
}

// whole reads a whole number within bounds; absent is 0.
func (p *params) whole(name string, lowest, highest int) int {
	s := p.raw(name)
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < lowest || n > highest {
		p.fail(name, "want a whole number from %d to %d", lowest, highest)
		return 0
	}
	return n
}

// words reads a comma separated list; absent is nil.
func (p *params) words(name string) []string {
	s := p.raw(name)
	if s == "" {
		return nil
	}
	out := strings.Split(s, ",")
	if len(out) > maxListed {
		p.fail(name, "%d entries, at most %d are read", len(out), maxListed)
		return nil
	}
	for i, w := range out {
		switch {
		case w == "":
			p.fail(name, "an entry of the list is empty")
		case len(w) > inspector.MaxLabelBytes:
			p.fail(name, "entry %d has %d bytes, at most %d are read", i+1, len(w), inspector.MaxLabelBytes)
		case slices.Contains(out[:i], w):
			p.fail(name, "%q is listed twice", clip(w))
		}
	}
	return out
}

// labels reads key=value pairs, comma separated; absent is nil.
func (p *params) labels(name string) map[string]string {
	var out map[string]string
	for _, w := range p.words(name) {
		k, v, ok := strings.Cut(w, "=")
		if !ok || k == "" {
			p.fail(name, "want key=value pairs separated by commas, for example role=web,zone=a")
			return nil
		}
		if _, twice := out[k]; twice {
			p.fail(name, "the key %q is given twice", clip(k))
			return nil
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = v
	}
	return out
}

// maxBefore is how far before now a duration may reach.
const maxBefore = 366 * 24 * time.Hour

// moment reads a time: RFC 3339, or a duration before now such as "15m", which
// may have a minus sign. Absent is the zero time.
func (p *params) moment(name string, now time.Time) time.Time {
	s := p.raw(name)
	if s == "" {
		return time.Time{}
	}
	if d, err := time.ParseDuration(strings.TrimPrefix(s, "-")); err == nil {
		if d < 0 || d > maxBefore {
			p.fail(name, "want an RFC 3339 time, or a duration before now of at most a year such as 15m")
			return time.Time{}
		}
		return now.Add(-d)
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Year() < 1970 || t.Year() > 9999 {
		p.fail(name, "want an RFC 3339 time such as 2026-01-02T15:04:05Z, or a duration before now such as 15m")
		return time.Time{}
	}
	return t.UTC()
}

// done returns the first mistake, or a refusal of the first parameter that
// nobody asked for; the refusal lists the ones that exist.
func (p *params) done() error {
	if p.err != nil {
		return p.err
	}
	for _, k := range sortedKeys(p.values) {
		if !slices.Contains(p.asked, k) {
			known := "this address takes none"
			if len(p.asked) > 0 {
				slices.Sort(p.asked)
				known = "known are " + strings.Join(p.asked, ", ")
			}
			f := fault.Bad(clip(k), "unknown parameter; %s", known)
			f.Reason = "unknown_parameter"
			return f
		}
	}
	return nil
}

func sortedKeys(v url.Values) []string {
	keys := make([]string, 0, len(v))
	for k := range v {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// clip cuts echoed text of the caller to a length that fits a message.
func clip(s string) string {
	s, _ = inspector.CleanLabel(s)
	if len(s) <= 40 {
		return s
	}
	n := 40
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

package mcp

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// encoder writes the structured form of answers in one pass, as encoding/json
// would, and besides: lists and maps are never null, numbers keep six
// significant digits (more are noise that costs tokens), and text from nodes is
// safe to show. How a type is written it finds out once. The zero value is
// ready; safe for concurrent use.
type encoder struct{ plans sync.Map } // of planKey to *learned

// planKey names a plan. What stands in maps and interfaces is not tidied.
type planKey struct {
	t    reflect.Type
	tidy bool
}

// plan writes a value of one type.
type plan func(w *writing, v reflect.Value)

// learned is what is known of a type.
type learned struct {
	write plan
	size  atomic.Int64 // of the last answer
}

// writing is an answer under way.
type writing struct {
	b   []byte
	err error // the first
}

func (w *writing) fail(err error) { w.err = cmp.Or(w.err, err) }

// encode writes body. It keeps nothing of it and never writes to it.
func (e *encoder) encode(body any) (json.RawMessage, error) {
	if body == nil {
		return json.RawMessage("null"), nil
	}
	l := e.learn(reflect.TypeOf(body), true)
	w := writing{b: make([]byte, 0, min(l.size.Load(), maxKept)+256)}
	v := reflect.New(reflect.TypeOf(body)).Elem() // what has an address is read without a copy
	v.Set(reflect.ValueOf(body))
	l.write(&w, v)
	if w.err != nil {
		return nil, fmt.Errorf("encode an answer: %w", w.err)
	}
	l.size.Store(int64(len(w.b)))
	return w.b, nil
}

func (e *encoder) learn(t reflect.Type, tidy bool) *learned {
	if l, ok := e.plans.Load(planKey{t, tidy}); ok {
		return l.(*learned)
	}
	l := &learned{write: e.make(t, tidy, 0)}
	e.plans.Store(planKey{t, tidy}, l)
	return l
}

const maxTypeDepth = 12 // of the types of answers

func (e *encoder) make(t reflect.Type, tidy bool, depth int) plan {
	inner := func(t reflect.Type, tidy bool) plan { return e.make(t, tidy, depth+1) }
	switch k := t.Kind(); {
	case depth > maxTypeDepth:
	case t == reflect.TypeFor[time.Time]():
		return writeTime
	case k == reflect.String:
		return func(w *writing, v reflect.Value) { w.b = appendClean(w.b, v.String()) }
	case k == reflect.Bool:
		return func(w *writing, v reflect.Value) { w.b = strconv.AppendBool(w.b, v.Bool()) }
	case k >= reflect.Int && k <= reflect.Int64:
		return func(w *writing, v reflect.Value) { w.b = strconv.AppendInt(w.b, v.Int(), 10) }
	case k >= reflect.Uint && k <= reflect.Uint64:
		return func(w *writing, v reflect.Value) { w.b = strconv.AppendUint(w.b, v.Uint(), 10) }
	case k == reflect.Float64 && tidy:
		return func(w *writing, v reflect.Value) { w.float(round6(v.Float())) }
	case k == reflect.Float64:
		return func(w *writing, v reflect.Value) { w.float(v.Float()) }
	case k == reflect.Interface:
		return orNull(func(w *writing, v reflect.Value) { e.learn(v.Elem().Type(), false).write(w, v.Elem()) })
	case k == reflect.Pointer:
		to := inner(t.Elem(), tidy)
		return orNull(func(w *writing, v reflect.Value) { to(w, v.Elem()) })
	case k == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		return writeList(inner(t.Elem(), tidy), tidy)
	case k == reflect.Map && t.Key().Kind() == reflect.String:
		return writeMap(t, inner(t.Elem(), false), tidy)
	case k == reflect.Struct:
		return writeStruct(jsonFields(t), func(t reflect.Type) plan { return inner(t, tidy) })
	}
	return func(w *writing, _ reflect.Value) { w.fail(fmt.Errorf("answers hold no %s", t)) }
}

func orNull(p plan) plan {
	return func(w *writing, v reflect.Value) {
		if v.IsNil() {
			w.b = append(w.b, "null"...)
			return
		}
		p(w, v)
	}
}

func writeTime(w *writing, v reflect.Value) {
	var at time.Time
	if v.CanAddr() {
		at = *v.Addr().Interface().(*time.Time)
	} else {
		at = v.Interface().(time.Time)
	}
	out, err := at.AppendText(append(w.b, '"'))
	if err != nil {
		w.fail(err)
		return
	}
	w.b = append(out, '"')
}

func writeList(each plan, tidy bool) plan {
	write := func(w *writing, v reflect.Value) {
		w.b = append(w.b, '[')
		for i := range v.Len() {
			if i > 0 {
				w.b = append(w.b, ',')
			}
			each(w, v.Index(i))
		}
		w.b = append(w.b, ']')
	}
	if tidy {
		return write
	}
	return orNull(write)
}

func writeMap(t reflect.Type, each plan, tidy bool) plan {
	write := func(w *writing, v reflect.Value) {
		w.b = append(w.b, '{')
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for i, k := range keys {
			if i > 0 {
				w.b = append(w.b, ',')
			}
			w.b = append(appendClean(w.b, k.String()), ':')
			each(w, v.MapIndex(k))
		}
		w.b = append(w.b, '}')
	}
	if t == reflect.TypeFor[map[string]string]() { // of most of them: without a copy of each key
		write = func(w *writing, v reflect.Value) {
			m := v.Interface().(map[string]string)
			w.b = append(w.b, '{')
			for i, k := range sortedKeys(m) {
				if i > 0 {
					w.b = append(w.b, ',')
				}
				w.b = appendClean(append(appendClean(w.b, k), ':'), m[k])
			}
			w.b = append(w.b, '}')
		}
	}
	if tidy {
		return write
	}
	return orNull(write)
}

func writeStruct(fields []field, inner func(reflect.Type) plan) plan {
	plans, names := make([]plan, len(fields)), make([]string, len(fields))
	for i, f := range fields {
		plans[i], names[i] = inner(f.kind), strconv.Quote(f.name)+":"
	}
	return func(w *writing, v reflect.Value) {
		sep := byte('{')
		for i, f := range fields {
			x := v.FieldByIndex(f.index)
			if f.optional && empty(x) {
				continue
			}
			w.b = append(append(w.b, sep), names[i]...)
			plans[i](w, x)
			sep = ','
		}
		if sep == '{' {
			w.b = append(w.b, '{')
		}
		w.b = append(w.b, '}')
	}
}

func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

// float writes a number in the form of encoding/json.
func (w *writing) float(f float64) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		w.fail(fmt.Errorf("%v is no number of JSON", f))
		return
	}
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		format = 'e'
	}
	w.b = strconv.AppendFloat(w.b, f, format, -1, 64)
	if n := len(w.b); format == 'e' && n >= 4 && w.b[n-4] == 'e' && w.b[n-3] == '-' && w.b[n-2] == '0' { // e-09 to e-9
		w.b = append(w.b[:n-2], w.b[n-1])
	}
}

// round6 keeps six significant digits of a fraction; a number of a million or
// more becomes whole.
func round6(v float64) float64 {
	if v == math.Trunc(v) || math.IsNaN(v) || math.Abs(v) >= 1e6 {
		return math.Round(v)
	}
	scale := math.Pow(10, 6-math.Ceil(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// plainLow and plainHigh are the bits of the ASCII characters that stand in
// JSON as they are: all that is printable but " & < > and \.
const (
	plainLow  = 1<<64 - 1<<32 - 1<<'"' - 1<<'&' - 1<<'<' - 1<<'>'
	plainHigh = 1<<63 - 1 - 1<<('\\'-64)
)

func plainByte(c byte) bool {
	return c < 64 && uint64(plainLow)>>c&1 != 0 || c >= 64 && c < 128 && uint64(plainHigh)>>(c-64)&1 != 0
}

// plainBytes says the same of eight bytes at once, of most of them.
func plainBytes(s string) bool {
	const ones, high = 0x01010101_01010101, 0x80808080_80808080
	x := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
	quote, angle, back := (x|4*ones)^'&'*ones, (x|2*ones)^'>'*ones, x^'\\'*ones // " and & differ in one bit, so do < and >
	return (x|(x+ones)|(x-' '*ones)|(quote-ones)&^quote|(angle-ones)&^angle|(back-ones)&^back)&high == 0
}

// appendJSON writes a string as encoding/json does.
func appendJSON(b []byte, s string) []byte { return appendString(b, s, false) }

// appendClean writes a string that is safe to show: control characters and
// hidden ones become the text of their escape.
func appendClean(b []byte, s string) []byte { return appendString(b, s, true) }

func appendString(b []byte, s string, clean bool) []byte {
	b = append(b, '"')
	done := 0
	for i := 0; ; {
		for i+8 <= len(s) && plainBytes(s[i:i+8]) {
			i += 8
		}
		for i < len(s) && plainByte(s[i]) {
			i++
		}
		if i == len(s) {
			return append(append(b, s[done:]...), '"')
		}
		c := s[i]
		r, n := utf8.DecodeRuneInString(s[i:])
		short := strings.IndexByte("\"\\\b\f\n\r\t", c)
		switch {
		case r == utf8.RuneError && n == 1:
			b = append(append(b, s[done:i]...), `\ufffd`...)
		case short >= 0 && (short < 2 || !clean):
			b = append(append(b, s[done:i]...), '\\', `"\bfnrt`[short])
		case clean && inspector.Hidden(r):
			b = fmt.Appendf(append(b, s[done:i]...), `\\u%04x`, r)
		case c < 0x7f || r == '\u2028' || r == '\u2029':
			b = fmt.Appendf(append(b, s[done:i]...), `\u%04x`, r)
		default:
			i += n
			continue
		}
		i += n
		done = i
	}
}

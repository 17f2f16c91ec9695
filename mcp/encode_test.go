package mcp

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// An encoder writes what the slow way writes, of the answers of all tools,
// whatever they hold.
func TestEncodeEqualsTheSlowWay(t *testing.T) {
	var e encoder
	var c Config
	withBackend(newBackend())(&c)
	bodies := []any{nil}
	for _, r := range plainAnswers() {
		bodies = append(bodies, r.body)
	}
	r := rand.New(rand.NewPCG(1, 2))
	zeros := []any{tokensAnswer{}, auditAnswer{}, usageAnswer{}}
	for _, tool := range toolTable(c.Services) {
		if tool.Output != nil {
			zeros = append(zeros, tool.Output)
		}
	}
	for _, zero := range zeros {
		for range 60 {
			v := reflect.New(reflect.TypeOf(zero)).Elem()
			filled(r, v)
			bodies = append(bodies, v.Interface())
		}
	}
	for _, body := range bodies {
		want, err := slowEncode(body)
		got, gotErr := e.encode(body)
		if string(got) != string(want) || (err == nil) != (gotErr == nil) {
			t.Fatalf("%T: %v, want %v\n%s\n%s", body, gotErr, err, got, want)
		}
	}
	if _, err := e.encode(struct{ C chan int }{}); err == nil {
		t.Error("a channel was written")
	}
}

func FuzzStrings(f *testing.F) {
	for _, s := range hostile {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want, err := json.Marshal(s)
		if got := appendJSON(nil, s); err != nil || string(got) != string(want) {
			t.Errorf("got %s, want %s %v", got, want, err)
		}
		if got := appendClean(nil, s); string(got) != string(cleanJSON(want)) {
			t.Errorf("got %s, want %s", got, cleanJSON(want))
		}
	})
}

// slowEncode says in many steps what an encoder writes in one.
func slowEncode(body any) (json.RawMessage, error) {
	raw, err := json.Marshal(tidy(body))
	if err != nil {
		return nil, fmt.Errorf("encode an answer: %w", err)
	}
	return cleanJSON(raw), nil
}

// tidy returns v with its nil lists and maps made empty, except those that are
// left out when empty, and with its fractions rounded. Pointers to numbers are
// replaced, never written through: services may share what they point to.
func tidy(v any) any {
	if v == nil {
		return v
	}
	c := reflect.New(reflect.TypeOf(v)).Elem()
	c.Set(reflect.ValueOf(v))
	tidyValue(c, false)
	return c.Interface()
}

func tidyValue(v reflect.Value, omit bool) {
	switch v.Kind() {
	case reflect.Float64:
		v.SetFloat(round6(v.Float()))
	case reflect.Pointer:
		if !v.IsNil() {
			c := reflect.New(v.Type().Elem())
			c.Elem().Set(v.Elem())
			tidyValue(c.Elem(), false)
			v.Set(c)
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() || v.IsNil() && omit {
			return
		}
		c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(c, v)
		for i := range c.Len() {
			tidyValue(c.Index(i), false)
		}
		v.Set(c)
	case reflect.Map:
		if v.IsNil() && !omit {
			v.Set(reflect.MakeMap(v.Type()))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.IsExported() {
				tidyValue(v.Field(i), strings.Contains(f.Tag.Get("json"), ",omit"))
			}
		}
	}
}

// cleanJSON makes the strings of encoded JSON safe to show: control characters
// (which the encoder escaped) and hidden ones become the text of their escape.
func cleanJSON(in []byte) []byte {
	out := make([]byte, 0, len(in)+16)
	for i := 0; i < len(in); {
		c := in[i]
		if c == '\\' && i+1 < len(in) {
			switch e := in[i+1]; e {
			case 'n', 'r', 't', 'b', 'f':
				code := map[byte]string{'n': "000a", 'r': "000d", 't': "0009", 'b': "0008", 'f': "000c"}[e]
				out = append(append(out, `\\u`...), code...)
				i += 2
			case 'u':
				end := min(i+6, len(in))
				if v, err := strconv.ParseUint(string(in[i+2:end]), 16, 32); err == nil && inspector.Hidden(rune(v)) {
					out = append(out, '\\')
				}
				out = append(out, in[i:end]...)
				i = end
			default:
				out = append(out, c, e)
				i += 2
			}
			continue
		}
		r, n := utf8.DecodeRune(in[i:])
		if c >= 0x7f && inspector.Hidden(r) {
			out = fmt.Appendf(out, `\\u%04x`, r)
		} else {
			out = append(out, in[i:i+n]...)
		}
		i += n
	}
	return out
}

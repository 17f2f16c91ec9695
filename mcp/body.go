package mcp

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"
)

// encode writes the structured form of an answer: lists and maps are never
// null, numbers keep six significant digits (more are noise that costs
// tokens), and text from nodes is safe to show.
func encode(body any) (json.RawMessage, error) {
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

// round6 keeps six significant digits of a fraction; a number of a million or
// more becomes whole.
func round6(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) || math.Abs(v) >= 1e6 {
		return math.Round(v)
	}
	scale := math.Pow(10, 6-math.Ceil(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// outputSchema writes the shape of a structured answer as a portable schema:
// no unions, no references. A field without omitempty is required. A value that
// may be null has no type: clients disagree about how to write a union.
func outputSchema(zero any) []byte {
	out, err := json.Marshal(shape(reflect.TypeOf(zero), 0))
	if err != nil {
		panic(err) // answers are types of this package
	}
	return out
}

func shape(t reflect.Type, depth int) map[string]any {
	if t.Kind() == reflect.Pointer {
		words := "as told, or null when not known"
		if kind, ok := shape(t.Elem(), depth)["type"].(string); ok {
			words = kind + ", or null when not known"
		}
		return map[string]any{"description": words}
	}
	if depth > 12 || t == reflect.TypeFor[json.RawMessage]() {
		return map[string]any{}
	}
	if t == reflect.TypeFor[time.Time]() {
		return map[string]any{"type": "string", "format": "date-time"}
	}
	if t.Implements(reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()) {
		return map[string]any{"type": "string"}
	}
	switch t.Kind() {
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return map[string]any{"type": "integer"}
	case reflect.Slice, reflect.Array:
		return map[string]any{"type": "array", "items": shape(t.Elem(), depth+1)}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": shape(t.Elem(), depth+1)}
	case reflect.Struct:
		props := map[string]any{}
		required := []string{}
		fields(t, depth, props, &required)
		s := map[string]any{"type": "object", "properties": props}
		if len(required) > 0 {
			s["required"] = required
		}
		return s
	}
	return map[string]any{}
}

func fields(t reflect.Type, depth int, props map[string]any, required *[]string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() && !f.Anonymous {
			continue
		}
		if f.Anonymous && name == "" {
			inner := f.Type
			for inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			fields(inner, depth, props, required)
			continue
		}
		if name == "" {
			name = f.Name
		}
		optional := strings.Contains(opts, "omitempty") || strings.Contains(opts, "omitzero")
		kind := f.Type
		if optional && kind.Kind() == reflect.Pointer {
			kind = kind.Elem() // left out instead of null
		}
		props[name] = shape(kind, depth+1)
		if !optional {
			*required = append(*required, name)
		}
	}
}

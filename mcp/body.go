package mcp

import (
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"
)

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
	if depth > maxTypeDepth || t == reflect.TypeFor[json.RawMessage]() {
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
		props, required := map[string]any{}, []string{}
		for _, f := range jsonFields(t) {
			kind := f.kind
			if f.optional && kind.Kind() == reflect.Pointer {
				kind = kind.Elem() // left out instead of null
			}
			props[f.name] = shape(kind, depth+1)
			if !f.optional {
				required = append(required, f.name)
			}
		}
		s := map[string]any{"type": "object", "properties": props}
		if len(required) > 0 {
			s["required"] = required
		}
		return s
	}
	return map[string]any{}
}

// field is one name of a struct in JSON.
type field struct {
	name     string
	kind     reflect.Type
	index    []int
	optional bool // left out when empty
}

// jsonFields lists what encoding/json writes of a struct: the fields of an
// embedded one stand among its own, which hide those of the same name.
func jsonFields(t reflect.Type) []field {
	out := []field{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case f.Anonymous && name == "":
			for _, in := range jsonFields(f.Type) {
				in.index = append([]int{i}, in.index...)
				out = append(out, in)
			}
		default:
			out = append(out, field{cmp.Or(name, f.Name), f.Type, []int{i}, strings.Contains(opts, "omitempty")})
		}
	}
	return slices.DeleteFunc(slices.Clone(out), func(f field) bool {
		return slices.ContainsFunc(out, func(other field) bool { return other.name == f.name && len(other.index) < len(f.index) })
	})
}

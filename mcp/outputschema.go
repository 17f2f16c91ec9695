package mcp

import (
	"encoding/json"
	"reflect"
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

package mcp

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
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

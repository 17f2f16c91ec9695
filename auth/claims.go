package auth

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of what a token or an introspection answer may hold.
const (
	maxHeader = 4 << 10  // bytes of a decoded header
	maxClaims = 64 << 10 // bytes of decoded claims
	maxDepth  = 20       // objects and arrays inside each other
	maxValues = 4096     // values in all
	maxWord   = 255      // bytes of a subject or client id
)

// claims is a decoded JSON object: strings, json.Numbers, bools, nil, []any
// and claims. Names are exact; nothing in it is folded.
type claims map[string]any

// decodeClaims reads one JSON object strictly. It refuses what two readers
// could understand in two ways: names that occur twice, at any depth, bytes
// that are no UTF-8, and anything behind the object. It is bounded.
func decodeClaims(raw []byte, limit int) (claims, error) {
	if len(raw) > limit {
		return nil, fmt.Errorf("more than %d bytes", limit)
	}
	if !utf8.Valid(raw) {
		return nil, errors.New("not UTF-8")
	}
	if !json.Valid(raw) {
		return nil, errors.New("not JSON")
	}
	d := claimsDecoder{dec: json.NewDecoder(bytes.NewReader(raw)), left: maxValues}
	d.dec.UseNumber()
	v, err := d.value(0)
	if err != nil {
		return nil, err
	}
	if _, err := d.dec.Token(); err != io.EOF {
		return nil, errors.New("more than one value")
	}
	c, ok := v.(claims)
	if !ok {
		return nil, errors.New("not an object")
	}
	return c, nil
}

type claimsDecoder struct {
	dec  *json.Decoder
	left int
}

func (d *claimsDecoder) value(depth int) (any, error) {
	if d.left--; d.left < 0 {
		return nil, fmt.Errorf("more than %d values", maxValues)
	}
	tok, err := d.dec.Token()
	if err != nil {
		return nil, err
	}
	open, ok := tok.(json.Delim)
	if !ok {
		return tok, nil
	}
	if depth >= maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	if open == '[' {
		list := []any{}
		for d.dec.More() {
			v, err := d.value(depth + 1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = d.dec.Token()
		return list, err
	}
	object := claims{}
	for d.dec.More() {
		tok, err := d.dec.Token()
		if err != nil {
			return nil, err
		}
		name, ok := tok.(string)
		if !ok {
			return nil, errors.New("a name that is no string")
		}
		if _, twice := object[name]; twice {
			return nil, errors.New("a name occurs twice")
		}
		if object[name], err = d.value(depth + 1); err != nil {
			return nil, err
		}
	}
	_, err = d.dec.Token()
	return object, err
}

// jwtParts is a compact JWS, decoded and not verified.
type jwtParts struct {
	header  claims
	claims  claims
	payload []byte
}

// looksLikeJWT says by form alone whether a bearer is a compact JWS: three
// parts, of which the first is the base64url of an object.
func looksLikeJWT(bearer string) bool {
	if strings.Count(bearer, ".") != 2 {
		return false
	}
	head, _, _ := strings.Cut(bearer, ".")
	raw, err := base64.RawURLEncoding.DecodeString(head)
	return err == nil && bytes.HasPrefix(bytes.TrimLeft(raw, " \t\r\n"), []byte("{"))
}

// splitJWT decodes a compact JWS without believing any of it.
func splitJWT(bearer string) (jwtParts, error) {
	parts := strings.Split(bearer, ".")
	if len(bearer) > maxBearer || len(parts) != 3 {
		return jwtParts{}, errors.New("not a compact JWS")
	}
	strict := base64.RawURLEncoding.Strict()
	head, err := strict.DecodeString(parts[0])
	if err != nil {
		return jwtParts{}, errors.New("header: not base64url")
	}
	var out jwtParts
	if out.header, err = decodeClaims(head, maxHeader); err != nil {
		return jwtParts{}, fmt.Errorf("header: %w", err)
	}
	if out.payload, err = strict.DecodeString(parts[1]); err != nil {
		return jwtParts{}, errors.New("claims: not base64url")
	}
	if out.claims, err = decodeClaims(out.payload, maxClaims); err != nil {
		return jwtParts{}, fmt.Errorf("claims: %w", err)
	}
	if _, err := strict.DecodeString(parts[2]); err != nil { // most likely cut
		return jwtParts{}, errors.New("signature: not base64url")
	}
	return out, nil
}

// text is a claim that must be a string; empty when it is missing or no string.
func (c claims) text(name string) string {
	s, _ := c[name].(string)
	return s
}

// has reports whether a claim is there, whatever it holds.
func (c claims) has(name string) bool { _, ok := c[name]; return ok }

// at finds a claim by its exact name, else by the path that its dots describe.
func (c claims) at(path string) any {
	if v, ok := c[path]; ok {
		return v
	}
	head, rest, ok := strings.Cut(path, ".")
	if !ok {
		return nil
	}
	inner, ok := c[head].(claims)
	if !ok {
		return nil
	}
	return inner.at(rest)
}

// words are the values of a claim as strings: of the claim itself, or of every
// element of an array. Objects and null are no words.
func words(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case json.Number:
		return []string{v.String()}
	case bool:
		return []string{fmt.Sprint(v)}
	case []any:
		var out []string
		for _, e := range v {
			if _, nested := e.([]any); !nested {
				out = append(out, words(e)...)
			}
		}
		return out
	}
	return nil
}

// strictWords are the values of a claim that must be a string or an array of
// strings, such as aud. ok is false for any other form.
func strictWords(v any) (out []string, ok bool) {
	switch v := v.(type) {
	case string:
		return []string{v}, true
	case []any:
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				return nil, false
			}
			out = append(out, s)
		}
		return out, true
	}
	return nil, false
}

// date is a NumericDate (RFC 7519). ok is false for one of another form or far
// outside of what a clock shows.
func (c claims) date(name string) (t time.Time, ok bool) {
	n, isNumber := c[name].(json.Number)
	if !isNumber {
		return time.Time{}, false
	}
	f, err := n.Float64()
	if err != nil || math.IsNaN(f) || f < 0 || f > 253402300799 {
		return time.Time{}, false
	}
	whole, part := math.Modf(f)
	return time.Unix(int64(whole), int64(part*1e9)), true
}

// plain reports whether a word is fit to be part of an identity: not empty,
// bounded, and of visible characters.
func plain(s string) bool {
	return s != "" && len(s) <= maxWord && !strings.ContainsFunc(s, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) })
}

// clean makes a foreign text fit for a log line or a page: no control and no
// invisible characters, at most max bytes.
func clean(s string, max int) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s[:min(len(s), 4*max)])
	s = strings.TrimSpace(s)
	if len(s) <= max {
		return s
	}
	cut := max - len("…")
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

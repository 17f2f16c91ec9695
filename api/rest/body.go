package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// maxDepth is how deep the JSON of a request may nest.
const maxDepth = 16

// decode reads the request's JSON object into dst, a pointer to a struct,
// and refuses everything a lenient reader would guess at: another media type,
// unknown or differently spelt members, a member given twice at any depth,
// data after the object, bytes that are not UTF-8, a body that is too large
// or too slow.
func (s *Server) decode(w http.ResponseWriter, r *http.Request, dst any) error {
	mt, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || mt != "application/json" {
		return fault.New(fault.Invalid, "media_type", "the body must be application/json").Do("send Content-Type: application/json")
	}
	// A writer without deadlines (in tests) has no connection to be slow on.
	// net/http lifts the deadline at the end of the body.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.cfg.BodyTimeout))
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return bodyFault(err)
	}
	if err := decodeStrict(body, dst); err != nil {
		return err
	}
	callOf(r.Context()).sent = sentOf(dst)
	return nil
}

func bodyFault(err error) error {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return errTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fault.New(fault.Deadline, "body_timeout", "the body did not arrive in time").Because(err)
	}
	return fault.New(fault.Invalid, "body_unreadable", "the body ended early").Because(err)
}

var errTooLarge = fault.Newf(fault.Exhausted, "body_too_large", "the body has more than %d bytes", tenants.MaxRequestBytes).
	Do("send a smaller body")

func badBody(field, format string, args ...any) *fault.Error {
	f := fault.Bad(field, format, args...)
	f.Reason = "invalid_body"
	return f
}

func decodeStrict(body []byte, dst any) error {
	if !utf8.Valid(body) {
		return badBody("", "the body is not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	t, err := dec.Token()
	if err != nil || t != json.Delim('{') {
		return badBody("", "the body must be one JSON object")
	}
	if err := scanObject(dec, members(dst), 1); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return badBody("", "data follows the JSON object")
	}
	if err := json.Unmarshal(body, dst); err != nil {
		var known *fault.Error // of an object within, read as strictly
		if errors.As(err, &known) {
			return known
		}
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return badBody(wrong.Field, "want %s, not %s", jsonType(wrong.Type), wrong.Value)
		}
		return badBody("", "the body is not the JSON that is expected here").Because(err)
	}
	return nil
}

// scanObject walks an object whose opening brace has been read. allowed nil
// means any member.
func scanObject(dec *json.Decoder, allowed []string, depth int) error {
	if depth > maxDepth {
		return badBody("", "the JSON nests deeper than %d levels", maxDepth)
	}
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return malformed(err)
		}
		k := t.(string) // the decoder yields nothing else in this place
		if seen[k] {
			return badBody(clip(k), "the member is given twice")
		}
		seen[k] = true
		if allowed != nil && !slices.Contains(allowed, k) {
			return badBody(clip(k), "unknown member; known are %s", strings.Join(allowed, ", "))
		}
		if err := scanValue(dec, depth); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return malformed(err)
	}
	return nil
}

func scanValue(dec *json.Decoder, depth int) error {
	t, err := dec.Token()
	if err != nil {
		return malformed(err)
	}
	switch t {
	case json.Delim('{'):
		return scanObject(dec, nil, depth+1)
	case json.Delim('['):
		if depth >= maxDepth {
			return badBody("", "the JSON nests deeper than %d levels", maxDepth)
		}
		for dec.More() {
			if err := scanValue(dec, depth+1); err != nil {
				return err
			}
		}
		if _, err := dec.Token(); err != nil {
			return malformed(err)
		}
	}
	return nil
}

func malformed(err error) error {
	return badBody("", "the body is not well-formed JSON").Because(err)
}

// members lists the JSON names of dst's fields.
func members(dst any) []string {
	t := reflect.TypeOf(dst).Elem()
	out := make([]string, 0, t.NumField())
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		out = append(out, name)
	}
	return out
}

func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "an array"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "a number"
}

package mcp

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// scan walks a request body once: it is one JSON value, no object has a key
// twice, nothing is nested too deep. On its way it notes the members of the
// message, of its params and of their _meta, so that nobody decodes them again.
type scan struct {
	body []byte
	at   int
	keys [][]byte // decoded keys of the objects that are open, the outermost first

	top, params, meta members
}

// member is one member of an object, as it was written.
type member struct {
	key     []byte // decoded
	escaped bool   // it was written with a backslash
	raw     json.RawMessage
}

type members []member

// get returns a member's value, nil when there is none.
func (m members) get(key string) json.RawMessage {
	for i := range m {
		if string(m[i].key) == key {
			return m[i].raw
		}
	}
	return nil
}

// only reports whether every key is one of the given and was written plainly.
func (m members) only(known ...string) bool {
next:
	for i := range m {
		for _, k := range known {
			if string(m[i].key) == k && !m[i].escaped {
				continue next
			}
		}
		return false
	}
	return true
}

// manyKeys is from how many keys on a map finds the one that occurs twice.
const manyKeys = 16

func notJSON() *wireError {
	return refuse(jsonrpc.CodeParseError, "the request body is not valid JSON")
}

// place says of which object the members are noted.
type place int

const (
	elsewhere place = iota
	inMessage
	inParams
	inMeta
)

// message walks the whole body.
func (s *scan) message() *wireError {
	if err := s.value(0, inMessage); err != nil {
		return err
	}
	rest := s.body[s.at:]
	switch {
	case len(bytes.Trim(rest, " \t\r\n")) == 0:
		return nil
	case len(bytes.TrimSpace(rest)) == 0: // white, but not to JSON
		return notJSON()
	}
	return refuse(jsonrpc.CodeParseError, "text follows the JSON-RPC message")
}

// note keeps a member of an object that is of interest.
func (s *scan) note(at place, m member) {
	switch at {
	case inMessage:
		s.top = append(s.top, m)
	case inParams:
		s.params = append(s.params, m)
	case inMeta:
		s.meta = append(s.meta, m)
	}
}

// inside is where the members of a member's value belong.
func (p place) inside(key []byte) place {
	switch {
	case p == inMessage && string(key) == "params":
		return inParams
	case p == inParams && string(key) == "_meta":
		return inMeta
	}
	return elsewhere
}

func (s *scan) space() {
	for s.at < len(s.body) {
		switch s.body[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return
		}
	}
}

// value walks one value inside depth others.
func (s *scan) value(depth int, at place) *wireError {
	s.space()
	if s.at == len(s.body) {
		return notJSON()
	}
	switch c := s.body[s.at]; c {
	case '{', '[':
		if depth == maxDepth {
			return refuse(jsonrpc.CodeInvalidRequest, "the request is nested deeper than "+strconv.Itoa(maxDepth)+" levels")
		}
		s.at++
		if c == '{' {
			return s.object(depth+1, at)
		}
		return s.array(depth + 1)
	case '"':
		if _, ok := s.text(); !ok {
			return notJSON()
		}
		return nil
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	}
	return s.number()
}

func (s *scan) object(depth int, at place) *wireError {
	first := len(s.keys)
	var seen map[string]bool
	for {
		s.space()
		if s.at < len(s.body) && s.body[s.at] == '}' && len(s.keys) == first {
			break
		}
		start := s.at
		if s.at == len(s.body) || s.body[s.at] != '"' {
			return notJSON()
		}
		escaped, ok := s.text()
		if !ok {
			return notJSON()
		}
		key := s.body[start+1 : s.at-1]
		if escaped {
			var decoded string
			if json.Unmarshal(s.body[start:s.at], &decoded) != nil {
				return notJSON()
			}
			key = []byte(decoded)
		}
		if s.twice(first, key, &seen) {
			return refuse(jsonrpc.CodeInvalidRequest, "a key occurs twice in one object: "+strconv.QuoteToASCII(clip(string(key), 64)))
		}
		s.space()
		if s.at == len(s.body) || s.body[s.at] != ':' {
			return notJSON()
		}
		s.at++
		s.space()
		start = s.at
		if err := s.value(depth, at.inside(key)); err != nil {
			return err
		}
		s.note(at, member{key, escaped, s.body[start:s.at:s.at]})
		s.space()
		if s.at < len(s.body) && s.body[s.at] == ',' {
			s.at++
			continue
		}
		if s.at == len(s.body) || s.body[s.at] != '}' {
			return notJSON()
		}
		break
	}
	s.at++
	s.keys = s.keys[:first]
	return nil
}

// twice notes a key of the innermost open object, whose first key has the given
// place, and reports whether it was there already.
func (s *scan) twice(first int, key []byte, seen *map[string]bool) bool {
	switch own := s.keys[first:]; {
	case *seen != nil:
		if (*seen)[string(key)] {
			return true
		}
		(*seen)[string(key)] = true
		return false // those before are in the map too
	case len(own) < manyKeys:
		for _, k := range own {
			if bytes.Equal(k, key) {
				return true
			}
		}
	default:
		*seen = make(map[string]bool, 2*manyKeys)
		for _, k := range own {
			(*seen)[string(k)] = true
		}
		return s.twice(first, key, seen)
	}
	s.keys = append(s.keys, key)
	return false
}

func (s *scan) array(depth int) *wireError {
	s.space()
	if s.at < len(s.body) && s.body[s.at] == ']' {
		s.at++
		return nil
	}
	for {
		if err := s.value(depth, elsewhere); err != nil {
			return err
		}
		s.space()
		if s.at == len(s.body) {
			return notJSON()
		}
		c := s.body[s.at]
		s.at++
		switch c {
		case ',':
		case ']':
			return nil
		default:
			return notJSON()
		}
	}
}

// text walks one string and reports whether it has a backslash.
func (s *scan) text() (escaped, ok bool) {
	for s.at++; s.at < len(s.body); s.at++ {
		switch c := s.body[s.at]; {
		case c == '"':
			s.at++
			return escaped, true
		case c < ' ':
			return escaped, false
		case c == '\\':
			escaped = true
			s.at++
			if s.at == len(s.body) {
				return escaped, false
			}
			switch s.body[s.at] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				for range 4 {
					s.at++
					if s.at == len(s.body) || !isHex(s.body[s.at]) {
						return escaped, false
					}
				}
			default:
				return escaped, false
			}
		}
	}
	return escaped, false
}

func (s *scan) word(w string) *wireError {
	if !bytes.HasPrefix(s.body[s.at:], []byte(w)) {
		return notJSON()
	}
	s.at += len(w)
	return nil
}

// number walks one number: no sign but a minus, no zero in front, digits on
// both sides of the point and in the exponent.
func (s *scan) number() *wireError {
	if s.is('-') {
		s.at++
	}
	if s.is('0') {
		s.at++
	} else if !s.digits() {
		return notJSON()
	}
	if s.is('.') {
		s.at++
		if !s.digits() {
			return notJSON()
		}
	}
	if s.is('e') || s.is('E') {
		s.at++
		if s.is('+') || s.is('-') {
			s.at++
		}
		if !s.digits() {
			return notJSON()
		}
	}
	return nil
}

func (s *scan) is(c byte) bool { return s.at < len(s.body) && s.body[s.at] == c }

func (s *scan) digits() bool {
	start := s.at
	for s.at < len(s.body) && s.body[s.at] >= '0' && s.body[s.at] <= '9' {
		s.at++
	}
	return s.at > start
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

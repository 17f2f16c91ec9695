package mcp

import (
	"net/http"
	"slices"
	"strings"
)

// What is plain: a tools/list or tools/call of which every part has exactly a
// form that the SDK is known to accept and to make nothing of. Here is nothing
// refused and nothing guessed: what is not plain goes to the SDK, which alone
// says what is wrong with it. equal_test.go holds both ways against each other.

// plain reports whether the body is such a message.
func (m *message) plain(s *scan) bool {
	if m.ID == nil || !plainID(m.ID) || !s.top.only("jsonrpc", "id", "method", "params") {
		return false
	}
	params := s.top.get("params")
	switch m.Method {
	case "tools/list":
		if params != nil && (params[0] != '{' || !s.params.only("_meta")) {
			return false
		}
	case "tools/call":
		if params == nil || params[0] != '{' || !s.params.only("_meta", "name", "arguments") {
			return false
		}
	default:
		return false
	}
	if meta := s.params.get("_meta"); meta != nil && meta[0] != '{' {
		return false
	}
	return m.plainMeta(s.meta)
}

// plainID is for ids that come back from the SDK as they were sent: it keeps
// numbers as floating point, and escapes some letters.
func plainID(id []byte) bool {
	if id[0] == '"' {
		word, ok := simple(id)
		return ok && len(word) > 0 && !slices.ContainsFunc(word, func(c byte) bool { return c > '~' })
	}
	return len(id) <= 15 && string(id) != "-0"
}

// plainMeta is for the metadata of either era: those of the new one whole or
// not at all, and others that mean nothing here.
func (m *message) plainMeta(meta members) bool {
	able := false
	for _, w := range meta {
		if w.escaped {
			return false
		}
		switch key := string(w.key); {
		case key == versionKey:
			word, ok := simple(w.raw)
			if !ok {
				return false
			}
			m.Version = string(word)
		case key == capabilitiesKey:
			if able = plainCapabilities(w.raw); !able {
				return false
			}
		case key == clientKey:
			if !plainClient(w.raw) {
				return false
			}
		case strings.HasPrefix(key, metaPrefix) && key != logLevelKey:
			return false
		default: // among them progressToken, which means nothing to a tool that only reads
			if !plainValue(w.raw) {
				return false
			}
		}
	}
	return m.Version == "" && !m.Modern || m.Version != "" && able
}

// plainCapabilities is for what a client can do: the protocol's own words, and
// extensions with whatever settings.
func plainCapabilities(raw []byte) bool {
	if string(raw) == "{}" {
		return true
	}
	return eachMember(raw, func(key string, raw []byte) bool {
		switch key {
		case "roots":
			return eachMember(raw, func(key string, raw []byte) bool {
				return key == "listChanged" && (string(raw) == "true" || string(raw) == "false")
			})
		case "sampling", "elicitation":
			return eachMember(raw, func(key string, raw []byte) bool {
				switch key {
				case "tools", "context", "form", "url":
					return string(raw) == "{}"
				}
				return false
			})
		case "extensions", "experimental":
			return raw[0] == '{' && plainValue(raw)
		}
		return false
	})
}

// plainClient is for what a client says of itself.
func plainClient(raw []byte) bool {
	return eachMember(raw, func(key string, raw []byte) bool {
		switch key {
		case "name", "title", "version", "description", "websiteUrl":
			_, ok := simple(raw)
			return ok
		}
		return false
	})
}

// eachMember reports whether raw, which is valid JSON, is an object of whose
// members each pleases.
func eachMember(raw []byte, pleases func(key string, raw []byte) bool) bool {
	if raw[0] != '{' {
		return false
	}
	s := scan{body: raw}
	if s.message() != nil {
		return false
	}
	for _, m := range s.top {
		if m.escaped || !pleases(string(m.key), m.raw) {
			return false
		}
	}
	return true
}

// plainValue is for any valid JSON that every reader understands alike: no
// escapes, and whole numbers of at most 15 digits.
func plainValue(raw []byte) bool {
	quoted, digits := false, 0
	for _, c := range raw {
		switch {
		case c == '\\':
			return false
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '-' || c >= '0' && c <= '9':
			if digits++; digits > 15 {
				return false
			}
			continue
		case c == '.' || digits > 0 && (c == 'e' || c == 'E'):
			return false
		}
		digits = 0
	}
	return true
}

// plainHeaders is for the headers of a plain message. version is the
// protocol's, after what the tolerance for mixed eras changed.
func plainHeaders(h http.Header, m message, version string) bool {
	if !plainVersion(version) || (version == modernVersion) != (m.Version == modernVersion) || version != modernVersion && m.Version != "" {
		return false
	}
	kind, ok := only(h, "Content-Type")
	if !ok || !plainKind(kind) || !accepts(h["Accept"]) || len(h["Last-Event-Id"]) > 0 {
		return false
	}
	if _, ok := only(h, versionHeader); !ok && version != "" {
		return false
	}
	if version != modernVersion {
		return true // the headers of the new era mean nothing in the old one
	}
	if method, ok := only(h, modernHeaderMark); !ok || method != m.Method {
		return false
	}
	name, ok := only(h, "Mcp-Name")
	return m.Method != "tools/call" || ok && name == m.Name
}

// only is the value of a header that occurs once.
func only(h http.Header, name string) (string, bool) {
	if v := h[name]; len(v) == 1 {
		return v[0], true
	}
	return "", false
}

// plainVersion is for the versions that this server speaks. Without one the
// SDK takes a request for one of the first era with this transport.
func plainVersion(v string) bool {
	switch v {
	case "", "2025-03-26", "2025-06-18", lastLegacy, modernVersion:
		return true
	}
	return false
}

func plainKind(kind string) bool {
	switch kind {
	case "application/json", "application/json; charset=utf-8", "application/json;charset=utf-8":
		return true
	}
	return false
}

// accepts reports whether a client takes both forms of an answer. It knows
// fewer ways to say so than the SDK.
func accepts(values []string) bool {
	plain, events := false, false
	for _, v := range values {
		for w := range strings.SplitSeq(v, ",") {
			switch strings.TrimSpace(w) {
			case "application/json":
				plain = true
			case "text/event-stream":
				events = true
			case "*/*":
				plain, events = true, true
			}
		}
	}
	return plain && events
}

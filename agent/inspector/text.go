package inspector

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// CleanText makes text of untrusted origin safe to show: bytes that are not
// UTF-8 become U+FFFD followed by their value in hexadecimal, and control,
// bidirectional and zero-width characters are written as \uXXXX. Clean text
// comes back unchanged and without allocation.
func CleanText(s string) string { return clean(s, false) }

// CleanLines is CleanText that keeps line ends.
func CleanLines(s string) string { return clean(s, true) }

func clean(s string, lines bool) string {
	n := cleanLen(s, lines)
	if n == len(s) {
		return s
	}
	b := make([]byte, 0, len(s)+16)
	for {
		b, s = append(b, s[:n]...), s[n:]
		if s == "" {
			return string(b)
		}
		r, size := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError {
			b = fmt.Appendf(b, "\uFFFD\\x%02x", s[0])
		} else {
			b = fmt.Appendf(b, "\\u%04x", r)
		}
		s = s[size:]
		n = cleanLen(s, lines)
	}
}

// cleanLen is the length of the part before the first byte or rune that may
// not be shown as it is.
func cleanLen(s string, lines bool) int {
	const ones = 0x01010101_01010101
	for i := 0; i < len(s); {
		for i+8 <= len(s) { // most text is ASCII: eight bytes at once
			x := uint64(s[i]) | uint64(s[i+1])<<8 | uint64(s[i+2])<<16 | uint64(s[i+3])<<24 | uint64(s[i+4])<<32 | uint64(s[i+5])<<40 | uint64(s[i+6])<<48 | uint64(s[i+7])<<56
			if (x|(x+ones)|(x-' '*ones))&(0x80*ones) != 0 {
				break
			}
			i += 8
		}
		for i < len(s) && s[i] >= ' ' && s[i] < 0x7f {
			i++
		}
		if i == len(s) {
			break
		}
		if lines && s[i] == '\n' {
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 || Hidden(r) {
			return i
		}
		i += n
	}
	return len(s)
}

// CleanLabel is CleanText cut to MaxLabelBytes at a rune boundary; cut says
// whether anything was changed.
func CleanLabel(s string) (clean string, changed bool) {
	full := len(s)
	if full > MaxLabelBytes {
		s = s[:MaxLabelBytes]
		for len(s) > 0 && !utf8.RuneStart(s[len(s)-1]) {
			s = s[:len(s)-1]
		}
		if r, n := utf8.DecodeLastRuneInString(s); r == utf8.RuneError && n == 1 {
			s = s[:len(s)-1]
		}
	}
	clean = CleanText(s)
	for len(clean) > MaxLabelBytes {
		_, n := utf8.DecodeLastRuneInString(clean)
		clean = clean[:len(clean)-n]
	}
	return clean, len(clean) != full || clean != s
}

// Hidden reports a rune that a reader does not see: a control character, one
// that only formats, such as a change of direction, or an end of line.
func Hidden(r rune) bool {
	switch {
	case r < 0x7f: // most text, and no look into the tables
		return r < ' '
	case r < 0x600:
		return r < 0xa0 || r == 0xad
	case r >= 0x2070 && r < 0xfeff: // letters of many scripts, signs and lines
		return false
	}
	return unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
}

package inspector

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// CleanText makes text of untrusted origin safe to show: bytes that are not
// UTF-8 become U+FFFD followed by their value in hexadecimal, and control,
// bidirectional and zero-width characters are written as \uXXXX. Clean text
// comes back unchanged and without allocation.
func CleanText(s string) string {
	clean := true
	for _, r := range s {
		if r == utf8.RuneError || hidden(r) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, "\uFFFD\\x%02x", s[i])
		case hidden(r):
			fmt.Fprintf(&b, "\\u%04x", r)
		default:
			b.WriteRune(r)
		}
		i += n
	}
	return b.String()
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

func hidden(r rune) bool {
	if r < 0x7f { // most text, and no look into the tables
		return r < ' '
	}
	return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
}

package inspector

import (
	"bytes"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestCleanText(t *testing.T) {
	for in, want := range map[string]string{
		"eth0":               "eth0",
		"inner-job-同步":       "inner-job-同步",
		"\xfftest":           "\uFFFD\\xfftest",
		"a\x00b\nc":          "a\\u0000b\\u000ac",
		"x\u202egpj.exe":     "x\\u202egpj.exe",
		"zero\u200bwidth":    "zero\\u200bwidth",
		"inner-job-\xe5\x90": "inner-job-\uFFFD\\xe5\uFFFD\\x90",
	} {
		if got := CleanText(in); got != want {
			t.Errorf("CleanText(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestHiddenIsWhatUnicodeSays(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if want := unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp); Hidden(r) != want {
			t.Errorf("Hidden(%U) = %v", r, !want)
		}
	}
}

func TestCleanTextLooksAtEveryByte(t *testing.T) {
	for at := range 20 {
		for c := range 256 {
			b := bytes.Repeat([]byte("a"), 20)
			b[at] = byte(c)
			if got, same := CleanText(string(b)), c >= ' ' && c < 0x7f; (got == string(b)) != same {
				t.Errorf("%q became %q", b, got)
			}
			if got, same := CleanLines(string(b)), c >= ' ' && c < 0x7f || c == '\n'; (got == string(b)) != same {
				t.Errorf("lines %q became %q", b, got)
			}
		}
	}
}

func FuzzCleanLabel(f *testing.F) {
	f.Add("inner-job-同步")
	f.Add(strings.Repeat("同", 100))
	f.Add("\xff\xfe" + strings.Repeat("a", 130))
	f.Fuzz(func(t *testing.T, s string) {
		got, changed := CleanLabel(s)
		if !utf8.ValidString(got) || len(got) > MaxLabelBytes {
			t.Fatalf("CleanLabel(%q) = %q", s, got)
		}
		if !changed && got != s {
			t.Fatalf("CleanLabel(%q) = %q, said to be unchanged", s, got)
		}
		if CleanText(s) == s && len(s) <= MaxLabelBytes && changed {
			t.Fatalf("CleanLabel(%q) says changed", s)
		}
	})
}

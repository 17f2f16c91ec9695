package tenants

import (
	"crypto/sha256"
	"strings"
	"testing"
)

func TestSecretRoundTrip(t *testing.T) {
	for _, kind := range []SecretKind{OperatorSecret, EnrolSecret, SessionSecret} {
		text, want := MintSecret(kind)
		got, flaw := ParseSecret(kind, text)
		if flaw != SecretSound || got != want || !got.Hash.Equal(want.Hash) {
			t.Fatalf("%s: parse %q: %+v, %v", kind, text, got, flaw)
		}
		if !strings.HasPrefix(text, string(kind)+"_") || len(text) != len(kind)+79 {
			t.Errorf("%s: unexpected form %q", kind, text)
		}
		for _, other := range []SecretKind{OperatorSecret, EnrolSecret, SessionSecret} {
			if _, flaw := ParseSecret(other, text); other != kind && flaw != SecretMalformed {
				t.Errorf("a %s secret reads as %s", kind, other)
			}
		}
	}
}

// Every single mistyped character is caught before any look-up.
func TestSecretTypingErrors(t *testing.T) {
	text, _ := MintSecret(OperatorSecret)
	for i := range text {
		for _, c := range "a7_Z0\x00 " {
			bad := text[:i] + string(c) + text[i+1:]
			if bad == text {
				continue
			}
			if _, flaw := ParseSecret(OperatorSecret, bad); flaw == SecretSound {
				t.Fatalf("accepted %q with position %d mistyped", bad, i)
			}
		}
	}
	for _, bad := range []string{"", "tt_", text[:len(text)-1], text + "a", " " + text, text + "\n", strings.ToUpper(text), strings.Repeat("tt_", 1<<16)} {
		if _, flaw := ParseSecret(OperatorSecret, bad); flaw != SecretMalformed {
			t.Errorf("%.20q: flaw %v, want malformed", bad, flaw)
		}
	}
}

func TestZeroHashEqualsNothing(t *testing.T) {
	if (SecretHash{}).Equal(SecretHash{}) {
		t.Fatal("a missing hash matched")
	}
}

func FuzzParseSecret(f *testing.F) {
	text, _ := MintSecret(OperatorSecret)
	f.Add(text)
	f.Add("tt_a_b_c")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		got, flaw := ParseSecret(OperatorSecret, s)
		if flaw == SecretSound && (got.Hash != sha256.Sum256([]byte(s)) || !strings.Contains(s, got.ID)) {
			t.Fatalf("%q parsed to %+v", s, got)
		}
		if flaw != SecretSound && got != (Secret{}) {
			t.Fatalf("a refused text yields %+v", got)
		}
	})
}

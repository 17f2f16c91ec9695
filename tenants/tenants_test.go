package tenants

import (
	"strings"
	"testing"
)

func TestSlugs(t *testing.T) {
	for _, good := range []string{"a", "acme", "9", "-", "a-b-3", strings.Repeat("z", 40)} {
		if err := CheckSlug(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", strings.Repeat("z", 41), "Acme", "a_b", "a.b", "a/b", "a b", "acme\n", "\x00", "ä", "\xff", "a\xc3"} {
		if CheckSlug(bad) == nil {
			t.Errorf("%q is taken for a slug", bad)
		}
	}
}

package collect

import "testing"

// FuzzParsers feeds every reader of /proc with the same text: none may panic
// or take unbounded memory, whatever it means.
func FuzzParsers(f *testing.F) {
	for _, s := range []string{"cpu 1 2 3 4 5 6 7 8 9 10\ncpu0 1\nctxt 1\n", "27 1 254:0 / /a\\040b rw - ext4 /dev/vda rw\n", "some avg10=0 total=1\n", "TCP: inuse 5 orphan 0\n", "MemTotal: 1 kB\n", `27 1 0:1 / /\777 rw - x y`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if row, _, _, err := parseStat(s); err == nil && (len(row) < 4 || len(row) > len(modes)) {
			t.Errorf("%d columns", len(row))
		}
		all, _ := parseMounts(s)
		if out, _ := disksOf(all); len(out) > maxMounts {
			t.Errorf("%d mounts", len(out))
		}
		parsePressure(s, "some")
		parseSockstat(s)
		for range pairs(s) {
		}
	})
}

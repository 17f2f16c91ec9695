package probe

import (
	"strings"
	"testing"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/symbols"
)

// A stack that is short because the program is not deep has no fault, and of
// the two notes on frame pointers one is there.
func TestShortStacksThatReachMainAreWhole(t *testing.T) {
	key := profileProcessKey{Tgid: 7}
	frames := map[uint64]symbols.Frame{
		10: {Function: "main", Module: "spin"}, 20: {Function: "hot", Module: "spin"}, 29: {Function: "main", Module: "spin"}, 39: {Module: "libc.so.6"},
	}
	const follow, without = "Stacks follow frame pointers", "without frame pointers"
	for name, tt := range map[string]struct {
		user []uint64
		want string
	}{
		"main alone":        {[]uint64{10}, follow},
		"called from main":  {[]uint64{20, 30}, follow},
		"main is not there": {[]uint64{20, 40}, without},
		"nothing below":     {[]uint64{20}, without},
	} {
		t.Run(name, func(t *testing.T) {
			names := &namer{user: map[profileProcessKey]map[uint64]symbols.Frame{key: frames}}
			p := &inspector.Profile{Hz: 99, CPUs: 1, Seconds: 1, Samples: 50}
			text := strings.Join(notes(p, []sampled{{process: key, count: 50, user: tt.user}}, names, profileProfileTotals{Runs: 99}), "\n")
			if strings.Contains(text, follow) != (tt.want == follow) || strings.Contains(text, without) != (tt.want == without) {
				t.Errorf("want %q alone:\n%s", tt.want, text)
			}
		})
	}
}

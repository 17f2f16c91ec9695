package inspector

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCounterStep(t *testing.T) {
	type step struct {
		Increase uint64
		OK       bool
	}
	tests := map[string]struct {
		counter         Counter
		readings        []uint64
		want            []step
		clamped, resets uint64
	}{
		"steady":                       {Counter{}, []uint64{5, 5, 9}, []step{{}, {0, true}, {4, true}}, 0, 0},
		"starts at zero":               {Counter{}, []uint64{0, 3}, []step{{}, {3, true}}, 0, 0},
		"32 bits wrap once":            {Counter{Narrow: true}, []uint64{4294967290, 10}, []step{{}, {16, true}}, 0, 0},
		"64 bits never wrap":           {Counter{}, []uint64{4294967290, 10, 12}, []step{{}, {}, {2, true}}, 0, 1},
		"restart":                      {Counter{}, []uint64{1000000, 5, 6}, []step{{}, {}, {1, true}}, 0, 1},
		"small step back of a jittery": {Counter{Jitter: 2}, []uint64{1000, 999, 1010}, []step{{}, {0, true}, {10, true}}, 1, 0},
		"large step back of a jittery": {Counter{Jitter: 2}, []uint64{1000, 10, 11}, []step{{}, {}, {1, true}}, 0, 1},
		"narrow source above 32 bits":  {Counter{Narrow: true}, []uint64{1 << 40, 1}, []step{{}, {}}, 0, 1},
		"whole range":                  {Counter{}, []uint64{0, 1<<64 - 1}, []step{{}, {1<<64 - 1, true}}, 0, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []step
			for _, r := range tc.readings {
				inc, ok := tc.counter.Step(r)
				got = append(got, step{inc, ok})
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if tc.counter.Clamped != tc.clamped || tc.counter.Resets != tc.resets {
				t.Errorf("clamped %d, resets %d; want %d, %d", tc.counter.Clamped, tc.counter.Resets, tc.clamped, tc.resets)
			}
		})
	}
}

package runner

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// bigResult is far beyond every bound, with text that must not travel.
func bigResult() *inspector.TaskResult {
	r := &inspector.TaskResult{Totals: map[string]uint64{"all": 7}, Notes: make([]string, 50), Next: make([]inspector.NextStep, 9),
		Profile: &inspector.Profile{Hz: 99, Samples: 5000}}
	stack := make([]string, 70)
	for i := range stack {
		stack[i] = fmt.Sprintf("frame\x1b[31m%d %s", i, strings.Repeat("f", 100))
	}
	for i := range 500 {
		r.Rows = append(r.Rows, inspector.ResultRow{Labels: map[string]string{"proc\xffess": "na\u202eme\xc3\x28"}, Count: 2, Stack: stack, Values: map[string]float64{"p99_us": float64(i), "bad": math.NaN(), "inf": math.Inf(1)}})
		r.Samples = append(r.Samples, inspector.ResultSample{At: time.Unix(int64(i), 0), Labels: map[string]string{"x": strings.Repeat("\u200b", 500)}, Stack: stack})
	}
	for i := range 5000 {
		r.Profile.Folded = append(r.Profile.Folded, inspector.FoldedStack{Stack: strings.Repeat(fmt.Sprintf("main.f%d;", i), 8), Count: 1})
		r.Profile.Top = append(r.Profile.Top, inspector.ProfileFrame{Function: "main.f\x00", Share: math.NaN()})
	}
	return r
}

func TestResultsAreCutToTheirBounds(t *testing.T) {
	for _, limit := range []int{inspector.MaxResultBytes, inspector.MaxPartialBytes, 4 << 10} {
		in := bigResult()
		raw, err := encodeResult(in, limit)
		if err != nil {
			t.Fatalf("%d: %v", limit, err)
		}
		if len(raw) > limit || !utf8.Valid(raw) {
			t.Errorf("%d bytes, at most %d", len(raw), limit)
		}
		var out inspector.TaskResult
		if err := json.Unmarshal(raw, &out); err != nil {
			t.Fatal(err)
		}
		if len(out.Rows) > inspector.MaxResultRows || len(out.Samples) > inspector.MaxResultSamples || len(out.Profile.Folded) > inspector.MaxFoldedStacks {
			t.Errorf("%d rows, %d samples, %d stacks", len(out.Rows), len(out.Samples), len(out.Profile.Folded))
		}
		if n := uint64(len(out.Rows)) + out.OtherRows; n != 500 || 2*uint64(len(out.Rows))+out.OtherCount != 1000 {
			t.Errorf("rows: %d and %d others that count %d", len(out.Rows), out.OtherRows, out.OtherCount)
		}
		if n := uint64(len(out.Samples)) + out.Truncated; n != 500 {
			t.Errorf("samples: %d and %d cut", len(out.Samples), out.Truncated)
		}
		if n := uint64(len(out.Profile.Folded)) + out.Profile.LeftOut; n != 5000 {
			t.Errorf("stacks: %d and %d left out", len(out.Profile.Folded), out.Profile.LeftOut)
		}
		for _, r := range out.Rows {
			for k, v := range r.Labels {
				if inspector.CleanText(k) != k || inspector.CleanText(v) != v {
					t.Errorf("label %q=%q", k, v)
				}
			}
			if _, ok := r.Values["bad"]; ok || len(r.Stack) > inspector.MaxStackDepth {
				t.Errorf("row %+v", r)
			}
		}
		if d := cmp.Diff(bigResult(), in, cmp.Comparer(func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) })); d != "" {
			t.Errorf("the task's own result was changed:\n%s", d)
		}
	}
	if _, err := encodeResult(bigResult(), 100); err == nil {
		t.Error("a result that cannot fit was cut to nothing without a word")
	}
}

func TestAnEmptyResultHasNoNulls(t *testing.T) {
	raw, err := encodeResult(&inspector.TaskResult{}, inspector.MaxResultBytes)
	if err != nil || strings.Contains(string(raw), "null") {
		t.Errorf("%s, %v", raw, err)
	}
}

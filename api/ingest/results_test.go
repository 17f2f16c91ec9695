package ingest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// checkResult wants a result to be within bounds, clean, and stable: written
// and read again it stays the same.
func checkResult(t *testing.T, r *inspector.TaskResult) {
	t.Helper()
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := resultOf(raw)
	if err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	if d := cmp.Diff(r, again); d != "" {
		t.Fatalf("not stable:\n%s", d)
	}
	if len(r.Rows) > inspector.MaxResultRows || len(r.Samples) > inspector.MaxResultSamples || len(r.Notes) > maxNotes || len(r.Next) > maxNextSteps {
		t.Fatalf("over a bound: %s", raw)
	}
}

func TestResultIsCutHonestly(t *testing.T) {
	in := inspector.TaskResult{Totals: map[string]uint64{"packets": 1 << 63, "bad\x00": 1}, Profile: &inspector.Profile{}}
	for range 103 {
		in.Rows = append(in.Rows, inspector.ResultRow{Labels: map[string]string{"comm": "a\u202eb"}, Count: 2, Stack: make([]string, 100)})
	}
	in.Samples = make([]inspector.ResultSample, 60)
	in.Profile.Folded = make([]inspector.FoldedStack, 2005)
	for i := range in.Profile.Folded {
		in.Profile.Folded[i] = inspector.FoldedStack{Stack: "main;\x1b[31mred", Count: 3}
	}
	in.Next = []inspector.NextStep{{Tool: "list_events", Args: map[string]any{"since": 5.0, "deep": map[string]any{"x": "y"}, "list": []any{"a\u200b"}, "odd": []any{"a", 1.0}, "s": "\u200b"}}}
	in.Notes = strings.Split(strings.Repeat("note\x07,", 12), ",")
	raw, err := json.Marshal(in)
	must(t, err)
	r, err := resultOf(raw)
	must(t, err)
	checkResult(t, r)
	if len(r.Rows) != 100 || r.OtherRows != 3 || r.OtherCount != 6 || len(r.Rows[0].Stack) != inspector.MaxStackDepth || r.Rows[0].Labels["comm"] != `a\u202eb` {
		t.Errorf("%d rows, other %d of %d, first %v", len(r.Rows), r.OtherRows, r.OtherCount, r.Rows[0].Labels)
	}
	if len(r.Samples) != 50 || r.Truncated != 10 || len(r.Profile.Folded) != 2000 || r.Profile.LeftOut != 15 || r.Profile.Folded[0].Stack != `main;\u001b[31mred` {
		t.Errorf("%d samples, %d truncated, %d stacks, %d left out", len(r.Samples), r.Truncated, len(r.Profile.Folded), r.Profile.LeftOut)
	}
	if r.Totals["packets"] != 1<<63 || r.Totals[`bad\u0000`] != 1 || len(r.Notes) != 10 || r.Notes[0] != `note\u0007` {
		t.Errorf("totals %v, notes %q", r.Totals, r.Notes)
	}
	if d := cmp.Diff(map[string]any{"since": 5.0, "list": []any{`a\u200b`}, "s": `\u200b`}, r.Next[0].Args); d != "" {
		t.Errorf("arguments:\n%s", d)
	}
}

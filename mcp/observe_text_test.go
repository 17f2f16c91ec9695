package mcp

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	causes "github.com/telltale-dev/telltale/tenants/explain"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

// Open events and further facts are no causes; of what is unrelated the
// nearest is listed, and how much is not.
func TestExplainTextNamesNoFalseCause(t *testing.T) {
	x := causes.Explanation{Subject: "node db1", At: noon, Verdict: "db1: the node is offline",
		Chain: []causes.Link{{At: noon, What: "the node is offline", Confidence: causes.Recorded}, {At: noon, What: "the agent was stopped", Confidence: causes.Recorded},
			{At: noon, What: "module network is off", Confidence: causes.Recorded, Role: causes.State}},
		Open: []causes.Link{{At: noon, What: "I/O error", Event: "e1"}}}
	for i := range 12 {
		x.Changes = append(x.Changes, causes.Around{At: noon.Add(-time.Duration(12-i) * time.Minute), What: fmt.Sprintf("change %d.", i)})
	}
	text := explainText(x)
	for _, want := range []string{"because: 2026-03-01T12:00:00Z, the agent was stopped", "also: 2026-03-01T12:00:00Z, module network is off", "open events, gravest first:\nopen: 2026-03-01T12:00:00Z, I/O error",
		"unrelated: 2026-03-01T11:59:00Z, change 11.", "unrelated: 4 more"} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
	if strings.Count(text, "because") != 1 || strings.Contains(text, "change 3.") || strings.Index(text, "change 11.") > strings.Index(text, "change 4.") {
		t.Error(text)
	}
}

// What is off stands before the numbers, and none of them is called one of now.
func TestSummaryTextOfWhatIsOff(t *testing.T) {
	a := summaryAnswer{Summary: metrics.Summary{Module: "network", Window: tenants.Window{From: noon.Add(-5 * time.Minute), To: noon}, FreshnessS: ptr(95.0),
		Coverage: tenants.Coverage{Asked: 1, NotCovered: []tenants.NotCovered{{Node: "n", Name: "db1", Reason: "off"}}}, Notes: []string{"module network is off on db1"},
		Metrics: []metrics.MetricSummary{{Metric: "network.opens", Kind: "delta", Unit: "count", Stats: metrics.Stats{RatePerS: ptr(2.0), CoveredS: 100}}}}}
	text := summaryText(a)
	for _, want := range []string{"newest data 1m35s ago: no number below is one of now\n", "coverage: 0 of 1 node answered", "not covered: db1 (off)"} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
	if note := strings.Index(text, "note: module network is off"); note < 0 || note > strings.Index(text, "LAST/RATE") || strings.Contains(text, "NOW") {
		t.Error(text)
	}
	a.FreshnessS = nil
	if text = summaryText(a); !strings.Contains(text, "no data within that time") {
		t.Error(text)
	}
}

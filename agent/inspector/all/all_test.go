package all

import (
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// Every folder of agent/inspector but this one is a component, and the list
// is alphabetical.
func TestListHoldsEveryFolder(t *testing.T) {
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, e := range entries {
		if e.IsDir() && e.Name() != "all" && e.Name() != "testdata" {
			want = append(want, e.Name())
		}
	}
	var r inspector.Registry
	Register(&r)
	var got []string
	for _, c := range r.Components() {
		got = append(got, c.Name)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("components differ from the folders (-folders +list):\n%s", d)
	}
}

func TestHeadlinesFitTheHeadRow(t *testing.T) {
	var r inspector.Registry
	Register(&r)
	var headlines []string
	for _, c := range r.Components() {
		for _, m := range c.Metrics {
			if !m.Headline {
				continue
			}
			headlines = append(headlines, m.Name)
			if len(m.Labels) > 0 || m.Kind == inspector.Histogram {
				t.Errorf("%s is a headline but has labels or is a histogram", m.Name)
			}
		}
	}
	if len(headlines) > 16 {
		t.Errorf("%d headlines, at most 16 fit: %v", len(headlines), headlines)
	}
}

func TestEverySignalHasAMetricAndEveryMetricItsComponent(t *testing.T) {
	var r inspector.Registry
	Register(&r)
	for _, c := range r.Components() {
		var used []string
		for _, m := range c.Metrics {
			used = append(used, m.Signal)
			if len(m.Name) <= len(c.Name) || m.Name[:len(c.Name)+1] != c.Name+"." {
				t.Errorf("%s is not named after its component %s", m.Name, c.Name)
			}
		}
		for _, s := range c.Signals {
			if !slices.Contains(used, s) {
				t.Errorf("no metric of %s depends on its signal %q", c.Name, s)
			}
		}
	}
}

package collectors

import (
	"io"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
)

func TestListMatchesTheWords(t *testing.T) {
	var words inspector.Registry
	all.Register(&words)
	var want, got []string
	for _, c := range words.Components() {
		want = append(want, c.Name)
	}
	for _, m := range List(Config{}, slog.New(slog.NewTextHandler(io.Discard, nil))) {
		got = append(got, m.Component)
		if len(m.Signals) == 0 {
			t.Errorf("module %s names no signal", m.Component)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("modules differ from the words (-words +modules):\n%s", d)
	}
}

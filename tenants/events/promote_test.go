package events

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func TestPromote(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	scope := limited(w.a) // sees n2
	f := Finding{Task: tenants.NewNodeID().String(), Node: w.n2.Principal.ID, Kind: "trace_drops", Title: "Drops by \u202e nft ", Severity: inspector.Critical,
		Labels: map[string]string{"reason": "NETFILTER_DROP"}, Count: 12, At: w.now().Add(-time.Minute), Samples: []inspector.EventSample{{At: w.now(), Labels: map[string]string{"pid": "1"}}}}
	e, err := w.s.Promote(ctx, scope, f)
	if err != nil {
		t.Fatal(err)
	}
	if e.Origin != FromTask || e.Task != f.Task || e.Title != `Drops by \u202e nft` || e.Samples != 1 || e.Truncated != 11 || e.Cumulative != 12 || e.Severity != inspector.Critical || e.Node != f.Node || e.State != inspector.EventEnded || e.Context != pending {
		t.Errorf("%+v", e)
	}
	f.Title, f.At = "other words", w.now()
	again, err := w.s.Promote(ctx, scope, f)
	if err != nil || again.ID != e.ID || again.Title != "other words" || again.Was != e.Title || again.Severity != inspector.Critical {
		t.Errorf("again: %v %+v", err, again)
	}
	f.Severity = "" // as it is
	if same, err := w.s.Promote(ctx, scope, f); err != nil || same.ID != e.ID || same.Was != "" || same.Severity != inspector.Critical {
		t.Errorf("the same again: %v %+v", err, same)
	}
	f.Severity = inspector.Info
	if lower, err := w.s.Promote(ctx, scope, f); err != nil || lower.ID != e.ID || lower.Was != "" || lower.Severity != inspector.Info || lower.Cumulative != 12 || !lower.First.Equal(e.First) {
		t.Errorf("with another severity: %v %+v", err, lower)
	}
	if p := w.list(reader(w.a), ListQuery{Origin: FromTask}); len(p.Events) != 1 || p.Events[0].Title != "other words" {
		t.Errorf("%+v", p.Events)
	}
	f.Labels = map[string]string{"reason": "TCP_RESET"}
	if more, err := w.s.Promote(ctx, scope, f); err != nil || more.ID == e.ID {
		t.Errorf("other labels: %v %+v", err, more)
	}
	if p := w.list(reader(w.a), ListQuery{Origin: FromTask}); len(p.Events) != 2 {
		t.Errorf("%d events of tasks", len(p.Events))
	}
	if p := w.list(reader(w.b), ListQuery{}); len(p.Events) != 0 {
		t.Errorf("the second tenant: %d", len(p.Events))
	}
	// A node that knows the task cannot say first what somebody will promote.
	f.Labels = map[string]string{"reason": "NO_SOCKET"}
	forged := w.report("eth0", 0)
	forged.Fingerprint = promotedPrint(f.Task, f.Kind, f.Labels)
	w.record(w.n2, forged)
	if own, err := w.s.Promote(ctx, scope, f); err != nil || own.Origin != FromTask || own.Title != f.Title {
		t.Errorf("beside a forged one: %v %+v", err, own)
	}
	for name, c := range map[string]struct {
		change func(*Finding)
		kind   fault.Kind
		field  string
	}{
		"outside the selector": {func(f *Finding) { f.Node = w.n1.Principal.ID }, fault.NotFound, ""},
		"another tenant's":     {func(f *Finding) { f.Node = w.other.Principal.ID }, fault.NotFound, ""},
		"ticket":               {func(f *Finding) { f.Task = "x" }, fault.Invalid, "ticket_id"},
		"kind":                 {func(f *Finding) { f.Kind = "drop_burst" }, fault.Invalid, "kind"},
		"severity":             {func(f *Finding) { f.Severity = "bad" }, fault.Invalid, "severity"},
		"no title":             {func(f *Finding) { f.Title = " " }, fault.Invalid, "title"},
		"long title":           {func(f *Finding) { f.Title = strings.Repeat("x", 201) }, fault.Invalid, "title"},
		"old":                  {func(f *Finding) { f.At = w.now().Add(-26 * time.Hour) }, fault.Invalid, "at"},
		"never":                {func(f *Finding) { f.At = time.Time{} }, fault.Invalid, "at"},
	} {
		bad := f
		c.change(&bad)
		_, err := w.s.Promote(ctx, scope, bad)
		if !fault.Is(err, c.kind) || c.field != "" && fault.Of(err).Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.s.Promote(ctx, reader(w.a), f); !fault.Is(err, fault.Denied) {
		t.Errorf("with read alone: %v", err)
	}
}

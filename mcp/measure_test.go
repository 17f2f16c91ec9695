package mcp

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// No number stands beside two units.
func TestMeasures(t *testing.T) {
	for name, c := range map[string]struct {
		v    float64
		want string
	}{
		"lifetime_avg_ms": {0.03619, "lifetime_avg 36.19 µs"}, "rtt_us": {12000, "rtt 12 ms"}, "wait_ns": {5, "wait 5 ns"}, "busy_ratio": {.25, "busy 25 %"},
		"share": {.25, "share 25 %"}, "rx_bytes": {2048, "rx_bytes 2 KiB"}, "bytes_per_s": {2048, "bytes 2 KiB/s"}, "requests_per_s": {3, "requests 3/s"}, "segments": {7, "segments 7"},
	} {
		if got := valueText(map[string]float64{name: c.v}); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestLevels: rows of different levels are apart, each level with its own
// shares and its own word for what is counted; what rows share is said once.
func TestLevels(t *testing.T) {
	group := "/system.slice/" + strings.Repeat("long-", 20)
	row := func(level, process string, n uint64) inspector.ResultRow {
		r := inspector.ResultRow{Labels: map[string]string{"row": level, "device": "vda"}, Count: n, Values: map[string]float64{"max_ms": 2}}
		if process != "" {
			r.Labels["process"], r.Labels["cgroup"] = process, group
		}
		return r
	}
	device := row("device", "", 40)
	device.Values = map[string]float64{"requests_1024us_to_2048us": 1, "requests_64us_to_128us": 39, "p99_ms": 2}
	run := tasks.Run{Node: "n1", Name: "one", Status: tasks.Completed, Result: &inspector.TaskResult{From: noon, To: noon, OtherRows: 1, OtherCount: 5,
		Totals: map[string]uint64{"requests": 40, "read_errors": 0, "merges": 0, "requests_1024us_to_2048us": 1, "requests_64us_to_128us": 39},
		Rows:   []inspector.ResultRow{device, row("process", "dd", 30), row("process", "cp", 10)}}}
	task := tasks.Task{Ticket: "t", Kind: "monitor_device_io", Status: tasks.Completed, Runs: []tasks.Run{run}}
	text := answerTask(Services{Registry: fullRegistry()}, task, Call{Now: noon}, false).Text
	_, text, _ = strings.Cut(text, ")\n")
	text, _, _ = strings.Cut(text[strings.Index(text, "by device"):], "coverage")
	want := `by device:
REQUESTS  SHARE    ROW  WHAT
40        100.0 %  0    device=vda | p99 2 ms
  requests by time taken: 64 µs to 128 µs: 39, 1.024 ms to 2.048 ms: 1
by process:
in each: cgroup=` + group + ` device=vda
REQUESTS  SHARE   ROW  WHAT
30        75.0 %  1    process=dd | max 2 ms
10        25.0 %  2    process=cp | max 2 ms
5 more in 1 group that the nodes did not list
totals: requests 40; 0 of merges, read_errors
totals: requests by time taken: 64 µs to 128 µs: 39, 1.024 ms to 2.048 ms: 1
`
	if diff := cmp.Diff(want, text); diff != "" {
		t.Error(diff)
	}
}

// TestLevelsOfEvents: rows that count what happened and rows that count what
// is there are no shares of each other.
func TestLevelsOfEvents(t *testing.T) {
	run := tasks.Run{Node: "n1", Name: "one", Status: tasks.Completed, Result: &inspector.TaskResult{From: noon, To: noon, Rows: []inspector.ResultRow{
		{Labels: map[string]string{"event": "established", "port": "443"}, Count: 6}, {Labels: map[string]string{"port": "443"}, Count: 3}, {Labels: map[string]string{"port": "22"}, Count: 1},
	}}}
	text := answerTask(Services{Registry: fullRegistry()}, tasks.Task{Kind: "monitor_tcp_connections", Status: tasks.Completed, Runs: []tasks.Run{run}}, Call{Now: noon}, false).Text
	for _, want := range []string{"event established:\nCONNECTION EVENTS  SHARE    ROW  WHAT\n6                  100.0 %  0    event=established port=443\n", "others:\n", "3                  75.0 %  1    port=443\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q:\n%s", want, text)
		}
	}
}

// TestTopFunction: a file's name in brackets is no function that anybody looks
// for, unless there is no other.
func TestTopFunction(t *testing.T) {
	frames := func(names ...string) (p nodeProfile) {
		for _, n := range names {
			p.Top = append(p.Top, inspector.ProfileFrame{Function: n})
		}
		return p
	}
	for want, p := range map[string]nodeProfile{"main.spin": frames("[dash]", "main.spin", "x"), "[dash]": frames("[dash]", "[postgres]"), "short": frames(strings.Repeat("x", 500), "short")} {
		if got := topFunction(p); got == nil || got.Function != want {
			t.Errorf("%+v, want %s", got, want)
		}
	}
	if got := topFunction(frames()); got != nil {
		t.Errorf("%+v of nothing", got)
	}
}

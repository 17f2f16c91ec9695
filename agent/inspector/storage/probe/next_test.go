package probe

import (
	"testing"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// A process is said to make most of a device's requests when it does, counted
// over all operations.
func TestStepsNameWhoDoesMost(t *testing.T) {
	row := func(kind, device, pid string, n uint64) inspector.ResultRow {
		return inspector.ResultRow{Labels: map[string]string{labelRow: kind, labelDevice: device, labelPid: pid}, Count: n}
	}
	for name, tt := range map[string]struct {
		rows []inspector.ResultRow
		pid  int64
	}{
		"half is not most":     {[]inspector.ResultRow{row("device", "vda", "", 10), row("process", "vda", "7", 5), row("process", "vda", "8", 5)}, 0},
		"reads and writes":     {[]inspector.ResultRow{row("device", "vda", "", 10), row("process", "vda", "7", 3), row("process", "vda", "8", 4), row("process", "vda", "7", 3)}, 7},
		"the kernel does most": {[]inspector.ResultRow{row("device", "vda", "", 10), row("process", "vda", "", 8), row("process", "vda", "7", 2)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			next := deviceNext(&inspector.TaskResult{Rows: tt.rows}, "vda")
			if tt.pid == 0 && len(next) != 0 || tt.pid != 0 && (len(next) != 1 || next[0].Tool != storage.MonitorProcessIO || next[0].Args[storage.ArgPid] != tt.pid) {
				t.Errorf("%+v, want pid %d", next, tt.pid)
			}
		})
	}
	rows := []inspector.ResultRow{{Labels: map[string]string{labelRow: "thread"}, Count: 100}, row("requests", "vda", "7", 4), row("requests", "vdb", "7", 3), row("requests", "vdb", "7", 3)}
	if next := processNext(rows); len(next) != 1 || next[0].Args[storage.ArgDevice] != "vdb" {
		t.Errorf("%+v, want vdb", next)
	}
	if next := processNext(rows[:1]); next != nil {
		t.Errorf("without a request: %+v", next)
	}
}

package probe

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// diskStat is /sys/block/DEVICE/stat as far as requests do not tell it.
type diskStat struct {
	merges [3]uint64 // reads, writes, discards
	busy   uint64    // ms with a request under way, of 32 bits
	waited uint64    // ms, summed over requests, of 32 bits
}

func readStat(dir string) (s diskStat, err error) {
	b, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return s, err
	}
	f := bytes.Fields(b)
	if len(f) < 11 {
		return s, fmt.Errorf("%s/stat has %d fields", dir, len(f))
	}
	for at, to := range map[int]*uint64{1: &s.merges[0], 5: &s.merges[1], 12: &s.merges[2], 9: &s.busy, 10: &s.waited} {
		if at < len(f) {
			if *to, err = strconv.ParseUint(string(f[at]), 10, 64); err != nil {
				return s, err
			}
		}
	}
	return s, nil
}

// processRows is how many rows of processes a device's result has: room is
// left for what the device itself does.
const processRows = inspector.MaxResultRows - 1 - len(storage.Operations)

// deviceIO does monitor_device_io.
func (t *tasks) deviceIO(ctx context.Context, args inspector.Args, partial func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
	if err := t.allowed(storage.SignalRequests); err != nil {
		return nil, err
	}
	w := sampling(args)
	var err error
	if w.device, err = findDisk(t.cfg.Sys, args.Text(storage.ArgDevice)); err != nil {
		return nil, err
	}
	if err := w.device.requestless(); err != nil {
		return nil, err
	}
	tr, err := openTracer(t.cfg.Kernel, w, t.ring, pidNamespace(t.cfg.Proc), t.log)
	if err != nil {
		return nil, err
	}
	before, blind := readStat(w.device.dir)
	n := newNamer(t.cfg.Sys)
	return t.watch(ctx, tr, args, partial, func(s *seen, final bool) *inspector.TaskResult {
		r := &inspector.TaskResult{Totals: map[string]uint64{}}
		device := deviceRow(tr, s)
		if after, err := readStat(w.device.dir); blind == nil && err == nil {
			addStat(r, &device, before, after, s.at.Sub(tr.began))
		} else {
			r.Notes = append(r.Notes, "Merges and the time in the queue are unknown: the device's stat cannot be read, it may be gone.")
		}
		r.Rows = append(r.Rows, device)
		operationRows(r, s, w.device.name)
		tr.top(r, s, n, "process", processRows)
		slices.SortStableFunc(r.Rows, func(a, b inspector.ResultRow) int { return cmpUint(b.Count, a.Count) })
		tr.account(r, s)
		r.Notes = append(r.Notes, "The row of the device, those of operations and those of processes count the same requests: they do not add up.")
		if on, err := os.ReadFile(filepath.Join(w.device.queue(), "iostats")); err == nil && string(bytes.TrimSpace(on)) == "0" {
			r.Notes = append(r.Notes, "The device's queue/iostats is 0: its own stat file does not count, this result does.")
		}
		if final {
			tr.samples(r, n)
			r.Next = deviceNext(r, w.device.name)
		}
		return r
	}, nil)
}

// queue is the sysfs folder of the request queue.
func (d disk) queue() string {
	if d.part != 0 {
		return filepath.Join(filepath.Dir(d.dir), "queue")
	}
	return filepath.Join(d.dir, "queue")
}

func deviceRow(tr *tracer, s *seen) inspector.ResultRow {
	var sum traceTotals
	for i := range s.all {
		sum.plus(&s.all[i])
	}
	v := sum.values()
	if took := s.at.Sub(tr.began).Seconds(); took > 0 {
		v["requests_per_s"], v["bytes_per_s"] = float64(sum.Requests)/took, float64(sum.Bytes)/took
	}
	v["errors"] = float64(sum.Errors)
	if tr.owners {
		v["most_under_way"] = float64(s.counts[countMostUnderWay])
	}
	return inspector.ResultRow{Labels: map[string]string{labelRow: "device", labelDevice: tr.wanted.device.name}, Count: sum.Requests, Values: v}
}

func addStat(r *inspector.TaskResult, row *inspector.ResultRow, before, after diskStat, took time.Duration) {
	for i, name := range storage.Operations[:len(before.merges)] {
		r.Totals[name+"_merges"] = after.merges[i] - before.merges[i]
	}
	if took > 0 {
		busy, waited := uint32(after.busy-before.busy), uint32(after.waited-before.waited) // they wrap
		row.Values["busy_ratio"] = min(float64(busy)/1e3/took.Seconds(), 1)
		row.Values["avg_under_way"] = float64(waited) / 1e3 / took.Seconds()
	}
}

func operationRows(r *inspector.TaskResult, s *seen, device string) {
	for i, op := range storage.Operations {
		t := &s.all[i]
		r.Totals[op+"_requests"], r.Totals[op+"_errors"] = t.Requests, t.Errors
		if op != "flush" {
			r.Totals[op+"_bytes"] = t.Bytes
		}
		if t.Requests|t.Errors == 0 {
			continue
		}
		row := inspector.ResultRow{Labels: map[string]string{labelRow: "operation", labelDevice: device, labelOperation: op}, Count: t.Requests, Values: t.values()}
		t.histogram(func(name string, n uint64) { row.Values[name] = float64(n) })
		r.Rows = append(r.Rows, row)
	}
}

func deviceNext(r *inspector.TaskResult, device string) []inspector.NextStep {
	var next []inspector.NextStep
	if pid, ok := most(r.Rows); ok {
		next = append(next, inspector.NextStep{Tool: storage.MonitorProcessIO, Args: map[string]any{storage.ArgPid: pid},
			Why: "this process makes most of the device's requests"})
	}
	for _, row := range r.Rows {
		if row.Labels[labelRow] == "device" && row.Values["p99_ms"] >= 10 {
			next = append(next, inspector.NextStep{Tool: storage.TraceSlowIO, Args: map[string]any{storage.ArgDevice: device},
				Why: "1 in 100 requests takes 10 ms or more: see whose they are"})
		}
	}
	return next
}

// most is the process that makes more than half of a device's requests.
func most(rows []inspector.ResultRow) (pid int64, ok bool) {
	var all uint64
	by := map[string]uint64{}
	for _, row := range rows {
		switch row.Labels[labelRow] {
		case "device":
			all = row.Count
		case "process":
			by[row.Labels[labelPid]] += row.Count
		}
	}
	for text, n := range by {
		if p, err := strconv.ParseInt(text, 10, 64); err == nil && n > all/2 {
			return p, true
		}
	}
	return 0, false
}

// busiest is the process of the first row that has one.
func busiest(rows []inspector.ResultRow) (pid int64, ok bool) {
	for _, row := range rows {
		if p, err := strconv.ParseInt(row.Labels[labelPid], 10, 64); err == nil {
			return p, true
		}
	}
	return 0, false
}

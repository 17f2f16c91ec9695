package probe

import (
	"context"
	"fmt"
	"slices"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// connectionTotals name the task's own counts in the order of
// bpf/connections_trace.bpf.c.
var connectionTotals = []string{"active_opens", "passive_opens", "failed_opens", "established_resets", "closes", "resets_in", "resets_out", "bytes_sent", "bytes_received", "ended_sockets"}

// What a sample tells, by its number there.
var connectionEvents = []string{"", "opened", "accepted", "failed", "aborted", "closed", "reset_in", "reset_out", "ended"}

var directions = []string{"", "out", "in"}

// connectionTask is monitor_tcp_connections.
type connectionTask struct {
	kept   keep[connectionsTaskSample]
	before map[uint64]standing // what was open when the task began
}

func (t *tracer) connections(ctx context.Context, args inspector.Args, partial func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
	d := &connectionTask{}
	return t.run(ctx, args, partial, func(tr *trace) error {
		own := []string{"trace_state", "trace_end", "trace_reset_in", "trace_reset_out"}
		programs := slices.Clone(owning)
		for _, p := range own {
			programs = append(programs, bpfload.Program{Name: p})
		}
		programs = append(programs, bpfload.Program{Name: "list_standing", Attach: bpfload.Iterator})
		tr.plan = plan{load: loadConnectionsTask, vars: map[string]any{}, budget: 5_000_000, sample: d.sample, result: d.result, begin: d.begin, programs: programs, needed: own}
		return nil
	})
}

func (d *connectionTask) sample(raw []byte) {
	if d.kept.full() {
		d.kept.passed++
	} else if s, ok := decode[connectionsTaskSample](raw); ok {
		d.kept.add(fmt.Sprint(s.What, s.Direction, s.T.B, min(s.T.Aport, s.T.Bport)), s)
	}
}

// begin remembers what is open.
func (d *connectionTask) begin(tr *trace) {
	var err error
	if d.before, _, err = tr.listStanding(); err != nil {
		tr.log.Debug("open connections not listed", "error", err)
	}
}

func (d *connectionTask) result(tr *trace, r *inspector.TaskResult) error {
	for i, name := range connectionTotals {
		r.Totals[name] = tr.counts[taskCounts+i]
	}
	rows := &rowset{}
	var key connectionsTaskGroup
	var v connectionsTaskTally
	it := tr.set.Map("groups").Iterate()
	for it.Next(&key, &v) {
		labels := d.labels(tr, key.Direction, key.Netns, owner(v.Owner), v.Cgroup2)
		put(labels, "remote", addr(key.Family, key.Remote))
		putPort(labels, "port", key.Port)
		row := rows.row(labels, v.Opened+v.Failed+v.Aborted+v.Closed+v.ResetsIn+v.ResetsOut, false)
		for name, n := range map[string]uint64{"opened": v.Opened, "failed": v.Failed, "aborted": v.Aborted, "closed": v.Closed, "resets_in": v.ResetsIn, "resets_out": v.ResetsOut,
			"ended": v.Ended, "bytes_sent": v.Sent, "bytes_received": v.Received} {
			row.Values[name] += float64(n)
		}
		if v.SrttCount > 0 {
			row.Values["srtt_avg_us"] = float64(v.SrttSum) / float64(v.SrttCount) / 8
			row.Values["srtt_max_us"] = max(row.Values["srtt_max_us"], float64(v.SrttMax)/8)
		}
		if v.LivedCount > 0 {
			row.Values["lifetime_avg_ms"] = float64(v.LivedSum) / float64(v.LivedCount) / 1e6
			row.Values["lifetime_max_ms"] = max(row.Values["lifetime_max_ms"], float64(v.LivedMax)/1e6)
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("connections: %w", err)
	}
	// The many clients of one service say less than the service.
	if rows.fold(func(row *inspector.ResultRow) string {
		delete(row.Values, "srtt_avg_us") // averages do not add up
		delete(row.Values, "lifetime_avg_ms")
		if row.Labels["direction"] == "in" {
			return "remote"
		}
		return ""
	}) {
		r.Notes = append(r.Notes, "the remote addresses of incoming connections are left out, to show more in fewer rows")
	}
	rows.finish(r, tr.counts[countOverflow])
	if tr.naming != nil {
		d.goingOn(tr, r)
	}
	r.Truncated += d.kept.passed
	for i := range d.kept.samples {
		r.Samples = append(r.Samples, d.show(tr, &d.kept.samples[i]))
	}
	r.Notes = append(r.Notes, "in rows of what happened, bytes and round-trip times are of sockets that ended, over their whole life; a SYN and a FIN count one byte each")
	r.Next = d.next(r)
	return nil
}

func (d *connectionTask) labels(tr *trace, direction uint8, netns uint32, o owner, cgroup2 uint64) map[string]string {
	labels := map[string]string{}
	if int(direction) < len(directions) {
		put(labels, "direction", directions[direction])
	}
	tr.putNetns(labels, netns)
	tr.putOwner(labels, o, cgroup2)
	return labels
}

func (d *connectionTask) show(tr *trace, s *connectionsTaskSample) inspector.ResultSample {
	labels := d.labels(tr, s.Direction, s.Netns, owner(s.Owner), s.Cgroup2)
	if int(s.What) < len(connectionEvents) {
		put(labels, "event", connectionEvents[s.What])
	}
	putTuple(labels, s.T, "local", "remote")
	out := inspector.ResultSample{At: wallClock(s.At), Labels: labels}
	if connectionEvents[len(connectionEvents)-1] == labels["event"] {
		out.Values = map[string]float64{"bytes_sent": float64(s.Sent), "bytes_received": float64(s.Received)}
		if s.SrttUs > 0 {
			out.Values["srtt_us"] = float64(s.SrttUs) / 8
		}
		if s.Lived > 0 {
			out.Values["lifetime_ms"] = float64(s.Lived) / 1e6
		}
	}
	return out
}

func (d *connectionTask) next(r *inspector.TaskResult) []inspector.NextStep {
	for _, row := range r.Rows {
		if row.Values["failed"]+row.Values["aborted"]+row.Values["resets_in"]+row.Values["resets_out"] == 0 {
			continue
		}
		args := map[string]any{}
		if port := lowerPort(row.Labels["port"], ""); port > 0 {
			args[network.ArgPort] = port
		}
		return []inspector.NextStep{
			{Tool: network.TraceDrops, Args: args, Why: "see whether packets of the connections that fail or are cut off are dropped here"},
			{Tool: network.TraceRetransmits, Args: args, Why: "see whether these connections lose segments on the way"},
		}
	}
	return nil
}

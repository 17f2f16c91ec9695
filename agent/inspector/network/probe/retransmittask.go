package probe

import (
	"context"
	"fmt"
	"slices"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// Slots of the task's own counts, as in bpf/retransmits_trace.bpf.c.
const (
	countSegments = taskCounts + iota
	countEvents
)

// retransmitTask is trace_tcp_retransmits.
type retransmitTask struct {
	kept keep[retransmitsTaskSample]
}

func (t *tracer) retransmits(ctx context.Context, args inspector.Args, partial func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
	d := &retransmitTask{}
	return t.run(ctx, args, partial, func(tr *trace) error {
		tr.plan = plan{load: loadRetransmitsTask, vars: map[string]any{"has_retransmit_err": tr.facts.retransmitErr}, budget: 5_000_000, sample: d.sample, result: d.result,
			programs: append(slices.Clone(owning), bpfload.Program{Name: "trace_retransmit"}, bpfload.Program{Name: "trace_synack"}),
			needed:   []string{"trace_retransmit", "trace_synack"}}
		return nil
	})
}

func (d *retransmitTask) sample(raw []byte) {
	if d.kept.full() {
		d.kept.passed++
	} else if s, ok := decode[retransmitsTaskSample](raw); ok {
		d.kept.add(fmt.Sprint(s.G), s)
	}
}

func (d *retransmitTask) result(tr *trace, r *inspector.TaskResult) error {
	r.Totals["segments"], r.Totals["events"] = tr.counts[countSegments], tr.counts[countEvents]
	rows := &rowset{}
	var key retransmitsTaskGroup
	var val retransmitsTaskTally
	it := tr.set.Map("groups").Iterate()
	for it.Next(&key, &val) {
		o := owner(val.Owner)
		if o.Pid == 0 && val.Cookie != 0 {
			var late retransmitsTaskOwner // found in the open files since
			if tr.set.Map("owners").Lookup(val.Cookie, &late) == nil {
				o = owner(late)
			}
		}
		row := rows.row(d.labels(tr, key, o, val.Cgroup2), val.Segments, false)
		row.Values["events"] += float64(val.Events)
		shape(row.Values, val)
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("retransmits: %w", err)
	}
	if rows.fold(ephemeral("local_port", "remote_port")) {
		r.Notes = append(r.Notes, "the higher of the two ports is left out, to show more in fewer rows")
	}
	rows.finish(r, tr.counts[countOverflow])
	r.Truncated += d.kept.passed
	for i := range d.kept.samples {
		s := &d.kept.samples[i]
		values := map[string]float64{"segments": float64(s.Segments)}
		shape(values, s.V)
		r.Samples = append(r.Samples, inspector.ResultSample{At: wallClock(s.At), Labels: d.labels(tr, s.G, owner(s.V.Owner), s.V.Cgroup2), Values: values})
	}
	r.Next = d.next(r)
	return nil
}

// shape adds what the connection looked like at its latest retransmit; a
// connection that is not established yet has no round trip to tell.
func shape(values map[string]float64, v retransmitsTaskTally) {
	set := func(name string, n float64) {
		if n > 0 {
			values[name] = n
		}
	}
	set("srtt_us", float64(v.SrttUs)/8)
	set("rttvar_us", float64(v.RttvarUs)/4)
	set("unacked", float64(v.Unacked))
	set("cwnd", float64(v.Cwnd))
}

func (d *retransmitTask) labels(tr *trace, g retransmitsTaskGroup, o owner, cgroup2 uint64) map[string]string {
	labels := map[string]string{"state": tcpState(g.State)}
	putTuple(labels, g.T, "local", "remote")
	tr.putNetns(labels, g.Netns)
	tr.putOwner(labels, o, cgroup2)
	return labels
}

func (d *retransmitTask) next(r *inspector.TaskResult) []inspector.NextStep {
	if len(r.Rows) == 0 {
		return nil
	}
	args := map[string]any{}
	if port := lowerPort(r.Rows[0].Labels["local_port"], r.Rows[0].Labels["remote_port"]); port > 0 {
		args[network.ArgPort] = port
	}
	return []inspector.NextStep{
		{Tool: network.TraceDrops, Args: args, Why: "see whether this node itself drops the packets of the connections that send again"},
		{Tool: network.MonitorTCP, Args: args, Why: "see whether these connections fail, close or are reset"},
	}
}

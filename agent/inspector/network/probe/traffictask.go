package probe

import (
	"context"
	"fmt"
	"strconv"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// Slots of the task's own counts, as in bpf/traffic_trace.bpf.c.
const (
	countRxPackets = taskCounts + iota
	countRxBytes
	countTxPackets
	countTxBytes
	countUnread
)

// trafficTask is monitor_interface_traffic.
type trafficTask struct {
	kept  keep[trafficTaskSample]
	iface string
	netns uint32
}

func (t *tracer) traffic(ctx context.Context, args inspector.Args, partial func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
	d := &trafficTask{iface: args.Text(network.ArgInterface)}
	return t.run(ctx, args, partial, d.prepare)
}

func (d *trafficTask) prepare(tr *trace) (err error) {
	of := "thread-self"
	if tr.args.Has(network.ArgPid) {
		of = strconv.FormatInt(tr.args.Int(network.ArgPid), 10)
	}
	if d.netns, err = tr.findInterface(of, d.iface); err != nil {
		return err
	}
	own := []string{"trace_begin", "trace_transmit", "trace_receive"}
	tr.plan = plan{load: loadTrafficTask, vars: map[string]any{"want_name": ifaceArg(d.iface), "want_netns": d.netns},
		budget: 20_000_000, sample: d.sample, result: d.result, needed: own}
	for _, p := range own {
		tr.plan.programs = append(tr.plan.programs, bpfload.Program{Name: p})
	}
	tr.filter.byOwner = false // the process only tells the namespace
	return nil
}

func (d *trafficTask) sample(raw []byte) {
	if d.kept.full() {
		d.kept.passed++
	} else if s, ok := decode[trafficTaskSample](raw); ok {
		d.kept.add(fmt.Sprint(s.Sent, s.T.Proto, s.T.A, s.T.B, min(s.T.Aport, s.T.Bport)), s)
	}
}

func (d *trafficTask) result(tr *trace, r *inspector.TaskResult) error {
	r.Totals["rx_packets"], r.Totals["rx_bytes"] = tr.counts[countRxPackets], tr.counts[countRxBytes]
	r.Totals["tx_packets"], r.Totals["tx_bytes"] = tr.counts[countTxPackets], tr.counts[countTxBytes]
	rows := &rowset{}
	var key trafficTaskGroup
	var v trafficTaskTally
	it := tr.set.Map("groups").Iterate()
	for it.Next(&key, &v) {
		labels := map[string]string{"protocol": protocol(key.Family, key.Proto, key.Ether)}
		put(labels, "remote", addr(key.Family, key.Remote))
		putPort(labels, "port", key.Port)
		row := rows.row(labels, v.RxPackets+v.TxPackets, false)
		row.Values["rx_packets"] += float64(v.RxPackets)
		row.Values["rx_bytes"] += float64(v.RxBytes)
		row.Values["tx_packets"] += float64(v.TxPackets)
		row.Values["tx_bytes"] += float64(v.TxBytes)
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("traffic: %w", err)
	}
	if rows.fold(func(row *inspector.ResultRow) string {
		if p, _ := strconv.Atoi(row.Labels["port"]); p >= 32768 {
			return "port" // between two clients' ports nothing tells the service
		}
		return ""
	}) {
		r.Notes = append(r.Notes, "ports of 32768 and above are left out, to show more in fewer rows")
	}
	rows.finish(r, tr.counts[countOverflow])
	r.Notes = append(r.Notes, "a packet that the kernel merged or will segment counts once, with its whole length; port is the lower of the two port numbers")
	if n := tr.counts[countUnread]; n > 0 {
		r.Unknown += n
		r.Notes = append(r.Notes, fmt.Sprintf("%d packets sent had no readable headers; they are in the totals and under protocol unknown", n))
	}
	r.Truncated += d.kept.passed
	for i := range d.kept.samples {
		s := &d.kept.samples[i]
		labels := map[string]string{"direction": "rx", "protocol": protocol(s.T.Family, s.T.Proto, s.T.Ether)}
		if s.Sent != 0 {
			labels["direction"] = "tx"
		}
		putTuple(labels, s.T, "source", "destination")
		r.Samples = append(r.Samples, inspector.ResultSample{At: wallClock(s.At), Labels: labels, Values: map[string]float64{"bytes": float64(s.Len)}})
	}
	for _, row := range r.Rows {
		if row.Labels["protocol"] == "tcp" && row.Labels["port"] != "" {
			r.Next = []inspector.NextStep{{Tool: network.MonitorTCP, Args: map[string]any{network.ArgPort: lowerPort(row.Labels["port"], "")},
				Why: "see which processes have the connections that move the most here"}}
			break
		}
	}
	return nil
}

package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
	"github.com/telltale-dev/telltale/agent/symbols"
)

// Slots of the task's own counts, as in bpf/drops_trace.bpf.c.
const (
	countNoName  = taskCounts + iota // on an interface whose name is not known
	countClaimed                     // whose owner was unknown at first
	countHidden                      // that only the filter by interface kept out
)

// dropTask is trace_network_drops.
type dropTask struct {
	kept  keep[dropsTaskSample]
	names map[uint64]string            // of kernel addresses
	here  map[uint32]string            // interfaces of the agent's own namespace
	there map[uint32]map[uint32]string // of others, by namespace and index
	note  string
}

func (t *tracer) drops(ctx context.Context, args inspector.Args, partial func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
	d := &dropTask{names: map[uint64]string{}}
	return t.run(ctx, args, partial, d.prepare)
}

func (d *dropTask) prepare(tr *trace) error {
	f := tr.facts
	vars := map[string]any{
		"reason_not_specified": f.reasons.value("NOT_SPECIFIED"),
		"reason_no_socket":     f.reasons.value("NO_SOCKET"),
		"reason_queue_purge":   f.reasons.value("QUEUE_PURGE"),
		"has_rx_sk":            f.rxSock,
		"own_netns":            f.netns,
	}
	if name := tr.args.Text(network.ArgReason); name != "" {
		v, err := f.reasons.reasonArg(name)
		if err != nil {
			return invalid(network.ArgReason, "this node's kernel has no such drop reason; it knows "+f.reasons.like(name), "give one of the kernel's own names, or none")
		}
		vars["by_reason"], vars["want_reason"] = true, v
	}
	var err error
	if d.here, err = ownInterfaces(); err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	if name := tr.args.Text(network.ArgInterface); name != "" {
		vars["want_name"] = ifaceArg(name)
		for index, n := range d.here {
			if n == name {
				vars["want_ifindex"] = index
			}
		}
		if vars["want_ifindex"] == nil {
			d.note = "the agent's own network namespace has no interface of this name; other namespaces were looked at too"
		}
	}
	tr.plan = plan{load: loadDropsTask, vars: vars, budget: 5_000_000, sample: d.sample, result: d.result,
		programs: append(slices.Clone(owning), bpfload.Program{Name: "trace_claim"}, bpfload.Program{Name: "trace_drop"}), needed: []string{"trace_drop"}, claimed: countClaimed}
	return nil
}

// like lists reasons that resemble a name, or some that are common.
func (r reasons) like(name string) string {
	var out []string
	for _, part := range strings.FieldsFunc(strings.ToUpper(name), func(c rune) bool { return c < 'A' || c > 'Z' }) {
		for _, n := range r {
			if len(part) > 2 && strings.Contains(n, part) && !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	if len(out) == 0 {
		for _, row := range expected {
			if r.value(row.reason) != ^uint32(0) && !slices.Contains(out, row.reason) {
				out = append(out, row.reason)
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out[:min(8, len(out))], ", ")
}

func (d *dropTask) sample(raw []byte) {
	if d.kept.full() {
		d.kept.passed++
	} else if s, ok := decode[dropsTaskSample](raw); ok {
		d.kept.add(fmt.Sprint(s.G.Reason, s.G.Location, s.G.Netns, s.G.T.Bport, s.G.T.Aport < s.G.T.Bport), s)
	}
}

type dropGroup struct {
	key dropsTaskGroup
	val dropsTaskTally
}

func (d *dropTask) result(tr *trace, r *inspector.TaskResult) error {
	var groups []dropGroup
	var g dropGroup
	it := tr.set.Map("groups").Iterate()
	for it.Next(&g.key, &g.val) {
		groups = append(groups, g)
	}
	rest := map[dropsTaskRestKey]uint64{}
	var key dropsTaskRestKey
	var n uint64
	more := tr.set.Map("rest").Iterate()
	for more.Next(&key, &n) {
		rest[key] = n
	}
	if err := errors.Join(it.Err(), more.Err()); err != nil {
		return fmt.Errorf("drops: %w", err)
	}
	d.resolve(tr, r, groups, rest)
	rows := &rowset{}
	for _, g := range groups {
		rows.row(d.labels(tr, g.key, owner(g.val.Owner), g.val.Cgroup2), g.val.Packets, g.key.Benign != 0).Values["bytes"] += float64(g.val.Bytes)
		d.total(r, g.key.Benign != 0, g.val.Packets)
	}
	// Without a tuple they are no fewer packets: a row for each reason.
	named := uint64(0)
	for k, n := range rest {
		labels := map[string]string{"reason": tr.facts.reasons.name(k.Reason)}
		put(labels, "location", d.names[k.Location])
		rows.row(labels, n, k.Benign != 0)
		d.total(r, k.Benign != 0, n)
		named += n
	}
	overflow := tr.counts[countOverflow]
	if rows.fold(ephemeral("source_port", "destination_port")) {
		r.Notes = append(r.Notes, "the higher of the two ports is left out, to show more in fewer rows")
	}
	rows.finish(r, overflow-min(overflow, named))
	if named > 0 {
		r.Notes = append(r.Notes, "there were more groups than the kernel had room for: rows without addresses hold the rest")
	}
	if n := tr.counts[countNoName]; n > 0 {
		r.Unknown += n
		r.Notes = append(r.Notes, fmt.Sprintf("%d drops were on interfaces whose name could not be told", n))
	}
	if d.note != "" {
		r.Notes = append(r.Notes, d.note)
	}
	if note, err := d.hidden(tr, r); err != nil {
		return err
	} else if note != "" {
		r.Notes = append(r.Notes, note)
	}
	d.samples(tr, r)
	r.Next = d.next(r)
	return nil
}

func (d *dropTask) total(r *inspector.TaskResult, benign bool, n uint64) {
	r.Totals["packets"] += n
	if benign {
		r.Totals["benign_packets"] += n
	} else {
		r.Totals["harmful_packets"] += n
	}
}

// ephemeral names the port label with the higher number: a client's, as a rule.
func ephemeral(a, b string) func(*inspector.ResultRow) string {
	return func(r *inspector.ResultRow) string {
		pa, pb := r.Labels[a], r.Labels[b]
		switch {
		case pa == "" || pb == "":
			return ""
		case cmp.Or(cmp.Compare(len(pa), len(pb)), cmp.Compare(pa, pb)) > 0:
			return a
		}
		return b
	}
}

func (d *dropTask) labels(tr *trace, g dropsTaskGroup, o owner, cgroup2 uint64) map[string]string {
	labels := map[string]string{"reason": tr.facts.reasons.name(g.Reason), "protocol": protocol(g.T.Family, g.T.Proto, g.T.Ether)}
	put(labels, "location", d.names[g.Location])
	if name := cString(g.Ifname[:]); name != "" {
		put(labels, "interface", name)
	} else if g.Ifindex != 0 {
		d.putInterface(tr, labels, g.Netns, g.Ifindex)
	}
	putTuple(labels, g.T, "source", "destination")
	tr.putNetns(labels, g.Netns)
	tr.putOwner(labels, o, cgroup2)
	return labels
}

// resolve names the kernel addresses that have no name yet, in one pass.
func (d *dropTask) resolve(tr *trace, r *inspector.TaskResult, groups []dropGroup, rest map[dropsTaskRestKey]uint64) {
	ctx, ok := tr.mayName(r.From)
	if !ok {
		return
	}
	var missing []uint64
	want := func(a uint64) {
		if _, known := d.names[a]; !known && a != 0 {
			d.names[a] = ""
			missing = append(missing, a)
		}
	}
	for _, g := range groups {
		want(g.key.Location)
	}
	for k := range rest {
		want(k.Location)
	}
	for _, s := range d.kept.samples {
		want(s.G.Location)
		for _, a := range s.stack() {
			want(a)
		}
	}
	if len(missing) == 0 {
		return
	}
	table, err := symbols.KernelAt(tr.cfg.Proc + "/kallsyms")
	if err != nil {
		tr.log.Debug("kernel addresses have no names", "error", err)
		return
	}
	for a, name := range table.Names(ctx, missing) {
		d.names[a] = name
	}
}

// stack is the part of the sample's stack that is filled.
func (s *dropsTaskSample) stack() []uint64 {
	n := min(max(int(s.Frames), 0)/8, len(s.Stack))
	return s.Stack[:n]
}

func (d *dropTask) samples(tr *trace, r *inspector.TaskResult) {
	r.Truncated += d.kept.passed
	for i := range d.kept.samples {
		s := &d.kept.samples[i]
		r.Samples = append(r.Samples, inspector.ResultSample{At: wallClock(s.At), Labels: d.labels(tr, s.G, owner(s.Owner), s.Cgroup2),
			Values: map[string]float64{"bytes": float64(s.Len)}, Stack: d.frames(s)})
	}
}

// frames are the names of a stack, beginning where the packet was dropped
// and not in the tracing of it.
func (d *dropTask) frames(s *dropsTaskSample) []string {
	var out []string
	for _, a := range s.stack() {
		name := d.names[a]
		if a != 0 && name == "" {
			name = "unknown"
		}
		switch {
		case a == 0, strings.HasPrefix(name, "bpf_"), strings.HasPrefix(name, "__bpf_"), strings.HasPrefix(name, "__traceiter_"):
			if len(out) == 0 {
				continue
			}
		}
		if len(out) == 0 && name == "unknown" {
			continue // the program itself
		}
		out = append(out, name)
	}
	return out[:min(len(out), inspector.MaxStackDepth)]
}

func (d *dropTask) next(r *inspector.TaskResult) []inspector.NextStep {
	for _, row := range r.Rows {
		if row.Benign {
			continue
		}
		if row.Labels["protocol"] == "tcp" {
			if port := lowerPort(row.Labels["source_port"], row.Labels["destination_port"]); port > 0 {
				return []inspector.NextStep{{Tool: network.TraceRetransmits, Args: map[string]any{network.ArgPort: port},
					Why: "TCP sends again what is dropped: see which connections on this port suffer"}}
			}
		}
		return []inspector.NextStep{{Tool: "metrics_summary", Args: map[string]any{"module": network.Name},
			Why: "see whether " + row.Labels["reason"] + " goes with more traffic, retransmits or full queues"}}
	}
	return nil
}

package probe

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// maxRows is how many interfaces, and how many reasons, have series of their
// own; the others are folded into "other".
const maxRows = 32

// rows gathers one window's series and values.
type rows struct {
	series    []inspector.Series
	values    []inspector.Value
	samples   uint64
	truncated uint64
}

func (o *rows) delta(metric string, unit inspector.Unit, v inspector.Value, labels ...inspector.Label) {
	o.series = append(o.series, inspector.Series{Metric: metric, Kind: inspector.Delta, Unit: unit, Labels: labels})
	o.values = append(o.values, v)
	if unit == inspector.Count {
		o.samples += v.Delta
	}
}

// flat lists the label-free counters with their units and signals.
var flat = []struct {
	metric, signal string
	unit           inspector.Unit
}{
	{"network.tcp_active_opens", network.Opens, inspector.Count},
	{"network.tcp_passive_opens", network.Opens, inspector.Count},
	{"network.tcp_failed_opens", network.Opens, inspector.Count},
	{"network.tcp_established_resets", network.Opens, inspector.Count},
	{"network.tcp_closes", network.Closes, inspector.Count},
	{"network.tcp_sent_bytes", network.SocketEnds, inspector.Bytes},
	{"network.tcp_received_bytes", network.SocketEnds, inspector.Bytes},
	{"network.tcp_resets_in", network.ResetsIn, inspector.Count},
	{"network.tcp_resets_out", network.ResetsOut, inspector.Count},
	{"network.retransmit_segments", network.Retransmits, inspector.Count},
	{"network.listen_overflows", network.ListenOverflows, inspector.Count},
	{"network.listen_drops", network.ListenOverflows, inspector.Count},
}

// increase turns two readings into a window's rows. Every metric of the
// component is there; one whose signal is off, or whose counter is missing
// or started again, is unknown.
func increase(from, to *reading, on map[string]bool) *rows {
	o := &rows{}
	for _, f := range flat {
		v := inspector.Value{}
		if on[f.signal] {
			v = counterDelta(from.counters, to.counters, f.metric)
		}
		o.delta(f.metric, f.unit, v)
	}
	o.established(to, on[network.Established])
	o.srtt(from, to, on[network.SocketEnds])
	o.drops(from, to, on[network.Drops])
	o.interfaces(from, to, on[network.Interfaces])
	return o
}

func counterDelta(from, to map[string]uint64, name string) inspector.Value {
	a, ok1 := from[name]
	b, ok2 := to[name]
	if !ok1 || !ok2 || b < a {
		return inspector.Value{}
	}
	return inspector.Value{OK: true, Delta: b - a}
}

func (o *rows) established(to *reading, on bool) {
	o.series = append(o.series, inspector.Series{Metric: "network.tcp_established", Kind: inspector.Gauge, Unit: inspector.Count})
	v := inspector.Value{}
	if on && to.established != nil {
		v = inspector.Value{OK: true, Gauge: *to.established}
	}
	o.values = append(o.values, v)
}

func (o *rows) srtt(from, to *reading, on bool) {
	o.series = append(o.series, inspector.Series{Metric: "network.tcp_srtt", Kind: inspector.Histogram, Unit: inspector.Nanoseconds})
	v := inspector.Value{}
	sum := counterDelta(from.counters, to.counters, "network.tcp_srtt")
	if on && sum.OK && len(from.srtt) == len(to.srtt) {
		v = inspector.Value{OK: true, Sum: sum.Delta}
		used := 0
		for i := range to.srtt {
			v.Hist = append(v.Hist, to.srtt[i]-min(from.srtt[i], to.srtt[i]))
			if v.Hist[i] > 0 {
				used = i + 1
			}
		}
		v.Hist = v.Hist[:used]
	}
	o.values = append(o.values, v)
}

func (o *rows) drops(from, to *reading, on bool) {
	if !on || from.drops == nil || to.drops == nil {
		o.delta("network.packets_dropped", inspector.Count, inspector.Value{})
		return
	}
	order := slices.SortedFunc(maps.Keys(to.drops), func(a, b dropRow) int {
		return cmp.Or(cmp.Compare(to.drops[b], to.drops[a]), cmp.Compare(a.reason, b.reason), cmp.Compare(a.location, b.location))
	})
	var harmful uint64
	own := map[dropRow]uint64{}
	for i, row := range order {
		n := to.drops[row] - min(from.drops[row], to.drops[row])
		if !row.benign {
			harmful += n
		}
		if i >= maxRows {
			row = dropRow{reason: "other", benign: row.benign}
			o.truncated++
		}
		own[row] += n
	}
	o.delta("network.packets_dropped", inspector.Count, inspector.Value{OK: true, Delta: harmful})
	for row, n := range own {
		labels := []inspector.Label{{Key: "benign", Value: strconv.FormatBool(row.benign)}, label("reason", row.reason)}
		if row.location != "" {
			labels = append(labels, label("location", row.location))
		}
		o.delta("network.drops", inspector.Count, inspector.Value{OK: true, Delta: n}, labels...)
	}
	o.samples -= harmful // counted once, by reason
}

func (o *rows) interfaces(from, to *reading, on bool) {
	if !on || from.interfaces == nil || to.interfaces == nil {
		o.delta("network.rx_bytes", inspector.Bytes, inspector.Value{})
		o.delta("network.tx_bytes", inspector.Bytes, inspector.Value{})
		return
	}
	order := slices.SortedFunc(maps.Keys(to.interfaces), func(a, b ifaceKey) int {
		return cmp.Or(cmp.Compare(to.interfaces[b].bytes(), to.interfaces[a].bytes()), cmp.Compare(a.name, b.name), cmp.Compare(a.index, b.index))
	})
	var total traffic
	own := map[string]traffic{}
	unknown := map[string]bool{}
	for i, key := range order {
		d, ok := to.interfaces[key].since(from.interfaces[key])
		if _, before := from.interfaces[key]; !before && key.index == 0 && key.name != "other" {
			// /proc: an interface that moved here brings its past along.
			ok = false
		}
		if ok && key.name != "lo" {
			total = total.add(d)
		}
		name := key.name
		if i >= maxRows {
			name = "other"
			o.truncated++
		}
		if !ok {
			unknown[name] = true
		}
		own[name] = own[name].add(d)
	}
	o.delta("network.rx_bytes", inspector.Bytes, inspector.Value{OK: true, Delta: total.rxBytes})
	o.delta("network.tx_bytes", inspector.Bytes, inspector.Value{OK: true, Delta: total.txBytes})
	for name, d := range own {
		v := func(n uint64) inspector.Value {
			if unknown[name] {
				return inspector.Value{}
			}
			return inspector.Value{OK: true, Delta: n}
		}
		lb := label("interface", name)
		o.delta("network.if_rx_bytes", inspector.Bytes, v(d.rxBytes), lb)
		o.delta("network.if_tx_bytes", inspector.Bytes, v(d.txBytes), lb)
		o.delta("network.if_rx_packets", inspector.Count, v(d.rxPackets), lb)
		o.delta("network.if_tx_packets", inspector.Count, v(d.txPackets), lb)
	}
}

func label(key, value string) inspector.Label {
	clean, _ := inspector.CleanLabel(value)
	return inspector.Label{Key: key, Value: clean}
}

// close makes the layout, or keeps the former one when no series came or
// went, and puts the values in its order.
func (o *rows) close(former *inspector.Layout) (*inspector.Layout, []inspector.Value) {
	layout := inspector.NewLayout(network.Name, slices.Clone(o.series))
	if former != nil && former.Hash == layout.Hash {
		layout = former
	}
	values := make([]inspector.Value, len(layout.Series))
	for i, s := range o.series {
		slices.SortFunc(s.Labels, func(a, b inspector.Label) int { return cmp.Compare(a.Key, b.Key) })
		values[layout.Find(s)] = o.values[i]
	}
	return layout, values
}

package probe

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// maxRows is how many interfaces, and how many reasons, have series of their
// own; the others are folded into "other".
const maxRows = 32

// choices keep what has series of its own from one window to the next.
type choices struct{ drops, interfaces inspector.Roster }

func newChoices() *choices {
	return &choices{drops: inspector.Roster{Max: maxRows}, interfaces: inspector.Roster{Max: maxRows}}
}

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
func increase(from, to *reading, on map[string]bool, chosen *choices, now time.Time) *rows {
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
	o.drops(from, to, on[network.Drops], &chosen.drops, now)
	o.interfaces(from, to, on[network.Interfaces], &chosen.interfaces, now)
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

func (o *rows) drops(from, to *reading, on bool, choice *inspector.Roster, now time.Time) {
	if !on || from.drops == nil || to.drops == nil {
		o.delta("network.packets_dropped", inspector.Count, inspector.Value{})
		return
	}
	var harmful uint64
	present := make([]inspector.Candidate, 0, len(to.drops))
	rest := map[bool]uint64{} // by benign
	byID := map[string]dropRow{}
	for row, n := range to.drops {
		d := n - min(from.drops[row], n)
		if !row.benign {
			harmful += d
		}
		if row.reason == otherRow {
			rest[row.benign] += d
			continue
		}
		byID[row.id()] = row
		present = append(present, inspector.Candidate{Name: row.id(), Weight: n})
	}
	names, other := choice.Choose(now, present, len(rest) > 0)
	add := func(row dropRow, n uint64) {
		labels := []inspector.Label{{Key: "benign", Value: strconv.FormatBool(row.benign)}, label("reason", row.reason)}
		if row.location != "" {
			labels = append(labels, label("location", row.location))
		}
		o.delta("network.drops", inspector.Count, inspector.Value{OK: true, Delta: n}, labels...)
	}
	for _, id := range names {
		row, ok := byID[id]
		if !ok {
			continue // the map of drops never forgets: not possible
		}
		add(row, to.drops[row]-min(from.drops[row], to.drops[row]))
		delete(byID, id)
	}
	for _, row := range byID {
		rest[row.benign] += to.drops[row] - min(from.drops[row], to.drops[row])
		o.truncated++
	}
	if other {
		add(dropRow{reason: otherRow}, rest[false])
		add(dropRow{reason: otherRow, benign: true}, rest[true])
	}
	o.delta("network.packets_dropped", inspector.Count, inspector.Value{OK: true, Delta: harmful})
	o.samples -= harmful // counted once, by reason
}

// line is what one series, or the row of the rest, shows of a window.
type line struct {
	traffic
	unknown, gone bool
	weight        uint64
}

func (l *line) plus(d line) {
	l.traffic = l.add(d.traffic)
	l.unknown = l.unknown || d.unknown
	l.gone = l.gone && d.gone
	l.weight += d.weight
}

func (o *rows) interfaces(from, to *reading, on bool, choice *inspector.Roster, now time.Time) {
	if !on || from.interfaces == nil || to.interfaces == nil {
		o.delta("network.rx_bytes", inspector.Bytes, inspector.Value{})
		o.delta("network.tx_bytes", inspector.Bytes, inspector.Value{})
		return
	}
	total, ok := to.unnamed.since(from.unnamed)
	rest := &line{traffic: total, unknown: !ok}
	lines := map[string]*line{}
	for key, i := range to.interfaces {
		old, before := from.interfaces[key]
		d, ok := i.since(old.traffic)
		if !before && key.index == 0 {
			ok = false // /proc: an interface that moved here brings its past along
		}
		if i.gone && d == (traffic{}) {
			continue
		}
		if !ok {
			d = traffic{}
		}
		if i.name != "lo" {
			total = total.add(d)
		}
		if lines[i.name] == nil {
			lines[i.name] = &line{gone: true}
		}
		lines[i.name].plus(line{traffic: d, unknown: !ok, gone: i.gone, weight: i.bytes()})
	}
	o.delta("network.rx_bytes", inspector.Bytes, inspector.Value{OK: true, Delta: total.rxBytes})
	o.delta("network.tx_bytes", inspector.Bytes, inspector.Value{OK: true, Delta: total.txBytes})
	var present []inspector.Candidate
	for name, l := range lines {
		present = append(present, inspector.Candidate{Name: name, Weight: l.weight, Fleeting: l.gone})
	}
	names, other := choice.Choose(now, present, to.unnamed != traffic{})
	for _, name := range names {
		l := lines[name]
		if l == nil {
			l = &line{unknown: true} // gone, and the layout may not change yet
		}
		o.line(name, l)
		delete(lines, name)
	}
	for _, l := range lines {
		rest.plus(*l)
		o.truncated++
	}
	if other {
		o.line(otherRow, rest)
	}
}

func (o *rows) line(name string, l *line) {
	v := func(n uint64) inspector.Value {
		if l.unknown {
			return inspector.Value{}
		}
		return inspector.Value{OK: true, Delta: n}
	}
	lb := label("interface", name)
	o.delta("network.if_rx_bytes", inspector.Bytes, v(l.rxBytes), lb)
	o.delta("network.if_tx_bytes", inspector.Bytes, v(l.txBytes), lb)
	o.delta("network.if_rx_packets", inspector.Count, v(l.rxPackets), lb)
	o.delta("network.if_tx_packets", inspector.Count, v(l.txPackets), lb)
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

package probe

import (
	"maps"
	"slices"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// maxDevices bounds the devices shown by name, equal to the map's bound:
// with Other and all totals they stay below inspector.MaxSeries.
const maxDevices = 60

// series keeps the layout and says which value stands where in it.
type series struct {
	offered func(signal string) bool
	ops     map[string][len(storage.Operations)]bool // shown, by device
	layout  *inspector.Layout
	slots   []slot // parallel to layout.Series
}

type slot struct {
	metric, device string
	op             int
}

func newSeries(offered func(signal string) bool) *series {
	return &series{offered: offered, ops: map[string][len(storage.Operations)]bool{}}
}

// values lays one window's increases out. The layout is the same pointer as
// before unless a device or an operation came or went.
func (s *series) values(seen map[string]*device, w *inspector.Window, works func(signal string) bool) (*inspector.Layout, []inspector.Value) {
	s.fold(seen, w)
	if s.update(seen) || s.layout == nil {
		s.build()
	}
	requests, latency, errs := works(storage.SignalRequests), works(storage.SignalLatency), works(storage.SignalErrors)
	var all totals
	for _, d := range seen {
		for i := range d {
			all.ios += d[i].ios
			all.bytes += d[i].bytes
			all.errors += d[i].errors
		}
	}
	w.Samples = all.ios + all.errors
	values := make([]inspector.Value, len(s.slots))
	for i, sl := range s.slots {
		t := &all
		if sl.device != "" {
			t = &seen[sl.device][sl.op]
		}
		switch sl.metric {
		case storage.IOs, storage.TotalIOs:
			values[i] = inspector.Value{OK: requests && !t.unknown, Delta: t.ios}
		case storage.Bytes, storage.TotalBytes:
			values[i] = inspector.Value{OK: requests && !t.unknown, Delta: t.bytes}
		case storage.Errors, storage.TotalErrors:
			values[i] = inspector.Value{OK: errs, Delta: t.errors}
		case storage.LatencyNS:
			values[i] = inspector.Value{OK: latency, Sum: t.latencySum, Hist: trim(t.latency[:])}
		}
		if !values[i].OK {
			values[i] = inspector.Value{}
		}
	}
	return s.layout, values
}

func trim(h []uint64) []uint64 {
	n := len(h)
	for n > 0 && h[n-1] == 0 {
		n--
	}
	return h[:n]
}

// fold adds the devices beyond the bound, last names first, to Other.
func (s *series) fold(seen map[string]*device, w *inspector.Window) {
	names := slices.Sorted(maps.Keys(seen))
	names = slices.DeleteFunc(names, func(n string) bool { return n == storage.Other })
	if len(names) <= maxDevices {
		return
	}
	rest := seen[storage.Other]
	if rest == nil {
		rest = &device{}
		seen[storage.Other] = rest
	}
	for _, n := range names[maxDevices:] {
		for i, t := range seen[n] {
			r := &rest[i]
			r.ios += t.ios
			r.bytes += t.bytes
			r.errors += t.errors
			r.latencySum += t.latencySum
			for b := range t.latency {
				r.latency[b] += t.latency[b]
			}
		}
		delete(seen, n)
		w.Truncated++
	}
}

// update brings ops up to date and tells whether it changed. Reads and writes
// of a device are always shown, the rarer operations from their first.
func (s *series) update(seen map[string]*device) (changed bool) {
	for name, d := range seen {
		shown, known := s.ops[name]
		now := shown
		now[0], now[1] = true, true
		for i := range d {
			now[i] = now[i] || d[i].ios|d[i].bytes|d[i].errors != 0
		}
		if !known || now != shown {
			s.ops[name] = now
			changed = true
		}
	}
	for name := range s.ops {
		if seen[name] == nil {
			delete(s.ops, name)
			changed = true
		}
	}
	return changed
}

func (s *series) build() {
	var list []inspector.Series
	add := func(signal, metric string, kind inspector.Kind, unit inspector.Unit, labels ...inspector.Label) {
		if s.offered(signal) {
			list = append(list, inspector.Series{Metric: metric, Kind: kind, Unit: unit, Labels: labels})
		}
	}
	add(storage.SignalRequests, storage.TotalIOs, inspector.Delta, inspector.Count)
	add(storage.SignalRequests, storage.TotalBytes, inspector.Delta, inspector.Bytes)
	add(storage.SignalErrors, storage.TotalErrors, inspector.Delta, inspector.Count)
	for name, ops := range s.ops {
		for i, shown := range ops {
			if !shown {
				continue
			}
			labels := func() []inspector.Label {
				return []inspector.Label{{Key: storage.LabelDevice, Value: name}, {Key: storage.LabelOp, Value: storage.Operations[i]}}
			}
			add(storage.SignalRequests, storage.IOs, inspector.Delta, inspector.Count, labels()...)
			add(storage.SignalRequests, storage.Bytes, inspector.Delta, inspector.Bytes, labels()...)
			add(storage.SignalLatency, storage.LatencyNS, inspector.Histogram, inspector.Nanoseconds, labels()...)
			add(storage.SignalErrors, storage.Errors, inspector.Delta, inspector.Count, labels()...)
		}
	}
	s.layout = inspector.NewLayout(storage.Name, list)
	s.slots = make([]slot, len(s.layout.Series))
	for i, sr := range s.layout.Series {
		s.slots[i].metric = sr.Metric
		if len(sr.Labels) == 2 { // sorted by key: device, op
			s.slots[i].device = sr.Labels[0].Value
			s.slots[i].op = slices.Index(storage.Operations[:], sr.Labels[1].Value)
		}
	}
}

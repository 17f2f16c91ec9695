package probe

import (
	"slices"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// maxDevices bounds the devices shown by name: with Other and all totals they
// leave room for the other modules below tenants.MaxSeriesPerNode.
const maxDevices = 22

// series keeps the layout and says which value stands where in it.
type series struct {
	offered func(signal string) bool
	choice  inspector.Roster
	weight  map[string]uint64 // requests so far, by device that is there
	names   []string          // as chosen, with Other
	layout  *inspector.Layout
	slots   []slot // parallel to layout.Series
}

type slot struct {
	metric, device string
	op             int
}

func newSeries(offered func(signal string) bool) *series {
	return &series{offered: offered, choice: inspector.Roster{Max: maxDevices}}
}

// values lays one window's increases out. The layout is the same pointer as
// before unless a device came or went.
func (s *series) values(seen map[string]*device, w *inspector.Window, works func(signal string) bool) (*inspector.Layout, []inspector.Value) {
	names := s.choose(seen, w)
	if s.layout == nil || !slices.Equal(names, s.names) {
		s.names = names
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
			d := seen[sl.device]
			if d == nil {
				continue // gone, and the layout may not change yet
			}
			t = &d[sl.op]
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

// choose says which devices have series of their own, the busiest first, and
// adds the others to Other.
func (s *series) choose(seen map[string]*device, w *inspector.Window) []string {
	weight := map[string]uint64{}
	present := make([]inspector.Candidate, 0, len(seen))
	for name, d := range seen {
		if name == storage.Other {
			continue
		}
		weight[name] = s.weight[name]
		for i := range d {
			weight[name] += d[i].ios + d[i].errors
		}
		present = append(present, inspector.Candidate{Name: name, Weight: weight[name]})
	}
	s.weight = weight
	names, other := s.choice.Choose(w.End, present, seen[storage.Other] != nil)
	named := map[string]bool{}
	for _, n := range names {
		named[n] = true
	}
	rest := seen[storage.Other]
	if other && rest == nil {
		rest = &device{}
		seen[storage.Other] = rest
	}
	for _, c := range present {
		if named[c.Name] || rest == nil {
			continue
		}
		rest.fold(seen[c.Name])
		delete(seen, c.Name)
		w.Truncated++
	}
	if other {
		names = append(names, storage.Other)
	}
	return names
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
	for _, name := range s.names {
		for _, op := range storage.Operations {
			labels := func() []inspector.Label {
				return []inspector.Label{{Key: storage.LabelDevice, Value: name}, {Key: storage.LabelOp, Value: op}}
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

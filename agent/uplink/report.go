package uplink

import (
	"maps"
	"slices"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// reportOverhead is about what a report costs in memory beside its payload.
const reportOverhead = 256

func windowReport(w *inspector.Window) *report {
	packed := inspector.AppendValues(nil, w.Layout.Series, w.Values)
	return &report{
		component: w.Layout.Component, layout: w.Layout, size: reportOverhead + cap(packed),
		pb: &pb.Report{Body: &pb.Report_Window{Window: &pb.Window{
			LayoutHash: w.Layout.Hash[:], StartNs: w.Start.UnixNano(), EndNs: w.End.UnixNano(),
			Packed: packed, Samples: w.Samples, Lost: w.Lost, Truncated: w.Truncated,
		}}},
	}
}

func capsReport(caps []inspector.Capability, at time.Time) *report {
	m := &pb.Capabilities{AtNs: at.UnixNano()}
	size := reportOverhead
	for _, c := range caps {
		m.Items = append(m.Items, &pb.Capability{
			Component: []byte(c.Component), Signal: []byte(c.Signal), Level: []byte(c.Level),
			Source: []byte(c.Source), Reason: []byte(c.Reason),
		})
		size += 160 + len(c.Reason)
	}
	return &report{size: size, pb: &pb.Report{Body: &pb.Report_Capabilities{Capabilities: m}}}
}

func lossReport(lost map[string]*loss) *report {
	m := &pb.Loss{}
	for _, c := range slices.Sorted(maps.Keys(lost)) {
		l := lost[c]
		m.Items = append(m.Items, &pb.LostComponent{
			Component: []byte(c), Windows: l.windows, Reason: []byte(l.reason),
			FromNs: l.from.UnixNano(), ToNs: l.to.UnixNano(),
		})
	}
	return &report{size: reportOverhead + 96*len(m.Items), pb: &pb.Report{Body: &pb.Report_Loss{Loss: m}}}
}

// layouts remembers the layouts lately used, so that the server can ask for
// any of them. The oldest is forgotten at maxLayouts.
type layouts struct {
	byHash map[inspector.LayoutHash]*inspector.Layout
	order  []inspector.LayoutHash
}

// maxLayouts bounds what is remembered; a node has a handful in use.
const maxLayouts = 128

func (l *layouts) use(x *inspector.Layout) {
	if _, ok := l.byHash[x.Hash]; ok {
		return
	}
	if l.byHash == nil {
		l.byHash = map[inspector.LayoutHash]*inspector.Layout{}
	}
	if len(l.order) >= maxLayouts {
		delete(l.byHash, l.order[0])
		l.order = l.order[1:]
	}
	l.byHash[x.Hash] = x
	l.order = append(l.order, x.Hash)
}

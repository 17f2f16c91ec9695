package fleet

import (
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// headlines maps headline metrics to positions of node_head.vals. The metrics
// slice, which writes that row, has the same rule: the first 16 label-free
// gauges and deltas marked as headlines, by name. set names the list; a row of
// another list is unknown here.
type headlines struct {
	set     int32
	metrics []inspector.Metric
}

// headFresh is the age after which a headline value is no longer the present.
const headFresh = time.Minute

func newHeadlines(reg *inspector.Registry) headlines {
	var h headlines
	for _, c := range reg.Components() {
		for _, m := range c.Metrics {
			if m.Headline && m.Kind != inspector.Histogram && len(m.Labels) == 0 {
				h.metrics = append(h.metrics, m)
			}
		}
	}
	slices.SortFunc(h.metrics, func(a, b inspector.Metric) int { return cmp.Compare(a.Name, b.Name) })
	h.metrics = h.metrics[:min(len(h.metrics), 16)]
	sum := crc32.NewIEEE()
	for _, m := range h.metrics {
		sum.Write([]byte(m.Name + "\n"))
	}
	h.set = int32(sum.Sum32())
	return h
}

// stat says what the head row holds of metric i.
func (h headlines) stat(i int) string {
	if h.metrics[i].Kind == inspector.Gauge {
		return "last"
	}
	return "rate_per_s"
}

// eachFloat visits the elements of a float8[] in PostgreSQL's binary form
// (src/backend/utils/adt/arrayfuncs.c, array_send) that are not null. An
// overview reads ten thousand of them; this allocates nothing.
func eachFloat(b []byte, visit func(i int, v float64)) {
	const header = 20 // dimensions, flags, element type, length, lower bound
	if len(b) < header || binary.BigEndian.Uint32(b) != 1 {
		return
	}
	n := int(binary.BigEndian.Uint32(b[12:]))
	b = b[header:]
	for i := 0; i < n && len(b) >= 4; i++ {
		size := int32(binary.BigEndian.Uint32(b))
		b = b[4:]
		if size == -1 {
			continue
		}
		if size != 8 || len(b) < 8 {
			return
		}
		visit(i, math.Float64frombits(binary.BigEndian.Uint64(b)))
		b = b[8:]
	}
}

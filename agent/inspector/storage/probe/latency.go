package probe

import (
	"fmt"
	"math"
	"time"
)

// upper is the first latency beyond a slot of the kernel's histogram: eight
// slots to each doubling of 1024 ns.
func upper(slot int) uint64 {
	if slot < 8 {
		return uint64(slot+1) << 10
	}
	return uint64(8+slot%8+1) << (slot/8 - 1) << 10
}

// percentile is the upper bound of the slot that holds it, and never more
// than the greatest latency. Known to an eighth.
func (t *traceTotals) percentile(p float64) time.Duration {
	rank := uint64(math.Ceil(p * float64(t.Timed)))
	var below uint64
	for slot, n := range t.Latency {
		below += uint64(n)
		if n > 0 && below >= rank {
			return time.Duration(min(upper(slot), t.MaxNs))
		}
	}
	return time.Duration(t.MaxNs)
}

func ms(d time.Duration) float64 { return math.Round(d.Seconds()*1e6) / 1e3 }

// values are the numbers of a row.
func (t *traceTotals) values() map[string]float64 {
	v := map[string]float64{"bytes": float64(t.Bytes)}
	if t.Timed > 0 {
		v["p50_ms"], v["p95_ms"], v["p99_ms"] = ms(t.percentile(.5)), ms(t.percentile(.95)), ms(t.percentile(.99))
		v["max_ms"], v["avg_ms"] = ms(time.Duration(t.MaxNs)), ms(time.Duration(t.SumNs/t.Timed))
	}
	if t.Errors > 0 {
		v["errors"] = float64(t.Errors)
	}
	return v
}

// plus adds another row's numbers.
func (t *traceTotals) plus(o *traceTotals) {
	t.Requests += o.Requests
	t.Bytes += o.Bytes
	t.Errors += o.Errors
	t.Timed += o.Timed
	t.SumNs += o.SumNs
	t.MaxNs = max(t.MaxNs, o.MaxNs)
	for i := range t.Latency {
		t.Latency[i] += o.Latency[i]
	}
}

// histogram calls put for each doubling that holds requests.
func (t *traceTotals) histogram(put func(name string, n uint64)) {
	for slot := 0; slot < len(t.Latency); slot += 8 {
		var n uint64
		for _, c := range t.Latency[slot : slot+8] {
			n += uint64(c)
		}
		if n == 0 {
			continue
		}
		from := uint64(0)
		if slot > 0 {
			from = upper(slot - 1)
		}
		put(fmt.Sprintf("requests_%dus_to_%dus", from/1000, upper(slot+7)/1000), n)
	}
}

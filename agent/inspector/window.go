package inspector

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// Value is one series' value in one window. OK false means the value is not
// known; it is never to be read as zero.
type Value struct {
	OK    bool
	Gauge float64  // Gauge only; -MaxGauge to MaxGauge
	Delta uint64   // Delta only; 0 to MaxDelta
	Sum   uint64   // Histogram only: the sum of all values, in the metric's unit
	Hist  []uint64 // Histogram only: counts per power of two, trailing zeros cut
}

// MaxDelta is the largest acceptable increase in one window. Anything above
// is a negative number or an overflow in disguise.
const MaxDelta = 1<<63 - 1

// MaxGauge is the greatest acceptable magnitude of a gauge. No real level comes
// near it, and sums over nodes and time stay finite.
const MaxGauge = 1e100

// InRange reports whether a gauge is a number that is taken in.
func InRange(gauge float64) bool { return math.Abs(gauge) <= MaxGauge } // false for NaN

// Window is what one component saw between Start and End. Values is parallel
// to Layout.Series.
type Window struct {
	Layout     *Layout
	Start, End time.Time
	Values     []Value
	Samples    uint64 // observations that were aggregated
	Lost       uint64 // observations known to be lost; the numbers are then lower bounds
	Truncated  uint64 // series or rows folded into "other" or left out by a bound
}

// packedVersion leads every packed value block.
const packedVersion = 1

// AppendValues packs values: version, a presence bitmap with bit i%8 of byte
// i/8 for value i, then for each present value a little-endian float64 (gauge),
// a uvarint (delta), or count, sum and buckets as uvarints (histogram).
// It panics when the lengths differ: that is a defect of the collector.
func AppendValues(b []byte, series []Series, values []Value) []byte {
	if len(series) != len(values) {
		panic(fmt.Sprintf("inspector: %d values for %d series", len(values), len(series)))
	}
	b = append(b, packedVersion)
	base := len(b)
	b = append(b, make([]byte, (len(series)+7)/8)...)
	for i, v := range values {
		if !v.OK {
			continue
		}
		b[base+i/8] |= 1 << (i % 8)
		switch series[i].Kind {
		case Gauge:
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v.Gauge))
		case Histogram:
			b = binary.AppendUvarint(b, uint64(len(v.Hist)))
			b = binary.AppendUvarint(b, v.Sum)
			for _, c := range v.Hist {
				b = binary.AppendUvarint(b, c)
			}
		default:
			b = binary.AppendUvarint(b, v.Delta)
		}
	}
	return b
}

var errPacked = errors.New("not a packed window: cut short, malformed, or not of this layout")

// DecodeValues reads a block of untrusted origin against a layout's series.
// refused counts the points that were well formed but out of range (a delta,
// count or sum above MaxDelta, a gauge that is not InRange); they come back
// as unknown and the rest of the window stands.
func DecodeValues(b []byte, series []Series) (values []Value, refused int, err error) {
	d := decoder{b: b}
	if d.byte() != packedVersion {
		return nil, 0, errors.New("not a packed window: unknown version")
	}
	n := (len(series) + 7) / 8
	if len(d.b) < n {
		return nil, 0, errPacked
	}
	bitmap := d.b[:n]
	d.b = d.b[n:]
	if r := len(series) % 8; r != 0 && bitmap[n-1]>>r != 0 {
		return nil, 0, errPacked
	}
	values = make([]Value, len(series))
	for i, s := range series {
		if bitmap[i/8]&(1<<(i%8)) == 0 {
			continue
		}
		v := Value{OK: true}
		switch s.Kind {
		case Gauge:
			if len(d.b) < 8 {
				return nil, 0, errPacked
			}
			v.Gauge = math.Float64frombits(binary.LittleEndian.Uint64(d.b))
			d.b = d.b[8:]
			v.OK = InRange(v.Gauge)
		case Delta:
			v.Delta = d.uvarint()
			v.OK = v.Delta <= MaxDelta
		case Histogram:
			k := d.uvarint()
			if d.bad || k > MaxBuckets {
				return nil, 0, errPacked
			}
			v.Sum = d.uvarint()
			v.OK = v.Sum <= MaxDelta
			v.Hist = make([]uint64, k)
			for j := range v.Hist {
				v.Hist[j] = d.uvarint()
				v.OK = v.OK && v.Hist[j] <= MaxDelta
			}
		default:
			return nil, 0, errPacked
		}
		if !v.OK {
			refused++
			v = Value{}
		}
		values[i] = v
	}
	if d.bad || len(d.b) != 0 {
		return nil, 0, errPacked
	}
	return values, refused, nil
}

// Plus adds without wrapping around: the most is math.MaxUint64.
func Plus(a, b uint64) uint64 {
	if s := a + b; s >= a {
		return s
	}
	return math.MaxUint64
}

// HistCount returns the number of values in a histogram, as Plus counts.
func HistCount(h []uint64) (n uint64) {
	for _, c := range h {
		n = Plus(n, c)
	}
	return n
}

// Bucket returns the histogram bucket of v.
func Bucket(v uint64) int {
	b := 0
	for v > 1 {
		v >>= 1
		b++
	}
	return b
}

// Quantile returns the upper bound of the bucket in which the q-th part of a
// histogram lies, in the metric's unit; ok is false for an empty histogram.
func Quantile(h []uint64, q float64) (upper uint64, ok bool) {
	total := 0.0 // floats do not wrap around, and are exact below 2^53
	for _, c := range h {
		total += float64(c)
	}
	rank, seen, at := math.Ceil(q*total), 0.0, -1
	for i, c := range h {
		if c == 0 {
			continue
		}
		at = i
		if seen += float64(c); seen >= rank {
			break
		}
	}
	switch {
	case at < 0:
		return 0, false
	case at >= 63:
		return math.MaxUint64, true
	}
	return 1<<(at+1) - 1, true
}

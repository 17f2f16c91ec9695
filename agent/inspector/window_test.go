package inspector

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func values() []Value {
	return []Value{
		{OK: true, Delta: 9221939555730002819},
		{OK: true, Sum: 1 << 40, Hist: []uint64{0, 3, 0, 7}},
		{OK: true, Gauge: 0.25},
		{},
	}
}

func TestValuesRoundTrip(t *testing.T) {
	l := sample()
	b := AppendValues(nil, l.Series, values())
	got, refused, err := DecodeValues(b, l.Series)
	if err != nil || refused != 0 {
		t.Fatalf("refused %d, %v", refused, err)
	}
	if diff := cmp.Diff(values(), got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("round trip (-want +got):\n%s", diff)
	}
	for n := range b {
		if _, _, err := DecodeValues(b[:n], l.Series); err == nil {
			t.Fatalf("%d of %d bytes decode", n, len(b))
		}
	}
	if _, _, err := DecodeValues(append(b, 0), l.Series); err == nil {
		t.Error("a trailing byte is accepted")
	}
	if _, _, err := DecodeValues(b, l.Series[:2]); err == nil {
		t.Error("values of another layout are accepted")
	}
}

// A point that is out of range is dropped alone: the rest of the window stays.
func TestValuesRefusePointwise(t *testing.T) {
	series := []Series{
		{Metric: "a.neg", Kind: Delta}, {Metric: "a.over", Kind: Delta}, {Metric: "a.nan", Kind: Gauge},
		{Metric: "a.inf", Kind: Gauge}, {Metric: "a.hist", Kind: Histogram}, {Metric: "a.sum", Kind: Histogram}, {Metric: "a.good", Kind: Delta},
	}
	minusFive := uint64(math.MaxUint64) - 4
	b := AppendValues(nil, series, []Value{
		{OK: true, Delta: minusFive}, {OK: true, Delta: 1 << 63}, {OK: true, Gauge: math.NaN()},
		{OK: true, Gauge: math.Inf(-1)}, {OK: true, Hist: []uint64{1, 1 << 63}}, {OK: true, Sum: 1 << 63, Hist: []uint64{1}}, {OK: true, Delta: MaxDelta},
	})
	got, refused, err := DecodeValues(b, series)
	if err != nil {
		t.Fatal(err)
	}
	if refused != 6 {
		t.Errorf("refused %d points, want 6", refused)
	}
	for i, v := range got[:6] {
		if v.OK || v.Delta != 0 || v.Hist != nil {
			t.Errorf("%s came back as %+v", series[i].Metric, v)
		}
	}
	if !got[6].OK || got[6].Delta != MaxDelta {
		t.Errorf("the good point is %+v", got[6])
	}
}

func TestValuesRefuseTooManyBuckets(t *testing.T) {
	series := []Series{{Metric: "a.hist", Kind: Histogram}}
	b := binary.AppendUvarint([]byte{packedVersion, 1}, MaxBuckets+1)
	if _, _, err := DecodeValues(append(b, make([]byte, 70)...), series); err == nil {
		t.Error("65 buckets are accepted")
	}
}

func TestBucketAndQuantile(t *testing.T) {
	for v, want := range map[uint64]int{0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 1 << 62: 62, math.MaxUint64: 63} {
		if got := Bucket(v); got != want {
			t.Errorf("Bucket(%d) = %d, want %d", v, got, want)
		}
	}
	h := []uint64{0, 0, 90, 0, 10}
	for q, want := range map[float64]uint64{0: 7, 0.5: 7, 0.9: 7, 0.91: 31, 1: 31} {
		if got, ok := Quantile(h, q); !ok || got != want {
			t.Errorf("Quantile(%g) = %d, %v, want %d", q, got, ok, want)
		}
	}
	if _, ok := Quantile(nil, 0.5); ok {
		t.Error("an empty histogram has a quantile")
	}
}

func FuzzDecodeValues(f *testing.F) {
	l := sample()
	f.Add(AppendValues(nil, l.Series, values()), uint8(0))
	f.Add([]byte{1, 0}, uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, kinds uint8) {
		series := make([]Series, len(l.Series))
		for i := range series {
			series[i].Kind = Kind(kinds>>(2*i))&3 + 0
		}
		got, refused, err := DecodeValues(b, series)
		if err != nil {
			return
		}
		if len(got) != len(series) || refused < 0 || refused > len(series) {
			t.Fatalf("%d values, %d refused", len(got), refused)
		}
		for _, v := range got {
			if v.OK && (v.Delta > MaxDelta || v.Sum > MaxDelta || math.IsNaN(v.Gauge) || math.IsInf(v.Gauge, 0)) {
				t.Fatalf("out of range: %+v", v)
			}
		}
		again, n, err := DecodeValues(AppendValues(nil, series, got), series)
		if err != nil || n != 0 {
			t.Fatalf("own encoding: %d refused, %v", n, err)
		}
		if diff := cmp.Diff(got, again, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}

// TestSumsStayInRange: what a node sends at the edge of what is accepted
// neither wraps around nor stops being a number in any sum.
func TestSumsStayInRange(t *testing.T) {
	h := []uint64{MaxDelta, MaxDelta, MaxDelta}
	if got := HistCount(h); got != math.MaxUint64 {
		t.Errorf("three times 2^63-1 is counted as %d", got)
	}
	for q, want := range map[float64]uint64{0.25: 1, 0.5: 3, 0.99: 7, 1: 7} {
		if got, ok := Quantile(h, q); !ok || got != want {
			t.Errorf("Quantile(%g) = %d, %v, want %d", q, got, ok, want)
		}
	}
	series := []Series{{Metric: "a.gauge", Kind: Gauge}, {Metric: "b.gauge", Kind: Gauge}, {Metric: "c.gauge", Kind: Gauge}}
	b := AppendValues(nil, series, []Value{{OK: true, Gauge: 1.7e308}, {OK: true, Gauge: -2e100}, {OK: true, Gauge: -MaxGauge}})
	got, refused, err := DecodeValues(b, series)
	if err != nil || refused != 2 || got[0].OK || got[1].OK || got[2].Gauge != -MaxGauge {
		t.Errorf("%+v, %d refused, %v", got, refused, err)
	}
}

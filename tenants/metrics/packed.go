package metrics

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// packedVersion is the version of inspector.AppendValues that walk reads.
const packedVersion = 1

var errPacked = errors.New("packed values are cut short, malformed, or not of this layout")

// walk visits the known values of a packed block in order of series. It agrees
// with inspector.DecodeValues (a fuzz test holds it to that) but allocates
// next to nothing: v is valid during the visit only. refused counts the values
// that are well formed but out of range; they are not visited.
func walk(b []byte, kinds []inspector.Kind, visit func(i int, v *inspector.Value)) (refused int, err error) {
	n := (len(kinds) + 7) / 8
	if len(b) < 1+n || b[0] != packedVersion {
		return 0, errPacked
	}
	bitmap, b := b[1:1+n], b[1+n:]
	if r := len(kinds) % 8; r != 0 && bitmap[n-1]>>r != 0 {
		return 0, errPacked
	}
	var hist [inspector.MaxBuckets]uint64
	var v inspector.Value // one for all visits: visit makes it escape
	short := false
	next := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			short, b = true, nil
			return 0
		}
		b = b[n:]
		return v
	}
	for i, kind := range kinds {
		if bitmap[i/8]&(1<<(i%8)) == 0 {
			continue
		}
		v = inspector.Value{OK: true}
		switch kind {
		case inspector.Gauge:
			if len(b) < 8 {
				return 0, errPacked
			}
			v.Gauge = math.Float64frombits(binary.LittleEndian.Uint64(b))
			b = b[8:]
			v.OK = !math.IsNaN(v.Gauge) && !math.IsInf(v.Gauge, 0)
		case inspector.Delta:
			v.Delta = next()
			v.OK = v.Delta <= inspector.MaxDelta
		case inspector.Histogram:
			k := next()
			if short || k > inspector.MaxBuckets {
				return 0, errPacked
			}
			v.Sum = next()
			v.OK = v.Sum <= inspector.MaxDelta
			v.Hist = hist[:k]
			for j := range v.Hist {
				v.Hist[j] = next()
				v.OK = v.OK && v.Hist[j] <= inspector.MaxDelta
			}
		default:
			return 0, errPacked
		}
		if short {
			return 0, errPacked
		}
		if !v.OK {
			refused++
			continue
		}
		visit(i, &v)
	}
	if len(b) != 0 {
		return 0, errPacked
	}
	return refused, nil
}

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
	// One for all visits, because visit makes it escape. Its fields are set
	// one by one: as a whole it would cost a write barrier for each value.
	var v inspector.Value
	for i, kind := range kinds {
		if bitmap[i/8]&(1<<(i%8)) == 0 {
			continue
		}
		v.OK, v.Gauge, v.Delta, v.Sum = true, 0, 0, 0
		if v.Hist != nil {
			v.Hist = nil
		}
		ok := true
		switch kind {
		case inspector.Gauge:
			if len(b) < 8 {
				return 0, errPacked
			}
			v.Gauge = math.Float64frombits(binary.LittleEndian.Uint64(b))
			b = b[8:]
			v.OK = inspector.InRange(v.Gauge)
		case inspector.Delta:
			if v.Delta, b, ok = uvarint(b); !ok {
				return 0, errPacked
			}
			v.OK = v.Delta <= inspector.MaxDelta
		case inspector.Histogram:
			var k uint64
			if k, b, ok = uvarint(b); !ok || k > inspector.MaxBuckets {
				return 0, errPacked
			}
			if v.Sum, b, ok = uvarint(b); !ok {
				return 0, errPacked
			}
			top := v.Sum // the highest of all: one comparison for the lot
			for j := range hist[:k] {
				if hist[j], b, ok = uvarint(b); !ok {
					return 0, errPacked
				}
				top = max(top, hist[j])
			}
			v.Hist, v.OK = hist[:k], top <= inspector.MaxDelta
		default:
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

// uvarint reads one number off the front of b; most have one or two bytes.
func uvarint(b []byte) (v uint64, rest []byte, ok bool) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), b[1:], true
	}
	return longUvarint(b)
}

func longUvarint(b []byte) (v uint64, rest []byte, ok bool) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, false
	}
	return v, b[n:], true
}

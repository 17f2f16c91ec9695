package main

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// trouble is what is wrong with a simulated machine.
type trouble string

// The troubles, one at most on a machine.
const (
	healthy    trouble = ""
	cpuHot     trouble = "cpu"
	memoryFull trouble = "memory"
	diskFull   trouble = "disk"
	dropping   trouble = "drops"
	lossy      trouble = "retransmits"
	badDisk    trouble = "disk errors"
	crashing   trouble = "crashes"
	overrun    trouble = "listen overflows"
)

var troubles = []trouble{cpuHot, lossy, diskFull, memoryFull, dropping, badDisk, crashing, overrun}

// troubleOf plants one troubled machine, chosen by the seed, among the agents
// 2 and 3, one among 4 to 7, one among 8 to 15, and so on: a few in ten, and
// a few in ten thousand.
func troubleOf(seed, agent uint64) trouble {
	k := bits.Len64(agent) - 1
	if k < 1 {
		return healthy
	}
	pick := rand.New(rand.NewPCG(seed, 1<<32|uint64(k))).Uint64N(1 << k)
	if agent != 1<<k|pick {
		return healthy
	}
	return troubles[(seed+uint64(k))%uint64(len(troubles))]
}

// machine is one simulated machine in one window. What it has, and about how
// much it uses of it, is its own for good; load goes up and down over the
// hours; only counts are noisy.
type machine struct {
	r       *rand.Rand
	seconds float64
	end     time.Time
	trouble trouble

	cpus, memory    float64
	disk            [2]float64 // bytes
	memUsed, booted float64    // ratio; seconds since 1970
	diskUsed        [2]float64 // ratios
	load            float64    // 0 to 1
	busy, iowait    float64    // ratios
	rx, tx          float64    // bytes a second
	connections     float64    // a second
	reads, writes   float64    // a second

	rates, levels map[string]float64 // those without a difference by label
}

func newMachine(seed, agent uint64, end time.Time, interval time.Duration) *machine {
	own := rand.New(rand.NewPCG(seed, agent))
	between := func(low, high float64) float64 { return low + (high-low)*own.Float64() }
	size := own.IntN(4)
	m := &machine{
		r:       rand.New(rand.NewPCG(seed<<20^agent, uint64(end.UnixNano()/int64(interval)))),
		seconds: interval.Seconds(), end: end, trouble: troubleOf(seed, agent),
	}
	m.cpus = float64(int(2) << size)
	m.memory = float64(int64(4<<30) << size)
	m.disk = [2]float64{40 << 30, float64(int64(100<<30) << own.IntN(4))}
	m.memUsed = between(0.25, 0.75)
	m.diskUsed = [2]float64{between(0.15, 0.6), between(0.1, 0.8)}
	m.booted = 1_700_000_000 - between(1, 200)*86400
	level, phase := between(0.1, 0.6), own.Float64()
	wave := math.Sin(2 * math.Pi * (float64(end.Unix())/14400 + phase))
	m.load = min(level*(1+0.35*wave)*m.jitter(0.1), 1)
	m.busy = 0.02 + 0.7*m.load
	m.iowait = 0.002 + 0.02*m.load
	m.memUsed += 0.03 * wave
	m.rx, m.tx = between(1e5, 4e6)*m.load, between(1e5, 8e6)*m.load
	m.connections = between(2, 60) * m.load
	m.reads, m.writes = between(1, 60)*m.load, between(5, 150)*m.load
	switch m.trouble {
	case cpuHot:
		m.busy = 0.97 + 0.02*m.r.Float64()
	case memoryFull:
		m.memUsed = 0.965 + 0.005*wave
	case diskFull:
		m.diskUsed[1] = 0.985
	case badDisk:
		m.iowait = 0.25 * m.jitter(0.1)
	}
	return m
}

// jitter is around 1, at most part away from it.
func (m *machine) jitter(part float64) float64 { return 1 + part*(2*m.r.Float64()-1) }

// when gives n on a machine with that trouble, and otherwise the usual.
func (m *machine) when(t trouble, n, usual float64) float64 {
	if m.trouble == t {
		return n
	}
	return usual
}

func (m *machine) value(s inspector.Series) inspector.Value {
	label := map[string]string{}
	for _, l := range s.Labels {
		label[l.Key] = l.Value
	}
	_, name, _ := strings.Cut(s.Metric, ".")
	switch s.Kind {
	case inspector.Gauge:
		v, ok := m.level(name, label)
		if !ok {
			v = m.usual(s.Unit)
		}
		return inspector.Value{OK: true, Gauge: v}
	case inspector.Histogram:
		return m.histogram(name, label)
	}
	rate, ok := m.rate(name, label)
	if !ok {
		rate = m.usual(s.Unit)
	}
	// A count is whole, and of a rare thing most often 0.
	return inspector.Value{OK: true, Delta: uint64(rate*m.seconds*m.jitter(0.08) + m.r.Float64()*min(rate*1e9, 1))}
}

// usual stands for a metric that this file does not know.
func (m *machine) usual(unit inspector.Unit) float64 {
	switch unit {
	case inspector.Bytes:
		return 1e5 * m.load
	case inspector.Nanoseconds:
		return 1e7 * m.load
	case inspector.Ratio:
		return 0.3 * m.load
	}
	return 5 * m.load
}

// histogram draws times around a typical one, with a tail.
func (m *machine) histogram(name string, label map[string]string) inspector.Value {
	rate, typical := 0.0, 0.0 // a second; ns
	switch name {
	case "latency_ns":
		rate, typical = m.requests(label), m.when(badDisk, 4e7, 3e5*(1+m.load))
	case "tcp_srtt":
		rate, typical = m.connections, 2e6*m.when(lossy, 20, 1)
	default:
		rate, typical = m.switches(), 6e3*(1+m.when(cpuHot, 300, 8*m.load))
	}
	const drawn = 64 // each stands for an equal part of all
	v := inspector.Value{OK: true}
	all := uint64(rate * m.seconds)
	for i := range uint64(drawn) {
		n := all / drawn
		if i < all%drawn {
			n++
		}
		if n == 0 {
			break
		}
		x := uint64(min(max(typical*math.Exp(0.8*m.r.NormFloat64()), 1), 1e12))
		b := inspector.Bucket(x)
		for len(v.Hist) <= b {
			v.Hist = append(v.Hist, 0)
		}
		v.Hist[b] += n
		v.Sum += n * x
	}
	return v
}

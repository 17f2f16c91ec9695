package bpfload

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Values reads one key of a per-CPU map: one value for each possible CPU.
// A key that is not there gives nil.
func Values[V any](m *ebpf.Map, key any) ([]V, error) {
	var out []V
	if err := m.Lookup(key, &out); err != nil {
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, nil
		}
		return nil, fmt.Errorf("read map: %w", err)
	}
	return out, nil
}

// Sums adds up the first n slots of a per-CPU array of uint64 counters.
func Sums(m *ebpf.Map, n int) ([]uint64, error) {
	out := make([]uint64, n)
	for i := range out {
		per, err := Values[uint64](m, uint32(i))
		if err != nil {
			return nil, err
		}
		for _, v := range per {
			out[i] += v
		}
	}
	return out, nil
}

// Each calls visit for every key of a per-CPU map with one value for each
// possible CPU; visit must not keep the slice. A map that changes meanwhile
// may yield a key twice or, when entries are deleted, cut the walk short;
// that is an error, never a silent part.
func Each[K comparable, V any](m *ebpf.Map, visit func(K, []V)) error {
	var key K
	var per []V
	it := m.Iterate()
	for it.Next(&key, &per) {
		visit(key, per)
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("walk map: %w", err)
	}
	return nil
}

// Cost is what one program has cost since it was loaded. It moves only while
// EnableStats is in force.
type Cost struct {
	Program string
	Runs    uint64
	Time    time.Duration
	Missed  uint64 // runs the kernel skipped because of recursion
}

// Costs lists the running programs' costs.
func (s *Set) Costs() ([]Cost, error) {
	var out []Cost
	for name, p := range s.progs {
		st, err := p.Stats()
		if err != nil {
			return nil, fmt.Errorf("statistics of %s: %w", name, err)
		}
		out = append(out, Cost{Program: name, Runs: st.RunCount, Time: st.Runtime, Missed: st.RecursionMisses})
	}
	return out, nil
}

// EnableStats makes the kernel measure every BPF program until the result is
// closed. It costs some 20 ns a run; benchmarks only. It needs CAP_SYS_ADMIN.
func EnableStats() (io.Closer, error) { return ebpf.EnableStats(unix.BPF_STATS_RUN_TIME) }

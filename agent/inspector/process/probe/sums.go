package probe

import (
	"github.com/cilium/ebpf"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
)

// sums are the programs' counters added over all CPUs: cumulative when read,
// increases in a window. The map begins at zero with the module and is this
// process's own, so an increase is a plain difference.
type sums struct {
	forks, threads, execs, exits, failed, oomKills uint64
	lost, waitSum                                  uint64
	wait                                           [40]uint64
	bySignal                                       [128]uint64
}

func readSums(m *ebpf.Map) (sums, error) {
	var s sums
	per, err := bpfload.Values[processTotals](m, uint32(0))
	for i := range per {
		p := &per[i]
		s.forks += p.Forks
		s.threads += p.Threads
		s.execs += p.Execs
		s.exits += p.Exits
		s.failed += p.Failed
		s.oomKills += p.OomKills
		s.lost += p.Lost
		s.waitSum += p.WaitSum
		for b := range p.Wait {
			s.wait[b] += p.Wait[b]
		}
		for n := range p.BySignal {
			s.bySignal[n] += p.BySignal[n]
		}
	}
	return s, err
}

func (s sums) since(old *sums) sums {
	s.forks -= old.forks
	s.threads -= old.threads
	s.execs -= old.execs
	s.exits -= old.exits
	s.failed -= old.failed
	s.oomKills -= old.oomKills
	s.lost -= old.lost
	s.waitSum -= old.waitSum
	for b := range s.wait {
		s.wait[b] -= old.wait[b]
	}
	for n := range s.bySignal {
		s.bySignal[n] -= old.bySignal[n]
	}
	return s
}

// count is how many observations the sums hold.
func (s *sums) count() uint64 {
	return s.forks + s.threads + s.execs + s.exits + s.oomKills + inspector.HistCount(s.wait[:])
}

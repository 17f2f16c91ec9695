package audit

import "sync/atomic"

// counters are the service's own, see Stats.
type counters struct {
	written, failed, homeless, sealed atomic.Uint64
}

// Stats counts since the start of this process; Waiting is now.
type Stats struct {
	Waiting         int    // entries that wait for their write
	Written         uint64 // rows stored
	Dropped         uint64 // entries lost: no room, or not to be stored
	WriteFailed     uint64 // acts that were refused because they could not be recorded
	Homeless        uint64 // entries and attempts of no tenant
	Sealed          uint64 // rows that this process sealed
	RefusalsDropped uint64 // refusals of strangers that were not counted
	AttemptsDropped uint64
}

// Stats reads the counters; it is cheap.
func (s *Service) Stats() Stats {
	c := &s.counts
	out := Stats{Written: c.written.Load(), WriteFailed: c.failed.Load(), Homeless: c.homeless.Load(), Sealed: c.sealed.Load()}
	s.queue.mu.Lock()
	out.Waiting, out.Dropped = len(s.queue.rows), s.queue.dropped
	s.queue.mu.Unlock()
	s.refusals.mu.Lock()
	out.RefusalsDropped = s.refusals.dropped
	s.refusals.mu.Unlock()
	s.door.mu.Lock()
	out.AttemptsDropped, out.Homeless = s.door.dropped, out.Homeless+s.door.unknown
	s.door.mu.Unlock()
	return out
}

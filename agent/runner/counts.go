package runner

// Counts says how the collectors fared since the runner was made.
type Counts struct {
	Panics   uint64 // collector calls that panicked
	Failures uint64 // collector calls that failed, panics among them
	Overruns uint64 // ticks that found a collector's former call in flight
}

// Counts adds up the modules' counters.
func (r *Runner) Counts() (c Counts) {
	for _, m := range r.modules {
		m.mu.Lock()
		c.Panics += m.panics
		c.Failures += m.failures
		c.Overruns += m.overruns
		m.mu.Unlock()
	}
	return c
}

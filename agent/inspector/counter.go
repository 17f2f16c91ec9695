package inspector

// Counter turns the readings of one cumulative source into increases between
// two readings. The zero value is a monotonic 64-bit counter. It lives as
// long as what it reads: after a reboot, or for a device that was made anew,
// a new Counter starts. Not safe for concurrent use.
type Counter struct {
	// Narrow says that the source is 32 bits wide: a reading below the last
	// one is then one wrap, which is added back. The reader keeps the interval
	// so short that two wraps are not possible.
	Narrow bool
	// Jitter is how far a source that is known to step back may do so; such a
	// step counts as no increase and in Clamped, and is no reset.
	Jitter uint64
	// Clamped and Resets count the steps back seen so far, by what they were.
	Clamped, Resets uint64

	last uint64
	seen bool
}

// Step takes a reading and returns the increase since the last one. ok is
// false for the first reading and after a reset: the increase is then not
// known, which is not zero.
func (c *Counter) Step(reading uint64) (increase uint64, ok bool) {
	last, seen := c.last, c.seen
	c.seen = true
	switch {
	case !seen:
		c.last = reading
		return 0, false
	case reading >= last:
		c.last = reading
		return reading - last, true
	case last-reading <= c.Jitter:
		c.Clamped++ // last stays: what was counted once is not counted again
		return 0, true
	case c.Narrow && last>>32 == 0:
		c.last = reading
		return 1<<32 - last + reading, true
	default:
		c.Resets++
		c.last = reading
		return 0, false
	}
}

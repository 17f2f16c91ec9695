package ingest

import (
	"testing"
	"time"

	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// link simulates exchanges between a server and an agent whose clock is off.
type link struct {
	now  time.Time // the server's clock
	off  time.Duration
	skew skew
}

// exchange lets a server frame travel for there, the agent hold it, and its
// answer travel for back.
func (l *link) exchange(there, held, back time.Duration) {
	sent := l.now
	l.now = l.now.Add(there + held)
	wall := l.now.Add(l.off)
	l.now = l.now.Add(back)
	l.skew.observe(&pb.Clock{WallNs: wall.UnixNano(), EchoNs: sent.UnixNano(), HeldNs: int64(held)}, l.now)
}

func (l *link) want(t *testing.T, what string, within time.Duration) {
	t.Helper()
	if d := (l.skew.value - l.off).Abs(); d > within {
		t.Errorf("%s: estimate %v, truth %v", what, l.skew.value, l.off)
	}
}

func TestSkewEstimate(t *testing.T) {
	l := &link{now: time.Unix(1_800_000_000, 0), off: -49 * time.Second}
	l.skew.observe(&pb.Clock{WallNs: l.now.Add(l.off - 300*time.Millisecond).UnixNano()}, l.now)
	l.want(t, "first frame, one way only", 300*time.Millisecond)
	l.exchange(40*time.Millisecond, 10*time.Second, 60*time.Millisecond)
	l.want(t, "first exchange", 10*time.Millisecond)
	l.exchange(10*time.Millisecond, 10*time.Second, 4*time.Second) // a congested way back
	l.want(t, "a slow exchange does not spoil it", 10*time.Millisecond)
	l.off = 200 * time.Millisecond // the agent's clock is stepped
	l.exchange(40*time.Millisecond, 10*time.Second, 60*time.Millisecond)
	l.want(t, "after a step", 10*time.Millisecond)
	l.now = l.now.Add(10 * time.Minute)
	l.exchange(100*time.Millisecond, time.Second, 100*time.Millisecond)
	l.want(t, "old estimates give way", time.Millisecond)
}

func TestSkewIgnoresNonsense(t *testing.T) {
	l := &link{now: time.Unix(1_800_000_000, 0), off: time.Second}
	l.exchange(time.Millisecond, time.Second, time.Millisecond)
	for _, c := range []*pb.Clock{nil, {}, {WallNs: 5, EchoNs: 1}, {WallNs: -1 << 63, EchoNs: l.now.Add(-time.Hour).UnixNano()}} {
		l.skew.observe(c, l.now)
		l.want(t, "after nonsense", time.Millisecond)
	}
	l.skew.observe(&pb.Clock{WallNs: 1 << 62, EchoNs: 1 << 62, HeldNs: -5}, l.now) // must not panic
}

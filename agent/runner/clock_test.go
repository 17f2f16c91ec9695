package runner

import (
	"testing"
	"time"
)

func TestAWindowLastsAsLongAsTimePassed(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	for name, c := range map[string]struct{ byWall, passed, want time.Duration }{
		"an ordinary one":               {10 * time.Second, 10 * time.Second, 10 * time.Second},
		"the clock is slewed":           {10*time.Second + 5*time.Millisecond, 10 * time.Second, 10*time.Second + 5*time.Millisecond},
		"the clock was set back":        {-time.Hour, 10 * time.Second, 10 * time.Second},
		"the clock was set forward":     {time.Hour, 10 * time.Second, 10 * time.Second},
		"the machine slept for a night": {8 * time.Hour, 12 * time.Second, 12 * time.Second},
		"the agent was stopped":         {time.Minute, time.Minute, time.Minute},
	} {
		end := start.Add(c.byWall)
		if got := end.Sub(began(start, c.byWall, c.passed, end)); got != c.want {
			t.Errorf("%s: the window lasts %v, want %v", name, got, c.want)
		}
	}
}

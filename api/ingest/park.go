package ingest

import (
	"context"
	"time"

	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

// How long a stream waits for another life of its identity, one that is live
// on another machine, another boot or another start of the agent. A live agent
// speaks every ten seconds; what another replica hears is written every five.
// An agent waits twenty seconds for its welcome.
const (
	parkTimeout = 17 * time.Second // then it is let in or refused
	quietHere   = 12 * time.Second // silence of a stream of this replica after which its agent is gone
	parkEvery   = 500 * time.Millisecond
)

// park holds a stream until it is known whether the other life is alive. When
// that one's stream ends, or is silent for as long as no live one is, this one
// is let in: dead says that the other one's end is certain. A new start of the
// agent on the same boot is let in sooner: its old stream can only be half open.
// When the older stream speaks again, both are alive and this one is refused;
// until then it counts as a live session, so that both are shown.
func (st *stream) park(ctx context.Context) (dead bool, err error) {
	s := st.s
	s.count.parked.Add(1)
	began := time.Now()
	end := time.NewTimer(parkTimeout)
	defer end.Stop()
	tick := time.NewTicker(parkEvery)
	defer tick.Stop()
	spoke, last := false, false
	for {
		r, err := st.rivals(ctx)
		spoke = spoke || r.Spoke && r.Open
		quiet := !spoke && !r.Elsewhere && (last || !r.Far && time.Since(began) >= quietHere)
		switch {
		case err == nil && (!r.Live || quiet):
			actx, cancel := context.WithTimeout(ctx, lookTimeout)
			defer cancel()
			if err := s.deps.Sessions.SessionAdmitted(actx, st.scope, st.session); err != nil {
				return false, retryable{err, retryAfter()}
			}
			return !r.Open && !spoke, nil
		case last && err != nil && !spoke:
			return false, retryable{err, retryAfter()}
		case last:
			return false, retryable{fault.New(fault.Precondition, "duplicate_identity", "the same node identity is live on another machine, boot or agent").
				Do("enrol one of the two machines anew: an identity directory must not be copied"), retryAfter()}
		}
		select {
		case <-tick.C:
		case <-end.C:
			last = true
		case <-s.hub.stopping:
			return false, retryable{errStopping, retryAfter()}
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

func (st *stream) rivals(ctx context.Context) (fleet.Rivals, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return st.s.deps.Sessions.Rivals(ctx, st.scope, st.session)
}

// position finds where the stream's reports stand. own asks for an epoch of
// its own. So does a new life that would send numbers which are taken: an agent
// that starts again goes on above all numbers it ever used, so these were sent
// by another one with a copy of its identity.
func (st *stream) position(ctx context.Context, h *pb.Hello, own, changed bool) (metrics.Position, error) {
	if own {
		return st.s.deps.Windows.OpenStream(ctx, st.scope, 0, h.NextSeq)
	}
	pos, err := st.s.deps.Windows.OpenStream(ctx, st.scope, h.Epoch, h.NextSeq)
	if err == nil && changed && pos.Epoch == h.Epoch && h.NextSeq <= pos.HighSeq {
		return st.s.deps.Windows.OpenStream(ctx, st.scope, 0, h.NextSeq)
	}
	if err == nil && changed && pos.Epoch == h.Epoch && h.NextSeq > pos.HighSeq+1 {
		// What lies between was set aside by the agent that died, not lost. What
		// it held is gone with it: how much, nobody knows.
		if err = st.s.deps.Windows.Skip(ctx, st.scope, pos.Epoch, h.NextSeq-1); err == nil {
			pos.HighSeq = h.NextSeq - 1
		}
	}
	return pos, err
}

package metrics

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Bounds of one window.
const (
	MaxSeq    = 1 << 53                                    // greatest epoch and sequence number: no node gets there by counting
	MaxSpan   = 5 * time.Minute                            // longest window
	aheadOK   = tenants.SkewIgnored + tenants.WindowLength // how far ahead of the server a window may end
	maxPacked = 1 << 20                                    // bytes of packed values
)

// Checked is a report that passed Check. It is opaque; hand it to Write.
type Checked struct {
	nodeKey
	epoch, seq int64
	plain      bool   // no window: only the sequence number counts
	reason     string // of quarantine
	example    string

	layout    int64
	component string
	ts        time.Time // end by the server's time
	durMS     int32
	skewMS    *int32
	samples   int64
	lost      int64
	folded    int64
	refused   int32
	vals      []byte

	heads []headValue // headline values of this window
	alive uint16      // headline positions whose component was heard of lately
}

type headValue struct {
	pos   int
	value float64
}

// Quarantine returns the reason why the window is kept out; "" when it is not.
func (c Checked) Quarantine() string { return c.reason }

// nodeOf returns the node that a scope is.
func nodeOf(scope tenants.Scope) (nodeKey, error) {
	id, err := tenants.ParseNodeID(scope.Principal.ID)
	if err != nil || scope.Tenant.IsZero() || scope.Principal.Kind != tenants.NodePrincipal {
		return nodeKey{}, fault.New(fault.Denied, "not_a_node", "only an enrolled node reports").Do("use the node's client certificate")
	}
	return nodeKey{scope.Tenant, id}, nil
}

// Advance is the Check of a report that is no window (a layout, a capability):
// its Write consumes the sequence number only.
func (s *Service) Advance(scope tenants.Scope, epoch, seq uint64) (Checked, error) {
	key, err := nodeOf(scope)
	if err != nil {
		return Checked{}, err
	}
	if epoch == 0 || epoch > MaxSeq || seq == 0 || seq > MaxSeq {
		return Checked{}, fault.Bad("seq", "epoch and seq are 1 to 2^53")
	}
	return Checked{nodeKey: key, epoch: int64(epoch), seq: int64(seq), plain: true}, nil
}

// Check looks at one window of the node that scope is. skew is the agent's
// clock minus the server's at this exchange. An unknown layout is Precondition
// with reason "unknown_layout": ask the agent for it and check again. A window
// to be kept out is no error: it is a Checked with a Quarantine reason, whose
// Write consumes its sequence number and counts it. r.Packed is kept until the
// Write; the caller must not change it.
func (s *Service) Check(ctx context.Context, scope tenants.Scope, r Report, skew time.Duration) (Checked, error) {
	c, err := s.Advance(scope, r.Epoch, r.Seq)
	if err != nil {
		return c, err
	}
	c.plain = false
	sh, ok, err := s.findShape(ctx, shapeKey{c.tenant, r.Layout})
	if err != nil {
		return c, err
	}
	if !ok {
		return c, fault.New(fault.Precondition, "unknown_layout", "this layout is not known here").Do("send the layout, then the window again")
	}
	c.layout, c.component = sh.id, sh.component
	now := s.now()
	if reason := c.time(r, skew, now); reason != "" {
		return c.keepOut(reason, r, now), nil
	}
	c.samples, c.lost, c.folded, c.vals = clampCount(r.Samples), clampCount(r.Lost), clampCount(r.Truncated), r.Packed
	barred := 0
	refused, err := walk(r.Packed, sh.kinds, func(i int, v *inspector.Value) {
		if sh.barred != nil && sh.barred[i] {
			barred++
			return
		}
		for _, h := range sh.heads {
			if h.series == i {
				c.heads = append(c.heads, headValue{h.pos, latest(sh.kinds[i], v, c.durMS)})
			}
		}
	})
	if err != nil || len(r.Packed) > maxPacked {
		return c.keepOut(ReasonMalformed, r, now), nil
	}
	c.refused = int32(refused + barred)
	total, alive := s.nodes.use(c.nodeKey, sh, c.ts, time.Duration(c.durMS)*time.Millisecond, s.heads)
	if total > tenants.MaxSeriesPerNode {
		return c.keepOut(ReasonSeries, r, now), nil
	}
	c.alive = alive
	return c, nil
}

// time places the window on the server's clock, or says why it cannot be.
func (c *Checked) time(r Report, skew time.Duration, now time.Time) string {
	dur := r.End.Sub(r.Start)
	if dur < time.Millisecond || dur > MaxSpan {
		return ReasonSpan
	}
	if skew.Abs() > tenants.SkewCorrected {
		return ReasonSkew
	}
	c.ts, c.durMS = r.End.Truncate(time.Microsecond), int32(dur.Milliseconds())
	if skew.Abs() > tenants.SkewIgnored {
		ms := int32(skew.Milliseconds())
		c.skewMS, c.ts = &ms, c.ts.Add(-time.Duration(ms)*time.Millisecond)
	}
	switch {
	case c.ts.Before(now.Add(-tenants.MaxReplayAge)):
		return ReasonTooOld
	case c.ts.After(now.Add(aheadOK)):
		return ReasonFuture
	}
	return ""
}

func (c Checked) keepOut(reason string, r Report, now time.Time) Checked {
	c.reason, c.vals, c.heads = reason, nil, nil
	c.example = fmt.Sprintf("%s window, epoch %d seq %d, %s to %s by the node's clock, %d bytes, server time %s",
		c.component, r.Epoch, r.Seq, r.Start.UTC().Format(time.RFC3339), r.End.UTC().Format(time.RFC3339), len(r.Packed), now.UTC().Format(time.RFC3339))
	return c
}

// latest is a headline's value: the level of a gauge, the rate of a delta.
func latest(k inspector.Kind, v *inspector.Value, durMS int32) float64 {
	if k == inspector.Gauge {
		return v.Gauge
	}
	return float64(v.Delta) * 1000 / float64(durMS)
}

func clampCount(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// uid is the form in which ids travel to the database.
func uid[T ~[16]byte](id T) [16]byte { return id }

// compareKeys orders nodes by tenant and id, as bytes.
func compareKeys(a, b nodeKey) int {
	for _, p := range [2][2][]byte{{a.tenant[:], b.tenant[:]}, {a.node[:], b.node[:]}} {
		for i := 0; i < 16; i += 8 {
			x, y := binary.BigEndian.Uint64(p[0][i:]), binary.BigEndian.Uint64(p[1][i:])
			if x != y {
				if x < y {
					return -1
				}
				return 1
			}
		}
	}
	return 0
}

package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

// Get answers everything about one node, addressed by id or unique name. It
// needs telltale:read. A name that several nodes in scope bear is Invalid with
// reason "ambiguous_node" and names the candidates. The answer may be shared
// with other callers: do not change its maps and slices.
func (s *Service) Get(ctx context.Context, scope tenants.Scope, ref string) (NodeDetail, error) {
	if err := scope.Require(tenants.Read); err != nil {
		return NodeDetail{}, err
	}
	return s.details.Do(ctx, overviewKey(scope)+"\x02"+ref, func(ctx context.Context) (NodeDetail, error) { return s.detail(ctx, scope, ref) })
}

func (s *Service) detail(ctx context.Context, scope tenants.Scope, ref string) (NodeDetail, error) {
	var d NodeDetail
	var now time.Time
	r, err := s.about(ctx, scope, ref, false, func(b *pgx.Batch, node [16]byte) {
		now, d = s.now(), NodeDetail{Capabilities: []Capability{}, ModulesOff: []ModuleOff{}, Quarantine: []QuarantineRow{}, Sessions: []Session{}, Loss: Loss{Agent: map[string]uint64{}}}
		queueCapabilities(b, scope.Tenant, node, &d.Capabilities)
		b.Queue(sqlKeptOff, [16]byte(scope.Tenant), node).Query(func(rows pgx.Rows) error { return keptOff(rows, &d.Quarantine, &d.ModulesOff) })
		b.Queue(sqlSessions, [16]byte(scope.Tenant), node).Query(func(rows pgx.Rows) error { return d.sessions(rows, now) })
	})
	if err != nil {
		return NodeDetail{}, err
	}
	d.Node, d.MachineID, d.Headlines = r.Node, r.machine, []HeadlineValue{}
	d.head(r, s.heads, now)
	for i := 0; i+1 < len(r.others); i += 2 {
		d.SameAs = append(d.SameAs, tenants.NodeRef{Node: r.others[i], Name: inspector.CleanText(r.others[i+1])})
	}
	d.SameMachine = len(d.SameAs) > 0
	return d, nil
}

// Capabilities answers what one node can measure now. It needs telltale:read.
func (s *Service) Capabilities(ctx context.Context, scope tenants.Scope, ref string) (NodeCapabilities, error) {
	var c NodeCapabilities
	var kept []QuarantineRow
	r, err := s.about(ctx, scope, ref, true, func(b *pgx.Batch, node [16]byte) {
		c = NodeCapabilities{Capabilities: []Capability{}, ModulesOff: []ModuleOff{}}
		queueCapabilities(b, scope.Tenant, node, &c.Capabilities)
		b.Queue(sqlKeptOff, [16]byte(scope.Tenant), node).Query(func(rows pgx.Rows) error { return keptOff(rows, &kept, &c.ModulesOff) })
	})
	if err != nil {
		return NodeCapabilities{}, err
	}
	c.NodeRef = tenants.NodeRef{Node: r.Node.Node, Name: r.Name}
	return c, nil
}

func queueCapabilities(b *pgx.Batch, tenant tenants.TenantID, node [16]byte, caps *[]Capability) {
	b.Queue(sqlCapabilities, [16]byte(tenant), node).Query(func(rows pgx.Rows) (err error) {
		*caps, err = pgx.AppendRows(*caps, rows, func(r pgx.CollectableRow) (c Capability, err error) {
			err = r.Scan(&c.Component, &c.Signal, &c.Level, &c.Source, &c.Reason, &c.Since)
			c.Since = c.Since.UTC()
			return c, err
		})
		return err
	})
}

// keptOff sorts the rows of sqlKeptOff: one reason of both slices together, the
// latest first.
func keptOff(rows pgx.Rows, kept *[]QuarantineRow, off *[]ModuleOff) error {
	var isOff bool
	var q QuarantineRow
	_, err := pgx.ForEachRow(rows, []any{&isOff, &q.Reason, &q.Count, &q.FirstAt, &q.LastAt, &q.Example}, func() error {
		q.FirstAt, q.LastAt = q.FirstAt.UTC(), q.LastAt.UTC()
		if isOff {
			*off = append(*off, ModuleOff{Module: q.Reason, By: q.Example, At: q.LastAt})
			return nil
		}
		i := slices.IndexFunc(*kept, func(k QuarantineRow) bool { return k.Reason == q.Reason })
		if i < 0 {
			*kept = append(*kept, q)
			return nil
		}
		k := &(*kept)[i]
		k.Count += q.Count
		if q.FirstAt.Before(k.FirstAt) {
			k.FirstAt = q.FirstAt
		}
		if q.LastAt.After(k.LastAt) {
			k.LastAt, k.Example = q.LastAt, q.Example
		}
		return nil
	})
	slices.SortFunc(*kept, func(a, b QuarantineRow) int {
		return cmp.Or(b.LastAt.Compare(a.LastAt), cmp.Compare(a.Reason, b.Reason))
	})
	slices.SortFunc(*off, func(a, b ModuleOff) int { return cmp.Compare(a.Module, b.Module) })
	*kept, *off = (*kept)[:min(len(*kept), 50)], (*off)[:min(len(*off), 100)]
	return err
}

// head takes in where the node's reports stand and its headline values.
func (d *NodeDetail) head(m meant, hl headlines, now time.Time) {
	if m.epoch == nil {
		return // no stream yet
	}
	d.Epoch, d.Seq = uint64(*m.epoch), uint64(*m.seq)
	d.Loss.MissingSeq, d.Loss.PastRetention, d.Loss.RefusedPoints = uint64(*m.missing), uint64(*m.expired), uint64(*m.refused)
	if m.last == nil {
		return
	}
	at := m.last.UTC()
	d.LastDataAt = &at
	if *m.set != hl.set || now.Sub(at) > headFresh {
		return
	}
	for i, v := range m.vals[:min(len(m.vals), len(hl.metrics))] {
		if v != nil {
			d.Headlines = append(d.Headlines, HeadlineValue{Metric: hl.metrics[i].Name, Unit: string(hl.metrics[i].Unit), Stat: hl.stat(i), Value: *v})
		}
	}
}

func (d *NodeDetail) sessions(rows pgx.Rows, now time.Time) error {
	type stored struct {
		Session
		expires  *time.Time
		counters []byte
		current  bool
	}
	all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (s stored, err error) {
		var id SessionID
		err = r.Scan((*[16]byte)(&id), &s.Replica, &s.Remote, &s.MachineID, &s.BootID, &s.AgentVersion, &s.ConnectedAt, &s.LastSeen,
			&s.ClosedAt, &s.CloseReason, &s.SkewMS, &s.expires, &s.counters, &s.current)
		s.ID, s.ConnectedAt, s.LastSeen = id.String(), s.ConnectedAt.UTC(), s.LastSeen.UTC()
		if s.ClosedAt != nil {
			at := s.ClosedAt.UTC()
			s.ClosedAt = &at
		}
		return s, err
	})
	if err != nil {
		return err
	}
	for _, s := range all {
		s.Live = s.ClosedAt == nil && s.LastSeen.After(now.Add(-OfflineAfter))
		d.Sessions = append(d.Sessions, s.Session)
		if !s.current {
			continue
		}
		d.BootID = s.BootID
		if s.expires != nil {
			at := s.expires.UTC()
			days := at.Sub(now).Hours() / 24
			d.CertExpires, d.CertDays = &at, &days
		}
		if err := json.Unmarshal(s.counters, &d.Loss.Agent); err != nil {
			return err
		}
	}
	return nil
}

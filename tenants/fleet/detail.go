package fleet

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

// Get answers everything about one node, addressed by id or unique name. It
// needs telltale:read. A name that several nodes in scope bear is Invalid with
// reason "ambiguous_node" and names the candidates.
func (s *Service) Get(ctx context.Context, scope tenants.Scope, ref string) (NodeDetail, error) {
	if err := scope.Require(tenants.Read); err != nil {
		return NodeDetail{}, err
	}
	r, err := s.resolve(ctx, scope, ref)
	if err != nil {
		return NodeDetail{}, err
	}
	now := s.now()
	t, n := [16]byte(scope.Tenant), [16]byte(r.id)
	d := NodeDetail{Node: r.Node, MachineID: r.machine, Headlines: []HeadlineValue{}, Capabilities: []Capability{}, ModulesOff: []ModuleOff{},
		Quarantine: []QuarantineRow{}, Sessions: []Session{}, Loss: Loss{Agent: map[string]uint64{}}}
	b := &pgx.Batch{}
	b.Queue(sqlLabels, t, [][16]byte{n}).Query(func(rows pgx.Rows) error {
		var id [16]byte
		var k, v string
		_, err := pgx.ForEachRow(rows, []any{&id, &k, &v}, func() error {
			d.Labels[inspector.CleanText(k)] = inspector.CleanText(v)
			return nil
		})
		return err
	})
	b.Queue(sqlDetail, t, n).Query(func(rows pgx.Rows) error { return d.head(rows, s.heads, now) })
	b.Queue(sqlSessions, t, n).Query(func(rows pgx.Rows) error { return d.sessions(rows, now) })
	s.queueCapabilities(b, t, n, &d.Capabilities, &d.ModulesOff)
	b.Queue(sqlQuarantine, t, n).Query(func(rows pgx.Rows) error {
		got, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (q QuarantineRow, err error) {
			err = r.Scan(&q.Reason, &q.Count, &q.FirstAt, &q.LastAt, &q.Example)
			q.FirstAt, q.LastAt = q.FirstAt.UTC(), q.LastAt.UTC()
			return q, err
		})
		d.Quarantine = append(d.Quarantine, got...)
		return err
	})
	if r.machine != "" {
		q := newQuery(sqlSameMachine, t, []string{r.machine}).in(scope.Nodes)
		q.add(" and n.node_id <> ", q.arg(n), " order by n.node_id limit 10")
		b.Queue(q.sql.String(), q.args...).Query(func(rows pgx.Rows) error {
			var machine, name string
			var id tenants.NodeID
			_, err := pgx.ForEachRow(rows, []any{&machine, (*[16]byte)(&id), &name}, func() error {
				d.SameAs = append(d.SameAs, tenants.NodeRef{Node: id.String(), Name: inspector.CleanText(name)})
				return nil
			})
			return err
		})
	}
	if err := s.db.Read(ctx, scope.Tenant, b); err != nil {
		return NodeDetail{}, err
	}
	d.SameMachine = len(d.SameAs) > 0
	return d, nil
}

// Capabilities answers what one node can measure now. It needs telltale:read.
func (s *Service) Capabilities(ctx context.Context, scope tenants.Scope, ref string) (NodeCapabilities, error) {
	if err := scope.Require(tenants.Read); err != nil {
		return NodeCapabilities{}, err
	}
	r, err := s.resolve(ctx, scope, ref)
	if err != nil {
		return NodeCapabilities{}, err
	}
	c := NodeCapabilities{NodeRef: tenants.NodeRef{Node: r.Node.Node, Name: r.Name}, Capabilities: []Capability{}, ModulesOff: []ModuleOff{}}
	b := &pgx.Batch{}
	s.queueCapabilities(b, scope.Tenant, [16]byte(r.id), &c.Capabilities, &c.ModulesOff)
	if err := s.db.Read(ctx, scope.Tenant, b); err != nil {
		return NodeCapabilities{}, err
	}
	return c, nil
}

func (s *Service) queueCapabilities(b *pgx.Batch, tenant, node [16]byte, caps *[]Capability, off *[]ModuleOff) {
	b.Queue(sqlCapabilities, tenant, node).Query(func(rows pgx.Rows) error {
		got, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (c Capability, err error) {
			err = r.Scan(&c.Component, &c.Signal, &c.Level, &c.Source, &c.Reason, &c.Since)
			c.Since = c.Since.UTC()
			return c, err
		})
		*caps = append(*caps, got...)
		return err
	})
	b.Queue(sqlModulesOff, tenant, node).Query(func(rows pgx.Rows) error {
		got, err := pgx.CollectRows(rows, scanModuleOff)
		*off = append(*off, got...)
		return err
	})
}

// head reads where the node's reports stand and its headline values.
func (d *NodeDetail) head(rows pgx.Rows, hl headlines, now time.Time) error {
	var (
		set                       int32
		vals                      []*float64
		epoch, seq                int64
		missing, expired, refused int64
	)
	_, err := pgx.ForEachRow(rows, []any{&epoch, &seq, &d.LastDataAt, &set, &vals, &missing, &expired, &refused}, func() error { return nil })
	if err != nil {
		return err
	}
	d.Epoch, d.Seq = uint64(epoch), uint64(seq)
	d.Loss.MissingSeq, d.Loss.PastRetention, d.Loss.RefusedPoints = uint64(missing), uint64(expired), uint64(refused)
	if d.LastDataAt == nil {
		return nil
	}
	at := d.LastDataAt.UTC()
	d.LastDataAt = &at
	if set != hl.set || now.Sub(at) > headFresh {
		return nil
	}
	for i, v := range vals[:min(len(vals), len(hl.metrics))] {
		if v != nil {
			d.Headlines = append(d.Headlines, HeadlineValue{Metric: hl.metrics[i].Name, Unit: string(hl.metrics[i].Unit), Stat: hl.stat(i), Value: *v})
		}
	}
	return nil
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

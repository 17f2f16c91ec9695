package events

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

const (
	maxTitle      = 200 // bytes of a finding's title
	maxFindLabels = 16
)

// Promoted is the event of a finding.
type Promoted struct {
	Event
	Was string // its title before, when this promotion gave it another one
}

// Promote makes an event of a task's finding. It needs telltale:diagnose; the
// node must be in scope. The same task, node and labels give the same event,
// however often they are promoted; the last title stands, and the last severity
// that was given. That the finding is the task's is the caller's to see to.
func (s *Service) Promote(ctx context.Context, scope tenants.Scope, f Finding) (Promoted, error) {
	if err := scope.Require(tenants.Diagnose); err != nil {
		return Promoted{}, err
	}
	c, task, err := s.checkFinding(f)
	if err != nil {
		return Promoted{}, err
	}
	node, _, err := s.nodes.ResolveNode(ctx, scope, f.Node)
	if err != nil {
		return Promoted{}, err
	}
	t, title := uid(scope.Tenant), inspector.CleanText(strings.TrimSpace(f.Title))
	var id ID
	var out Promoted
	isNew, moved := false, false
	err = s.parts.Write(ctx, scope.Tenant, []time.Time{c.ts}, func() error {
		return s.db.InTenant(ctx, scope.Tenant, func(ctx context.Context, tx pgx.Tx) error {
			var old []promotion
			b := &pgx.Batch{}
			b.Queue(sqlTurn, node.String())
			b.Queue(sqlPromoted, t, uid(node), c.fingerprint[:], c.ts.Add(-day-time.Hour), c.ts.Add(day+time.Hour)).Query(func(rows pgx.Rows) error {
				var err error
				old, err = pgx.CollectRows(rows, pgx.RowToStructByPos[promotion])
				return err
			})
			if err := tx.SendBatch(ctx, b).Close(); err != nil {
				return err
			}
			if isNew, moved, out.Was = len(old) == 0, false, ""; !isNew {
				is := old[0]
				id = is.ID
				severity := c.severity
				if f.Severity == "" {
					severity = int(is.Severity)
				}
				if title == is.Title && severity == int(is.Severity) {
					return nil
				}
				if moved = true; title != is.Title {
					out.Was = is.Title
				}
				_, err := tx.Exec(ctx, sqlRetitle, t, is.At, uid(id), title, severity)
				return err
			}
			id = idFor(c.ts, node[:], c.fingerprint[:])
			b = &pgx.Batch{}
			b.Queue(sqlInsert, t, c.ts, uid(id), uid(node), f.Kind, c.severity, string(inspector.EventEnded), string(FromTask), c.fingerprint[:],
				c.ts, c.ts, c.ts, nil, c.seen, c.truncated, 0, 0, mustJSON(c.labels), mustJSON(c.samples), title, task)
			queueContext(b, contextKey{scope.Tenant, c.ts, id, 1}, node, whyFirst, c.ts, s.relatedTo(f.Kind), s.now())
			return tx.SendBatch(ctx, b).Close()
		})
	})
	if err != nil {
		return Promoted{}, tenantdb.Fault(err)
	}
	if isNew || moved {
		s.announce(Change{Tenant: scope.Tenant, Event: id, Node: node, New: isNew})
	}
	if isNew {
		s.wake()
	}
	d, err := s.Get(ctx, scope, id)
	out.Event = d.Event
	return out, err
}

// promotion is what is there of a finding that was promoted before.
type promotion struct {
	At       time.Time
	ID       [16]byte
	Title    string
	Severity int16
}

// checkFinding refuses what is out of bounds; nothing is clamped.
func (s *Service) checkFinding(f Finding) (c checked, task [16]byte, err error) {
	ticket, err := uuid.Parse(f.Task)
	if err != nil || len(f.Task) != 36 {
		return c, task, fault.Bad("ticket_id", "not a ticket").Do("use the ticket_id that the task's first answer gave")
	}
	if _, ok := s.reg.Task(f.Kind); !ok {
		return c, task, fault.Bad("kind", "no kind of task %.40q", inspector.CleanText(f.Kind))
	}
	now := s.now()
	c.ts = f.At.UTC().Truncate(time.Millisecond)
	if c.severity = f.Severity.Rank(); f.Severity == "" {
		c.severity = inspector.Warning.Rank()
	}
	title := strings.TrimSpace(f.Title)
	switch {
	case c.severity < 0:
		return c, task, fault.Bad("severity", "want info, warning or critical")
	case title == "" || len(inspector.CleanText(title)) > maxTitle:
		return c, task, fault.Bad("title", "a title has 1 to %d bytes", maxTitle)
	case len(f.Labels) > maxFindLabels:
		return c, task, fault.Bad("labels", "at most %d labels", maxFindLabels)
	case len(f.Samples) > inspector.MaxEventSamples:
		return c, task, fault.Bad("samples", "at most %d samples", inspector.MaxEventSamples)
	case c.ts.Before(now.Add(-day-time.Hour)) || c.ts.After(now.Add(aheadOK)):
		return c, task, fault.Bad("at", "a finding is at most a day old")
	}
	c.labels = cleanLabels(f.Labels)
	c.samples = cleanSamples(f.Samples, 0)
	c.seen = min(clampCount(f.Count), int64(len(c.samples)))
	c.truncated = clampCount(f.Count) - c.seen
	c.fingerprint = promotedPrint(ticket.String(), f.Kind, c.labels)
	return c, ticket, nil
}

// promotedPrint names a finding: its task, kind and labels.
func promotedPrint(ticket, kind string, labels map[string]string) inspector.Fingerprint {
	return inspector.FingerprintOf("task "+ticket+" "+kind, labels)
}

// relatedTo names metrics for the snapshot of a finding: the plain ones of the
// task's component.
func (s *Service) relatedTo(kind string) []string {
	k, _ := s.reg.Task(kind)
	c, _ := s.reg.Component(k.Component)
	var out []string
	for _, m := range c.Metrics {
		if m.Headline && len(out) < inspector.MaxRelatedMetrics {
			out = append(out, m.Name)
		}
	}
	return out
}

package events

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
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
	defaultSpan = 24 * time.Hour
	edge        = time.Minute // how far a caller's clock may be ahead
	fewNodes    = 50          // up to these are looked up one by one
	maxScan     = 5_000       // rows that one page looks through where no index answers the filter
	maxKinds    = 20
)

// List answers one page of events, the youngest first. It needs telltale:read.
// A page may end early, with a cursor, when a filter leaves out most of a long
// list. Coverage counts nodes: one that is away may hold events back. The
// answer may be shared with other callers: do not change its maps and slices.
func (s *Service) List(ctx context.Context, scope tenants.Scope, q ListQuery) (Page, error) {
	if err := scope.Require(tenants.Read); err != nil {
		return Page{}, err
	}
	key := fmt.Sprintf("%q %q %q %q %q %d %d %d %d %d %q %s", q.Node, q.Kinds, q.MinSeverity, q.State, q.Origin, q.From.Unix(), q.From.Nanosecond(), q.To.Unix(), q.To.Nanosecond(), q.Limit, q.Cursor,
		crowdKey(scope, tenants.NodeID{}, q.Labels))
	return s.lists.Do(ctx, key, func(ctx context.Context) (Page, error) { return s.list(ctx, scope, q) })
}

func (s *Service) list(ctx context.Context, scope tenants.Scope, q ListQuery) (Page, error) {
	now := s.now()
	after, err := s.checkQuery(scope, &q, now)
	if err != nil {
		return Page{}, err
	}
	var node tenants.NodeID
	if q.Node != "" {
		if node, _, err = s.nodes.ResolveNode(ctx, scope, q.Node); err != nil {
			return Page{}, err
		}
	}
	limit, clamped := tenants.ClampRows(q.Limit)
	pick := picking{s: s, q: q, after: after, tenant: scope.Tenant, limit: limit}
	c, err := pick.read(ctx, scope, node, now)
	if err != nil {
		return Page{}, err
	}
	p := Page{Window: tenants.Window{From: after.from, To: after.to}, Events: []Event{}, Coverage: c.coverage}
	if clamped {
		p.Notes = append(p.Notes, fmt.Sprintf("limit was clamped to %d", limit))
	}
	if !c.all && len(c.ids) == 0 {
		return p, nil
	}
	if len(pick.kept) > 0 {
		p.Notes = append(p.Notes, keptNote(pick.kept, after.from))
	}
	var end *position
	if p.Events, end, err = pick.page(ctx); err != nil {
		return Page{}, err
	}
	if end != nil {
		after.position = *end
		p.Truncated = &tenants.Truncated{Returned: len(p.Events), NextCursor: after.write(),
			Hint: "ask again with the cursor, or narrow by node, labels, kinds, severity or time"}
	}
	return p, nil
}

// keptReasons are those for which a report of an event, or of what may have
// been one, is kept out: what was too late or too far off in time may have been
// a window too.
var keptReasons = []string{ReasonSkew, ReasonTooOld, ReasonFuture, ReasonMalformed, ReasonUnknown, ReasonTooMany}

// keptNote says for which reasons reports of nodes were kept out since a time:
// events may be missing.
func keptNote(kept map[string]int, since time.Time) string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(kept)) {
		parts = append(parts, fmt.Sprintf("%s of %d", reason, kept[reason]))
	}
	return fmt.Sprintf("reports of nodes were kept out since %s, so that events may be missing (%s); explain a node for more",
		since.Format(time.RFC3339), strings.Join(parts, ", "))
}

// checkQuery refuses what is out of bounds and reads where the page begins.
func (s *Service) checkQuery(scope tenants.Scope, q *ListQuery, now time.Time) (cursor, error) {
	if err := checkLabels("labels", q.Labels); err != nil {
		return cursor{}, err
	}
	if len(q.Kinds) > maxKinds {
		return cursor{}, fault.Bad("kinds", "at most %d kinds", maxKinds)
	}
	q.Kinds = slices.Clone(q.Kinds)
	slices.Sort(q.Kinds)
	q.Kinds = slices.Compact(q.Kinds)
	known := s.kinds()
	for _, k := range q.Kinds {
		if !slices.Contains(known, k) {
			return cursor{}, fault.Bad("kinds", "no kind of event %.40q: want some of %s", inspector.CleanText(k), strings.Join(known, ", "))
		}
	}
	if q.MinSeverity != "" && q.MinSeverity.Rank() < 0 {
		return cursor{}, fault.Bad("min_severity", "want info, warning or critical")
	}
	if q.State != "" && stateRank(q.State) < 0 {
		return cursor{}, fault.Bad("state", "want open, flapping or ended")
	}
	if q.Origin != "" && q.Origin != FromProbe && q.Origin != FromTask {
		return cursor{}, fault.Bad("origin", "want probe or task")
	}
	sum := filterSum(scope.Tenant, *q)
	if q.Cursor != "" {
		return readCursor(q.Cursor, sum)
	}
	c := cursor{sum: sum, from: q.From.UTC(), to: q.To.UTC()}
	switch {
	case q.To.IsZero():
		c.to = now.UTC()
	case c.to.After(now.Add(edge)):
		return cursor{}, fault.Bad("to", "to lies in the future: the server's time is %s", now.UTC().Format(time.RFC3339))
	}
	if q.From.IsZero() {
		c.from = c.to.Add(-defaultSpan)
	}
	if !c.from.Before(c.to) {
		return cursor{}, fault.Bad("from", "from lies before to")
	}
	if oldest := now.Add(-MaxAge); c.from.Before(oldest) {
		c.from = oldest.UTC()
	}
	if !c.from.Before(c.to) {
		return cursor{}, fault.Bad("to", "events are kept for at most %d days", int(MaxAge/day))
	}
	c.position = position{ts: c.to.Add(time.Millisecond)}
	return c, nil
}

// kinds lists every kind that an event may have: those of nodes, and the tasks
// whose findings people promote.
func (s *Service) kinds() []string {
	var out []string
	for _, c := range s.reg.Components() {
		for _, k := range c.Events {
			out = append(out, k.Name)
		}
		for _, k := range c.Tasks {
			out = append(out, k.Name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// scanEvent reads sqlColumns, and further columns into more.
func (s *Service) scanEvent(r pgx.CollectableRow, more ...any) (e Event, err error) {
	var (
		id                       ID
		node                     tenants.NodeID
		severity                 int
		fingerprint, labels      []byte
		title                    string
		task                     *[16]byte
		samples, truncated, lost int64
		origin, state, nodeName  string
	)
	err = r.Scan(append([]any{&e.First, (*[16]byte)(&id), (*[16]byte)(&node), &nodeName, &e.Kind, &severity, &state, &origin, &fingerprint, &e.Last, &e.Corrected,
		&samples, &truncated, &lost, &e.Recurrence, &labels, &title, &task, &e.Context}, more...)...)
	if err != nil {
		return e, err
	}
	e.ID, e.Node, e.Name = id.String(), node.String(), inspector.CleanText(nodeName)
	e.First, e.Last = e.First.UTC(), e.Last.UTC()
	e.Severity = []inspector.Severity{inspector.Info, inspector.Warning, inspector.Critical}[severity]
	e.State, e.Origin, e.Fingerprint = inspector.EventState(state), Origin(origin), hex.EncodeToString(fingerprint)
	e.Samples, e.Truncated, e.Lost = uint64(samples), uint64(truncated), uint64(lost)
	e.Cumulative = e.Samples + e.Truncated
	if task != nil {
		e.Task = uuid.UUID(*task).String()
	}
	if k, ok := s.reg.Event(e.Kind); ok {
		e.Title, e.NextTool = k.Title, k.Tool
		if passing(k) && e.State == inspector.EventOpen && !e.Last.After(s.now().Add(-inspector.OverAfter)) {
			e.State = inspector.EventEnded
		}
	} else if k, ok := s.reg.Task(e.Kind); ok {
		e.Title = k.Title
	}
	if title != "" {
		e.Title = title
	}
	e.Scope = map[string]string{}
	return e, json.Unmarshal(labels, &e.Scope)
}

// passing reports whether an event of a kind is over when it was not seen for
// a while: its node may have gone, or its last word been kept out.
func passing(k inspector.EventKind) bool { return k.Immediate && !k.Lasting }

func (s *Service) passingKinds() (names []string) {
	for _, c := range s.reg.Components() {
		for _, k := range c.Events {
			if passing(k) {
				names = append(names, k.Name)
			}
		}
	}
	return names
}

func (s *Service) scanListed(r pgx.CollectableRow) (Event, error) { return s.scanEvent(r) }

// picking is one page under way.
type picking struct {
	s      *Service
	q      ListQuery
	after  cursor
	crowd  crowd
	tenant tenants.TenantID
	limit  int

	rows    []Event // what queue's statements answered
	bounded bool
	kept    map[string]int
}

// read finds the nodes that the list is about, and reads the rows of the page
// and what was kept out: in one round trip when the nodes are all or, as far as
// this process remembers, known; rows of other nodes are never kept.
func (p *picking) read(ctx context.Context, scope tenants.Scope, node tenants.NodeID, now time.Time) (crowd, error) {
	key := crowdKey(scope, node, p.q.Labels)
	c, known := p.s.crowds.get(key, now)
	b := &pgx.Batch{}
	switch p.crowd = c; {
	case known:
	case node.IsZero() && len(p.q.Labels) == 0 && scope.Nodes.All():
		p.crowd.all = true
	case !node.IsZero():
		p.crowd.ids = [][16]byte{node}
	default:
		p.crowd.ids = p.s.crowds.few(key)
	}
	if !known {
		c.at, c.all = now, p.crowd.all
		c.queue(b, scope, node, p.q.Labels)
	}
	along := p.crowd.all || len(p.crowd.ids) > 0
	if along {
		p.queue(b)
	}
	if b.Len() > 0 {
		if err := p.s.db.ReadKept(ctx, scope.Tenant, b); err != nil {
			return crowd{}, err
		}
	}
	if !known {
		p.s.crowds.put(key, c)
	}
	if c.all || len(c.ids) == 0 || along && slices.Equal(c.ids, p.crowd.ids) {
		return c, nil
	}
	p.crowd, b = c, &pgx.Batch{}
	p.queue(b)
	return c, p.s.db.ReadKept(ctx, scope.Tenant, b)
}

// queue adds the statements of the page.
func (p *picking) queue(b *pgx.Batch) {
	p.rows, p.kept = nil, map[string]int{}
	if p.q.Cursor == "" {
		var nodes [][16]byte
		if !p.crowd.all {
			nodes = p.crowd.ids
		}
		p.s.metrics.KeptOut(b, p.tenant, nodes, keptReasons, p.after.from, func(reason string, n int) { p.kept[reason] = n })
	}
	var q *statement
	q, p.bounded = p.statement()
	b.Queue(q.String(), q.args...).Query(func(rows pgx.Rows) (err error) {
		p.rows, err = pgx.AppendRows([]Event{}, rows, p.s.scanListed)
		return err
	})
}

// page takes the events from what was read, and finds where the next page
// begins; nil: this is the end.
func (p *picking) page(ctx context.Context) ([]Event, *position, error) {
	rows, bounded := p.rows, p.bounded
	if len(rows) > p.limit {
		rows = rows[:p.limit]
		last, err := ParseID(rows[p.limit-1].ID)
		return rows, &position{rows[p.limit-1].First, last}, err
	}
	if !bounded {
		return rows, nil, nil
	}
	end := newStatement("select ts, id from event e where true", uid(p.tenant))
	p.keyset(end)
	end.add(" offset ", end.arg(maxScan-1), " limit 1")
	at, more, err := tenantdb.QueryOne(ctx, p.s.db, p.tenant, end.String(), end.args, func(r pgx.CollectableRow) (at position, err error) {
		return at, r.Scan(&at.ts, (*[16]byte)(&at.id))
	})
	if err != nil || !more {
		return rows, nil, err
	}
	last := p.after.position
	if len(rows) > 0 {
		last.ts = rows[len(rows)-1].First
		if last.id, err = ParseID(rows[len(rows)-1].ID); err != nil {
			return nil, nil, err
		}
	}
	at = at.bare(last)
	return rows, &at, nil
}

// statement picks the rows by the index that answers most of the filter.
// bounded: no index does, so that only the first maxScan rows are looked at.
func (p *picking) statement() (q *statement, bounded bool) {
	q = newStatement("select "+sqlColumns, uid(p.tenant))
	q.add(sqlSince, q.arg(p.after.from), sqlUntil, q.arg(p.after.to), sqlColumnsEnd, " from (")
	few := !p.crowd.all && len(p.crowd.ids) <= fewNodes
	byKind := len(p.q.Kinds) > 0 || p.q.MinSeverity.Rank() > 0
	switch {
	case few || !byKind && !p.filtered():
		q.add("select * from event e where true")
		p.filter(q)
		p.grade(q)
		p.keyset(q)
	case byKind:
		kinds, grades := p.q.Kinds, []int16{}
		if len(kinds) == 0 {
			kinds = p.s.kinds()
		}
		for g := max(0, p.q.MinSeverity.Rank()); g <= inspector.Critical.Rank(); g++ {
			grades = append(grades, int16(g))
		}
		q.add("select e.* from unnest(", q.arg(kinds), "::text[]) k, unnest(", q.arg(grades), "::smallint[]) g, lateral (select * from event e where kind = k and severity = g")
		p.filter(q)
		p.keyset(q)
		q.add(" limit ", q.arg(p.limit+1), ") e order by e.ts desc, e.id desc")
	default:
		bounded = true
		q.add("select * from (select * from event e where true")
		p.keyset(q)
		q.add(" limit ", q.arg(maxScan), ") e where true")
		p.filter(q)
		q.add(" order by e.ts desc, e.id desc")
	}
	q.add(" limit ", q.arg(p.limit+1), ") e join node n on n.tenant_id = $1 and n.node_id = e.node_id order by e.ts desc, e.id desc")
	return q, bounded
}

// filtered reports whether rows are left out by what no index knows.
func (p *picking) filtered() bool { return !p.crowd.all || p.q.State != "" || p.q.Origin != "" }

func (p *picking) filter(q *statement) {
	if !p.crowd.all {
		q.add(" and e.node_id = any(", q.arg(p.crowd.ids), "::uuid[])")
	}
	if p.q.State != "" { // as scanEvent shows it
		over := " (e.state = 'open' and e.last_seen <= " + q.arg(p.s.now().Add(-inspector.OverAfter)) + " and e.kind = any(" + q.arg(p.s.passingKinds()) + "::text[]))"
		switch p.q.State {
		case inspector.EventEnded:
			q.add(" and (e.state = 'ended' or", over, ")")
		default:
			q.add(" and e.state = ", q.arg(string(p.q.State)), " and not", over)
		}
	}
	if p.q.Origin != "" {
		q.add(" and e.origin = ", q.arg(string(p.q.Origin)))
	}
}

// grade filters by kind and severity.
func (p *picking) grade(q *statement) {
	if len(p.q.Kinds) > 0 {
		q.add(" and e.kind = any(", q.arg(p.q.Kinds), "::text[])")
	}
	if r := p.q.MinSeverity.Rank(); r > 0 {
		q.add(" and e.severity >= ", q.arg(r))
	}
}

// keyset bounds the rows by time and by where the page begins, and orders them.
func (p *picking) keyset(q *statement) {
	a := p.after
	ts := q.arg(a.position.ts)
	q.add(" and e.tenant_id = $1 and e.ts > ", q.arg(a.from), " and e.ts <= ", q.arg(a.to), " and e.ts <= ", ts,
		" and (e.ts, e.id) < (", ts, ", ", q.arg(uid(a.position.id)), ") order by e.ts desc, e.id desc")
}

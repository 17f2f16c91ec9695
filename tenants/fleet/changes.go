package fleet

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// ChangeKind says what changed on a node.
type ChangeKind string

// The kinds of change.
const (
	AgentStarted  ChangeKind = "agent_started"  // another life of the agent
	AgentUpgraded ChangeKind = "agent_upgraded" // it has another version
	Booted        ChangeKind = "boot"           // the machine has another boot id
	KernelChanged ChangeKind = "kernel"         // it has another kernel
	ConfigChanged ChangeKind = "config"         // the agent has another configuration
	ModuleOffNow  ChangeKind = "module_off"     // switched off from the server
	ModuleOnNow   ChangeKind = "module_on"      // the switch was lifted
	LevelChanged  ChangeKind = "capability"     // a signal works more or less than before
)

// Change is one change of one node. All text is untrusted and clean.
type Change struct {
	tenants.NodeRef
	At      time.Time  `json:"at"` // when the server saw it
	Kind    ChangeKind `json:"kind"`
	Subject string     `json:"subject,omitempty"` // module, or component.signal
	Before  string     `json:"before,omitempty"`
	After   string     `json:"after,omitempty"` // of a switch: who did it
}

// Bounds of changes.
const (
	keepOfKind     = 50                  // newest ones of each kind kept of a node, so that none pushes another out
	keepLevels     = 150                 // as many of a node's signals, which are many
	keepChanges    = 30 * 24 * time.Hour // age at which they go
	maxChangeNodes = 200                 // nodes of one question
	maxChangeRows  = 200                 // rows of one answer that are none of signals
	maxLevelRows   = 100                 // and those of signals beside them
)

// Changes answers what changed on the nodes in from <= at <= to, the latest
// first, at most 300 rows of at most 200 nodes; those outside the scope have
// none. more: there are, or may have been, further ones within the time, for
// this answer or what is kept of a node is full. It needs telltale:read.
func (s *Service) Changes(ctx context.Context, scope tenants.Scope, nodes []tenants.NodeID, from, to time.Time) (list []Change, more bool, err error) {
	if err := scope.Require(tenants.Read); err != nil {
		return nil, false, err
	}
	if len(nodes) > maxChangeNodes {
		return nil, false, fault.Bad("nodes", "at most %d nodes", maxChangeNodes)
	}
	ids := make([][16]byte, len(nodes))
	for i, id := range nodes {
		ids[i] = id
	}
	q := newQuery(sqlChanges, [16]byte(scope.Tenant), ids, from, to, maxLevelRows, maxChangeRows).in(scope.Nodes).add(sqlChangesTail)
	list, err = tenantdb.Query(ctx, s.db, scope.Tenant, q.sql.String(), q.args, func(r pgx.CollectableRow) (c Change, err error) {
		var id tenants.NodeID
		var ofKind, of int
		err = r.Scan((*[16]byte)(&id), &c.Name, &c.At, &c.Kind, &c.Subject, &c.Before, &c.After, &ofKind, &of)
		c.Node, c.Name, c.At = id.String(), inspector.CleanText(c.Name), c.At.UTC()
		more = more || ofKind >= c.Kind.kept() || of > c.Kind.rows()
		if of > c.Kind.rows() {
			c.Kind = "" // it only tells that there are more
		}
		return c, err
	})
	return slices.DeleteFunc(list, func(c Change) bool { return c.Kind == "" }), more, err
}

// kept is how many changes of a kind are kept of a node.
func (k ChangeKind) kept() int {
	if k == LevelChanged {
		return keepLevels
	}
	return keepOfKind
}

// rows is how many changes one answer holds of a kind and its like.
func (k ChangeKind) rows() int {
	if k == LevelChanged {
		return maxLevelRows
	}
	return maxChangeRows
}

// former is what the stream before this one said of the node.
type former struct {
	life
	version, kernel, config string
}

// changed lists what a new stream shows to be different. What either of them
// does not say is no change.
func (f SessionFacts) changed(was former) (out []Change) {
	note := func(k ChangeKind, before, after string) {
		if before != "" && after != "" && before != after {
			out = append(out, Change{Kind: k, Before: before, After: after})
		}
	}
	note(Booted, was.boot, f.BootID)
	note(KernelChanged, was.kernel, f.Kernel)
	if was.life != f.life() {
		out = append(out, Change{Kind: AgentStarted, Before: startText(was.started), After: startText(f.StartedNS)})
	}
	note(AgentUpgraded, was.version, f.AgentVersion)
	note(ConfigChanged, was.config, f.ConfigDigest)
	return out
}

// startText is the start of an agent by its own clock.
func startText(ns int64) string {
	if ns == 0 {
		return ""
	}
	return time.Unix(0, ns).UTC().Format(time.RFC3339)
}

// queueChanges adds changes of one moment, and drops what is beyond the bounds.
func queueChanges(b *pgx.Batch, tenant, node [16]byte, at time.Time, list []Change) {
	if len(list) == 0 {
		return
	}
	cols := make([][]string, 4)
	for _, c := range list {
		for i, v := range []string{string(c.Kind), c.Subject, c.Before, c.After} {
			cols[i] = append(cols[i], v)
		}
	}
	b.Queue(sqlAddChanges, tenant, node, at, cols[0], cols[1], cols[2], cols[3])
	queueTrim(b, tenant, node, at)
}

func queueTrim(b *pgx.Batch, tenant, node [16]byte, at time.Time) {
	b.Queue(sqlTrimChanges, tenant, node, at.Add(-keepChanges), keepLevels, keepOfKind)
}

const (
	sqlAddChanges = `
insert into node_change (tenant_id, node_id, at, change_id, kind, subject, before, after)
select $1, $2, $3, gen_random_uuid(), u.k, u.s, u.b, u.a from unnest($4::text[], $5::text[], $6::text[], $7::text[]) as u(k, s, b, a)`

	// The levels that a report of capabilities is about to change, as
	// sqlPutCapabilities takes it; a signal that was not there before is none.
	sqlLevelChanges = `
insert into node_change (tenant_id, node_id, at, change_id, kind, subject, before, after)
select $1, $2, $3, gen_random_uuid(), 'capability', c.component || '.' || c.signal, c.level, u.l || case when u.r = '' then '' else ': ' || u.r end
  from unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::text[]) as u(c, s, l, src, r)
  join capability c on c.tenant_id = $1 and c.node_id = $2 and c.component = u.c and c.signal = u.s and c.level <> u.l`

	sqlTrimChanges = `
delete from node_change c where c.tenant_id = $1 and c.node_id = $2
   and (c.at < $3 or (c.at, c.change_id) in (
     select x.at, x.change_id from (
       select at, change_id, kind, row_number() over (partition by kind order by at desc, change_id desc) as i
         from node_change where tenant_id = $1 and node_id = $2) x
      where x.i > case when x.kind = 'capability' then $4::int else $5::int end))`

	// i counts what one node has of one kind, j all of the signals and all of
	// the others; the row beyond the bound of either tells that there are more.
	sqlChanges = `
select node_id, name, at, kind, subject, before, after, i, j from (
select c.node_id, n.name, c.at, c.kind, c.subject, c.before, c.after, c.change_id,
  row_number() over (partition by c.node_id, c.kind order by c.at desc, c.change_id desc) as i,
  row_number() over (partition by c.kind = 'capability' order by c.at desc, c.change_id desc) as j
  from node_change c join node n on n.tenant_id = $1 and n.node_id = c.node_id
 where c.tenant_id = $1 and c.node_id = any($2::uuid[]) and c.at >= $3 and c.at <= $4`
	sqlChangesTail = `) x where j <= 1 + case when kind = 'capability' then $5::int else $6::int end order by at desc, change_id desc`
)

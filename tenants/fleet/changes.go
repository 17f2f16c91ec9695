package fleet

import (
	"context"
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
	maxChanges     = 500                 // newest ones kept of a node
	keepChanges    = 30 * 24 * time.Hour // age at which they go
	maxChangeNodes = 200                 // nodes of one question
)

// Changes answers what changed on the nodes in from <= at <= to, the latest
// first, at most 200 rows of at most 200 nodes; those outside the scope have
// none. It needs telltale:read.
func (s *Service) Changes(ctx context.Context, scope tenants.Scope, nodes []tenants.NodeID, from, to time.Time) ([]Change, error) {
	if err := scope.Require(tenants.Read); err != nil {
		return nil, err
	}
	if len(nodes) > maxChangeNodes {
		return nil, fault.Bad("nodes", "at most %d nodes", maxChangeNodes)
	}
	ids := make([][16]byte, len(nodes))
	for i, id := range nodes {
		ids[i] = id
	}
	q := newQuery(sqlChanges, [16]byte(scope.Tenant), ids, from, to).in(scope.Nodes).add(sqlChangesTail)
	return tenantdb.Query(ctx, s.db, scope.Tenant, q.sql.String(), q.args, func(r pgx.CollectableRow) (c Change, err error) {
		var id tenants.NodeID
		err = r.Scan((*[16]byte)(&id), &c.Name, &c.At, &c.Kind, &c.Subject, &c.Before, &c.After)
		c.Node, c.Name, c.At = id.String(), inspector.CleanText(c.Name), c.At.UTC()
		return c, err
	})
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
	b.Queue(sqlTrimChanges, tenant, node, at.Add(-keepChanges), maxChanges)
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
   and (c.at < $3 or (c.at, c.change_id) <= (select at, change_id from node_change where tenant_id = $1 and node_id = $2 order by at desc, change_id desc offset $4 limit 1))`

	sqlChanges = `
select c.node_id, n.name, c.at, c.kind, c.subject, c.before, c.after
  from node_change c join node n on n.tenant_id = $1 and n.node_id = c.node_id
 where c.tenant_id = $1 and c.node_id = any($2::uuid[]) and c.at >= $3 and c.at <= $4`
	sqlChangesTail = ` order by c.at desc, c.change_id desc limit 200`
)

package fleet

import (
	"context"
	"maps"
	"regexp"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

const (
	maxCapabilities = 500
	maxReasonBytes  = 500 // of a capability's reason and a quarantine's example
)

// RecordCapabilities replaces what the node that scope is can do. More than
// 500 rows, a repeated signal or an unknown level is Invalid. Components and
// signals that this server does not know are kept: the agent may be newer.
func (s *Service) RecordCapabilities(ctx context.Context, scope tenants.Scope, caps []inspector.Capability) error {
	node, err := nodeOf(scope)
	if err != nil {
		return err
	}
	if len(caps) > maxCapabilities {
		return fault.Newf(fault.Invalid, "bad_capabilities", "at most %d capabilities, this has %d", maxCapabilities, len(caps))
	}
	cols := make([][]string, 5)
	seen := map[[2]string]bool{}
	for _, c := range caps {
		component, _ := inspector.CleanLabel(c.Component)
		signal, _ := inspector.CleanLabel(c.Signal)
		source, _ := inspector.CleanLabel(string(c.Source))
		if component == "" || signal == "" || seen[[2]string{component, signal}] || (c.Level != inspector.Full && c.Level != inspector.Degraded && c.Level != inspector.Off) {
			return fault.Newf(fault.Invalid, "bad_capabilities", "capability %q of %q is repeated, nameless or of unknown level %q", signal, component, clip(string(c.Level), 20))
		}
		seen[[2]string{component, signal}] = true
		for i, v := range []string{component, signal, string(c.Level), source, clip(c.Reason, maxReasonBytes)} {
			cols[i] = append(cols[i], v)
		}
	}
	t, n := [16]byte(scope.Tenant), [16]byte(node)
	err = s.db.InTenants(ctx, []tenants.TenantID{scope.Tenant}, func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		now := s.now()
		b.Queue(sqlLevelChanges, t, n, now, cols[0], cols[1], cols[2], cols[3], cols[4])
		queueTrim(b, t, n, now)
		b.Queue(sqlDropCapabilities, t, n, cols[0], cols[1])
		b.Queue(sqlPutCapabilities, t, n, now, cols[0], cols[1], cols[2], cols[3], cols[4])
		return tx.SendBatch(ctx, b).Close()
	})
	return tenantdb.Fault(err)
}

// clip cleans untrusted text and cuts it to n bytes at a rune boundary.
func clip(s string, n int) string {
	s = inspector.CleanText(s[:min(len(s), n)])
	for len(s) > n {
		s = s[:n]
		for len(s) > 0 && s[len(s)-1]&0xc0 == 0x80 {
			s = s[:len(s)-1]
		}
		s = s[:len(s)-1]
	}
	return s
}

var reasonWord = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// Quarantine counts n reports of the node that scope is which were refused
// before they reached a service (undecodable, oversized, a bad layout).
// Outcomes of the metrics service are counted by that service and must not be
// counted again here. reason is a snake_case word of the caller's own, never
// text from the node; example is untrusted and cleaned here.
func (s *Service) Quarantine(ctx context.Context, scope tenants.Scope, reason, example string, n int64) error {
	node, err := nodeOf(scope)
	if err != nil {
		return err
	}
	if !reasonWord.MatchString(reason) || n <= 0 {
		return fault.New(fault.Internal, "internal", "the server failed to count a refusal")
	}
	err = s.db.InTenants(ctx, []tenants.TenantID{scope.Tenant}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlQuarantineOne, [16]byte(scope.Tenant), [16]byte(node), reason, n, s.now(), clip(example, maxReasonBytes))
		return err
	})
	return tenantdb.Fault(err)
}

// DisabledModules lists the modules switched off for the node that scope is.
func (s *Service) DisabledModules(ctx context.Context, scope tenants.Scope) ([]string, error) {
	node, err := nodeOf(scope)
	if err != nil {
		return nil, err
	}
	return tenantdb.Query(ctx, s.db, scope.Tenant, sqlOffModules, []any{[16]byte(scope.Tenant), [16]byte(node)}, pgx.RowTo[string])
}

// SwitchedOff lists the modules that are switched off for the nodes, sorted. A
// node that is missing from the answer has none off. A replica polls it for the
// nodes whose streams it holds, to tell them: it asks for the state and not for
// what changed lately, because the clock that stamped a change may be any.
func (s *Service) SwitchedOff(ctx context.Context, live map[tenants.TenantID][]tenants.NodeID) (map[tenants.NodeID][]string, error) {
	out := map[tenants.NodeID][]string{}
	for chunk := range slices.Chunk(slices.Collect(maps.Keys(live)), tenantdb.MaxTenants) {
		var ts, ns [][16]byte
		for _, t := range chunk {
			for _, n := range live[t] {
				ts, ns = append(ts, t), append(ns, n)
			}
		}
		err := s.db.InTenants(ctx, chunk, func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, sqlSwitchedOff, ts, ns)
			if err != nil {
				return err
			}
			var node tenants.NodeID
			var module string
			_, err = pgx.ForEachRow(rows, []any{(*[16]byte)(&node), &module}, func() error {
				out[node] = append(out[node], module)
				return nil
			})
			return err
		})
		if err != nil {
			return nil, tenantdb.Fault(err)
		}
	}
	return out, nil
}

// SetModules makes off the whole list of modules that are switched off for a
// node from the server; an empty list lifts all remote switches. It can never
// switch on what the node's own configuration has off. It needs telltale:admin.
func (s *Service) SetModules(ctx context.Context, scope tenants.Scope, ref string, off []string) ([]ModuleOff, error) {
	if err := scope.Require(tenants.Admin); err != nil {
		return nil, err
	}
	for _, m := range off {
		if _, ok := s.reg.Component(m); !ok {
			return nil, fault.Bad("off", "no module %q", clip(m, 40)).Do("call get_node to see its modules")
		}
	}
	row, err := s.resolve(ctx, scope, ref)
	if err != nil {
		return nil, err
	}
	if off == nil {
		off = []string{}
	}
	slices.Sort(off)
	off = slices.Compact(off)
	by, _ := inspector.CleanLabel(string(scope.Principal.Kind) + " " + scope.Principal.Name)
	t, n := [16]byte(scope.Tenant), [16]byte(row.id)
	now := s.now()
	var out []ModuleOff
	err = s.db.InTenant(ctx, scope.Tenant, func(ctx context.Context, tx pgx.Tx) error {
		var changes []Change
		note := func(k ChangeKind) func(pgx.Rows) error {
			return func(rows pgx.Rows) error {
				modules, err := pgx.CollectRows(rows, pgx.RowTo[string])
				for _, m := range modules {
					changes = append(changes, Change{Kind: k, Subject: m, After: by})
				}
				return err
			}
		}
		b := &pgx.Batch{}
		b.Queue(sqlSwitchBack, t, n, by, now, off).Query(note(ModuleOnNow))
		b.Queue(sqlSwitchOff, t, n, by, now, off).Query(note(ModuleOffNow))
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		b = &pgx.Batch{}
		queueChanges(b, t, n, now, changes)
		b.Queue(sqlModulesOff, t, n).Query(func(rows pgx.Rows) (err error) {
			out, err = pgx.CollectRows(rows, scanModuleOff)
			return err
		})
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return nil, tenantdb.Fault(err)
	}
	return out, nil
}

func scanModuleOff(r pgx.CollectableRow) (m ModuleOff, err error) {
	err = r.Scan(&m.Module, &m.By, &m.At)
	m.At = m.At.UTC()
	return m, err
}

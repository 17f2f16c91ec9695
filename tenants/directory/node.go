package directory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// maxCandidates bounds the candidates that an ambiguous name lists.
const maxCandidates = 10

// Ambiguous is the failure to resolve a name that several nodes bear. It wraps
// an Invalid fault whose message lists the candidates.
type Ambiguous struct {
	Name       string
	Candidates []tenants.NodeRef // at most maxCandidates, by id
	More       bool              // there are further ones
}

func (a *Ambiguous) Error() string { return fault.Of(a.Unwrap()).Error() }

// Unwrap returns the fault that a caller sees.
func (a *Ambiguous) Unwrap() error {
	var list []string
	for _, c := range a.Candidates {
		list = append(list, c.Node+" ("+c.Name+")")
	}
	if a.More {
		list = append(list, "and more")
	}
	return &fault.Error{
		Kind: fault.Invalid, Reason: "ambiguous_node", Field: "node",
		Msg:  fmt.Sprintf("several nodes are called %q: %s", a.Name, strings.Join(list, ", ")),
		Next: "name the node by its id",
	}
}

// ResolveNode finds the node that ref means: its id, or its name when exactly
// one node in the scope's reach bears it. Revoked nodes are found by id, and by
// a name that no other node bears. Several nodes of one name are Ambiguous (an
// Invalid fault) and never a pick; what lies outside of the scope's selector
// does not exist, and an empty ref is Invalid.
func (s *Service) ResolveNode(ctx context.Context, sc tenants.Scope, ref string) (id tenants.NodeID, name string, err error) {
	if ref == "" || len(ref) > 255 {
		return id, "", fault.Bad("node", "want a node's id or name of 1 to 255 bytes")
	}
	if strings.ContainsRune(ref, 0) || !utf8.ValidString(ref) { // no node has such a name
		return id, "", noNode(ref)
	}
	if id, err := tenants.ParseNodeID(ref); err == nil {
		found, err := s.visible(ctx, sc, selectNodeByID, id)
		if err != nil {
			return tenants.NodeID{}, "", fmt.Errorf("find node: %w", err)
		}
		if len(found) == 1 {
			return found[0].id, found[0].name, nil
		}
		// A name may look like an id.
	}
	found, err := s.visible(ctx, sc, selectNodesByName, ref)
	if err != nil {
		return id, "", fmt.Errorf("find node: %w", err)
	}
	if live := 0; len(found) > 1 {
		for _, n := range found { // ordered: nodes that are not revoked first
			if !n.revoked {
				live++
			}
		}
		if live == 1 {
			found = found[:1]
		} else if live > 1 {
			found = found[:live]
		}
	}
	switch len(found) {
	case 0:
		return id, "", noNode(ref)
	case 1:
		return found[0].id, found[0].name, nil
	}
	a := &Ambiguous{Name: ref, More: len(found) > maxCandidates}
	for _, n := range found[:min(len(found), maxCandidates)] {
		a.Candidates = append(a.Candidates, tenants.NodeRef{Node: n.id.String(), Name: n.name})
	}
	return id, "", a
}

type found struct {
	id      tenants.NodeID
	name    string
	revoked bool
}

// visible runs a node query with the scope's selector in it. Its placeholders
// are $1 tenant, $2 the key, $3 and $4 the selector's ids and labels.
func (s *Service) visible(ctx context.Context, sc tenants.Scope, sql string, key any) ([]found, error) {
	ids, keys, values := selectorArgs(sc.Nodes)
	var list []found
	b := &pgx.Batch{}
	b.Queue(sql, sc.Tenant, key, ids, keys, values).Query(func(rows pgx.Rows) (err error) {
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (f found, err error) {
			return f, row.Scan((*[16]byte)(&f.id), &f.name, &f.revoked)
		})
		return err
	})
	return list, s.db.ReadKept(ctx, sc.Tenant, b)
}

// selectorArgs turns a selector into query parameters; nil ids select all.
func selectorArgs(sel tenants.Selector) (ids, keys, values []string) {
	for _, id := range sel.IDs {
		ids = append(ids, id.String())
	}
	keys, values = []string{}, []string{}
	for k, v := range sel.Labels {
		keys, values = append(keys, k), append(values, v)
	}
	return ids, keys, values
}

// NodeIdentity reads what a node's certificate is checked against; NotFound
// when the tenant has no such node.
func (s *Service) NodeIdentity(ctx context.Context, tenant tenants.TenantID, node tenants.NodeID) (Identity, error) {
	id := Identity{Tenant: tenant, Node: node, Labels: map[string]string{}}
	b := &pgx.Batch{}
	known := true
	b.Queue(selectIdentity, tenant, node).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&id.Slug, &id.Name, &id.Revoked, &id.Suspended)
		if errors.Is(err, pgx.ErrNoRows) {
			known = false
			return nil
		}
		return err
	})
	b.Queue(selectLabels, tenant, node).Query(func(rows pgx.Rows) error {
		var k, v string
		_, err := pgx.ForEachRow(rows, []any{&k, &v}, func() error {
			id.Labels[k] = v
			return nil
		})
		return err
	})
	if err := s.db.Read(ctx, tenant, b); err != nil {
		return Identity{}, fmt.Errorf("read node identity: %w", err)
	}
	if !known {
		return Identity{}, noNode(node.String())
	}
	return id, nil
}

// RevokeNode withdraws a node's identity: its certificates are refused within
// tenants.RevocationDelay on every replica. Revoking it again changes nothing.
// The caller needs admin.
func (s *Service) RevokeNode(ctx context.Context, sc tenants.Scope, node tenants.NodeID) error {
	if err := sc.Require(tenants.Admin); err != nil {
		return err
	}
	seen, err := s.visible(ctx, sc, selectNodeByID, node)
	if err != nil {
		return fmt.Errorf("find node: %w", err)
	}
	if len(seen) == 0 {
		return noNode(node.String())
	}
	err = s.db.InTenant(ctx, sc.Tenant, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, revokeNode, sc.Tenant, node, s.now().UTC())
		return err
	})
	if err != nil {
		return fmt.Errorf("revoke node: %w", err)
	}
	s.log.Info("node revoked", "tenant", sc.Tenant, "node", node, "by", author(sc))
	return nil
}

// RecordFacts notes what a node says of its machine when it connects: a new
// boot, kernel or agent version. sc is the node's own; its name stays. Facts
// that are the same write nothing.
func (s *Service) RecordFacts(ctx context.Context, sc tenants.Scope, facts NodeFacts) error {
	node, err := tenants.ParseNodeID(sc.Principal.ID)
	if sc.Principal.Kind != tenants.NodePrincipal || err != nil {
		return fault.New(fault.Denied, "not_a_node", "only a node reports its own facts")
	}
	f := facts.clean()
	err = s.db.InTenant(ctx, sc.Tenant, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, updateFacts, sc.Tenant, node, f.MachineID, f.BootID, f.OS, f.Arch, f.Kernel, f.AgentVersion)
		return err
	})
	if err != nil {
		return fmt.Errorf("record facts: %w", err)
	}
	return nil
}

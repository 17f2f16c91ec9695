package auth

import (
	"slices"

	"github.com/telltale-dev/telltale/tenants"
)

// grant is one reason why a principal may do something: a membership, or a
// role rule that its claims match.
type grant struct {
	scopes tenants.Scopes
	nodes  tenants.Selector
}

// grants lists a principal's reasons: the membership first, then the rules in
// their order. A rule for everybody at an issuer that another tenant trusts
// too is void unless a claim ties each token to this tenant: the issuer would
// vouch for the other tenant's people.
func grants(i *issuerView, f Facts, member *tenants.Member) []grant {
	var out []grant
	if member != nil {
		out = append(out, grant{member.Scopes, member.Nodes})
	}
	for _, r := range i.Roles {
		switch {
		case r.Claim == "" && i.Shared && i.TenantClaim == "":
		case r.Claim == "", r.Value != "" && slices.Contains(f.Claims[r.Claim], r.Value):
			out = append(out, grant{r.Scopes, r.Nodes})
		}
	}
	return out
}

// obtainable is the most that a principal may hold: scopes, and the nodes they
// hold on. A principal has one selector for all its scopes, so of several
// grants the one with the widest nodes is chosen (the one that covers most of
// the others, else the first), and only grants that cover its nodes add their
// scopes. On each of those nodes the principal then has no scope that some
// grant does not give it there; what only a narrower or another group of nodes
// would give is left out.
func obtainable(gs []grant, policy tenants.Policy) (tenants.Scopes, tenants.Selector) {
	limit := tenants.EveryScope
	if policy.Scopes != 0 {
		limit = policy.Scopes.Effective()
	}
	var live []grant
	for _, g := range gs {
		if g.scopes = g.scopes.Effective() & limit; g.scopes != 0 {
			live = append(live, g)
		}
	}
	best, most := -1, 0
	for i, g := range live {
		n := 0
		for _, h := range live {
			if covers(g.nodes, h.nodes) {
				n++
			}
		}
		if n > most {
			best, most = i, n
		}
	}
	if best < 0 {
		return 0, tenants.Selector{}
	}
	var scopes tenants.Scopes
	for _, g := range live {
		if covers(g.nodes, live[best].nodes) {
			scopes |= g.scopes
		}
	}
	return scopes, live[best].nodes
}

// covers reports whether every node that b can select is selected by a.
func covers(a, b tenants.Selector) bool {
	for k, v := range a.Labels {
		if got, ok := b.Labels[k]; !ok || got != v {
			return false
		}
	}
	if len(a.IDs) == 0 {
		return true
	}
	return len(b.IDs) > 0 && !slices.ContainsFunc(b.IDs, func(id tenants.NodeID) bool { return !slices.Contains(a.IDs, id) })
}

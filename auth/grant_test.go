package auth

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/telltale-dev/telltale/auth/authtest"
	"github.com/telltale-dev/telltale/tenants"
)

// For random roles, members, policies and nodes: on a node that a principal
// sees it holds nothing that no reason of its own gives it there, nothing that
// its token lacks and nothing that the policy withholds; and the nodes of one
// reason are never all lost while it has any.
func TestGrantsNeverExceedTheirReasons(t *testing.T) {
	ids := []tenants.NodeID{tenants.NewNodeID(), tenants.NewNodeID(), tenants.NewNodeID()}
	for seed := range uint64(6000) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		labels := func() map[string]string {
			m := map[string]string{}
			for range rnd.IntN(3) {
				m[string(rune('a'+rnd.IntN(2)))] = string(rune('0' + rnd.IntN(2)))
			}
			return m
		}
		selector := func() (s tenants.Selector) {
			if rnd.IntN(3) > 0 {
				s.Labels = labels()
			}
			if rnd.IntN(3) == 0 {
				s.IDs = ids[:1+rnd.IntN(len(ids))]
			}
			return s
		}
		scopes := func() tenants.Scopes { return tenants.Scopes(rnd.UintN(256)) & tenants.EveryScope }
		i := newIssuerView(tenants.Issuer{URL: "https://id.example.org", Shared: rnd.IntN(2) == 0})
		for range rnd.IntN(5) {
			r := tenants.RoleRule{Claim: "g", Value: fmt.Sprint(rnd.IntN(3)), Scopes: scopes(), Nodes: selector()}
			if rnd.IntN(5) == 0 {
				r.Claim, r.Value = "", ""
			}
			i.Roles = append(i.Roles, r)
		}
		f := Facts{Claims: map[string][]string{"g": {fmt.Sprint(rnd.IntN(4)), fmt.Sprint(rnd.IntN(4))}}}
		var member *tenants.Member
		if rnd.IntN(3) == 0 {
			member = &tenants.Member{Scopes: scopes(), Nodes: selector()}
		}
		policy := tenants.Policy{}
		if rnd.IntN(2) == 0 {
			policy.Scopes = scopes()
		}
		could, nodes := obtainable(grants(&i, f, member), policy)
		if policy.Scopes != 0 && could&^policy.Scopes.Effective() != 0 {
			t.Fatalf("seed %d: beyond the policy", seed)
		}
		reason := func(id tenants.NodeID, at map[string]string, one tenants.Scopes) bool {
			if member != nil && member.Nodes.Matches(id, at) && member.Scopes.Effective()&one != 0 {
				return true
			}
			for _, r := range i.Roles {
				void := r.Claim == "" && i.Shared
				match := r.Claim == "" || f.Claims["g"][0] == r.Value || f.Claims["g"][1] == r.Value
				if !void && match && r.Nodes.Matches(id, at) && r.Scopes.Effective()&one != 0 {
					return true
				}
			}
			return false
		}
		reasoned := false
		for _, id := range append(ids, tenants.NewNodeID()) {
			for n := range 9 {
				at := map[string]string{}
				if n%3 > 0 {
					at["a"] = fmt.Sprint(n%3 - 1)
				}
				if n/3 > 0 {
					at["b"] = fmt.Sprint(n/3 - 1)
				}
				for _, one := range tenants.AllScopes() {
					allowed := reason(id, at, one) && (policy.Scopes == 0 || policy.Scopes.Effective()&one != 0)
					reasoned = reasoned || allowed
					if could&one != 0 && nodes.Matches(id, at) && !allowed {
						t.Fatalf("seed %d: %s on node %v without a reason", seed, one, at)
					}
				}
			}
		}
		if reasoned && could == 0 {
			t.Fatalf("seed %d: a principal with a reason holds nothing", seed)
		}
	}
}

func TestGrantsOfSeveralRules(t *testing.T) {
	siteB := tenants.Selector{Labels: map[string]string{"site": "b"}}
	small := tenants.Selector{Labels: map[string]string{"site": "a", "rack": "1"}}
	for _, c := range []struct {
		what  string
		gs    []grant
		want  tenants.Scopes
		nodes tenants.Selector
	}{
		{"none", nil, 0, tenants.Selector{}},
		{"of no scopes", []grant{{0, siteA}}, 0, tenants.Selector{}},
		{"all agree", []grant{{tenants.Read, siteA}, {tenants.Act, siteA}}, tenants.Read | tenants.Act, siteA},
		{"everywhere and more at one site", []grant{{tenants.Act, siteA}, {tenants.Read, tenants.Selector{}}}, tenants.Read, tenants.Selector{}},
		{"everywhere, twice", []grant{{tenants.Act, tenants.Selector{}}, {tenants.Payloads, tenants.Selector{}}, {tenants.Admin, siteA}}, tenants.Read | tenants.Act | tenants.Payloads, tenants.Selector{}},
		{"two sites: the first", []grant{{tenants.Read, siteA}, {tenants.Act, siteB}}, tenants.Read, siteA},
		{"two sites, one with a rack: the wider of the chain", []grant{{tenants.Act, siteB}, {tenants.Read, siteA}, {tenants.Act, small}}, tenants.Read, siteA},
	} {
		got, nodes := obtainable(c.gs, tenants.Policy{})
		if got != c.want || !covers(nodes, c.nodes) || !covers(c.nodes, nodes) {
			t.Errorf("%s: %s on %+v", c.what, got, nodes)
		}
	}
}

// The token's scopes narrow and never add; read comes with whatever implies it.
func TestEffectiveScope(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	for _, c := range []struct {
		scope, group string
		granted      tenants.Scopes
		obtainable   tenants.Scopes
		nodes        bool
	}{
		{"telltale:read", "acme-sre", tenants.Read, sre, false},
		{"telltale:act", "acme-sre", tenants.Read | tenants.Act, sre, false},
		{"telltale:read telltale:admin telltale:maintain", "acme-sre", tenants.Read, sre, false},
		{"telltale:payloads", "acme-sre", tenants.Payloads, sre, false},
		{allWords, "acme-viewers", tenants.Read, tenants.Read, false},
		{allWords, "acme-limited", tenants.Read | tenants.Diagnose, tenants.Read | tenants.Diagnose, true},
	} {
		for form, token := range map[string]string{
			"JWT": r.signer.Access(t, acmeMCP, "u", c.scope, []string{c.group}, nil), "opaque": r.signer.Opaque(t, acmeMCP, "u", c.scope, []string{c.group}, nil),
		} {
			sc := r.wantGood(t, form, "acme", token, c.granted)
			if sc.Obtainable != c.obtainable || sc.Nodes.All() == c.nodes || sc.Principal.Client != "client-1" || sc.Principal.Name != "The u" {
				t.Errorf("%s %s of %s: %+v", form, c.scope, c.group, sc)
			}
		}
	}
	named := newOAuthRigAt(t, OAuthConfig{}, r.signer, r.dir)
	named.issuer(acme, func(i *tenants.Issuer) {
		i.ScopeClaim = "app.permissions"
		i.Roles = []tenants.RoleRule{{Claim: "realm.roles", Value: "sre", Scopes: tenants.Act}, {Claim: "https://example.org/roles", Value: "3", Scopes: tenants.Diagnose}}
	})
	token := r.good(t, func(d *authtest.Draft) {
		d.Claims["app"] = map[string]any{"permissions": []string{"telltale:act", "telltale:diagnose", "write"}}
		d.Claims["realm"] = map[string]any{"roles": []string{"x", "sre"}}
		d.Claims["https://example.org/roles"] = 3
	})
	named.wantGood(t, "configured claims", "acme", token, tenants.Read|tenants.Act|tenants.Diagnose)
	alone := newOAuthRigAt(t, OAuthConfig{}, r.signer, r.dir)
	alone.issuer(acme, func(i *tenants.Issuer) { i.Shared = false })
	alone.wantGood(t, "everybody at an issuer of one's own", "acme", r.signer.Access(t, acmeMCP, "u", allWords, nil, nil), tenants.EveryScope)
}

// A rule for everybody at an issuer of two tenants admits those whom a claim
// ties to this tenant, and nobody when there is no such claim.
func TestEverybodyOfASharedIssuer(t *testing.T) {
	for _, c := range []struct {
		shared bool
		claim  string
		want   int
	}{{false, "", 1}, {true, "", 0}, {true, "hd", 1}, {false, "hd", 1}} {
		i := newIssuerView(tenants.Issuer{URL: "https://id.example.org", Shared: c.shared, TenantClaim: c.claim, TenantValue: "acme", Roles: []tenants.RoleRule{{Scopes: tenants.Read}}})
		if got := grants(&i, Facts{}, nil); len(got) != c.want {
			t.Errorf("%+v: %d grants", c, len(got))
		}
		if c.claim == "" {
			continue
		}
		for value, pass := range map[string]bool{"acme": true, "globex": false} {
			if err := checkTenant(&i, Facts{Claims: map[string][]string{"hd": {value}}}); (err == nil) != pass {
				t.Errorf("%+v, %s: %v", c, value, err)
			}
		}
	}
}

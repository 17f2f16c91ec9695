package rest

import (
	"encoding/json"
	"fmt"

	"github.com/telltale-dev/telltale/tenants"
)

// policyTries is how often a change of the quotas is made anew when another one
// came between.
const policyTries = 5

// given is a member of a body that may be absent, null or a value.
type given[T any] struct {
	sent  bool
	value *T // nil: null, or absent
}

// UnmarshalJSON notes that the member is there, null included.
func (g *given[T]) UnmarshalJSON(in []byte) error {
	g.sent = true
	return json.Unmarshal(in, &g.value)
}

// String is for the audit.
func (g given[T]) String() string {
	if g.value == nil {
		return "default"
	}
	return fmt.Sprint(*g.value)
}

// policyChange is a change of a policy: what is absent stays as it is, what is
// null becomes the server's default.
type policyChange struct {
	Scopes         given[[]string] `json:"scopes" audit:"value"`
	FirstScopes    given[[]string] `json:"first_scopes" audit:"value"`
	PrincipalRate  given[int]      `json:"principal_rate" audit:"value"`
	TenantRate     given[int]      `json:"tenant_rate" audit:"value"`
	MaxNodes       given[int]      `json:"max_nodes" audit:"value"`
	MaxTokens      given[int]      `json:"max_tokens" audit:"value"`
	MaxIssuers     given[int]      `json:"max_issuers" audit:"value"`
	MaxMembers     given[int]      `json:"max_members" audit:"value"`
	MaxEnrolTokens given[int]      `json:"max_enrol_tokens" audit:"value"`
}

// change is what the body does to a policy.
func (in *policyChange) change() (func(tenants.Policy) tenants.Policy, error) {
	scopes, err := scopesGiven("scopes", in.Scopes)
	if err != nil {
		return nil, err
	}
	first, err := scopesGiven("first_scopes", in.FirstScopes)
	if err != nil {
		return nil, err
	}
	if in.Scopes.value != nil && scopes == 0 {
		return nil, badBody("scopes", "an empty list would allow every scope").Do("name the scopes that tokens may hold, or give null for all")
	}
	return func(p tenants.Policy) tenants.Policy {
		put(&p.Scopes, in.Scopes.sent, scopes)
		put(&p.FirstScopes, in.FirstScopes.sent, first)
		for _, n := range []struct {
			to   *int
			from given[int]
		}{
			{&p.PrincipalRate, in.PrincipalRate}, {&p.TenantRate, in.TenantRate}, {&p.MaxNodes, in.MaxNodes}, {&p.MaxTokens, in.MaxTokens},
			{&p.MaxIssuers, in.MaxIssuers}, {&p.MaxMembers, in.MaxMembers}, {&p.MaxEnrolTokens, in.MaxEnrolTokens},
		} {
			value := 0
			if n.from.value != nil {
				value = *n.from.value
			}
			put(n.to, n.from.sent, value)
		}
		return p
	}, nil
}

func scopesGiven(field string, g given[[]string]) (tenants.Scopes, error) {
	if g.value == nil {
		return 0, nil
	}
	return scopesOf(field, *g.value)
}

func put[T any](to *T, sent bool, value T) {
	if sent {
		*to = value
	}
}

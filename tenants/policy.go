package tenants

// OrDefaults fills in the server's defaults for what p leaves open. Of
// FirstScopes it is Read; of Scopes all.
func (p Policy) OrDefaults() Policy {
	if p.Scopes == 0 {
		p.Scopes = EveryScope
	}
	if p.FirstScopes == 0 {
		p.FirstScopes = Read
	}
	for _, f := range []struct {
		value     *int
		otherwise int
	}{
		{&p.PrincipalRate, DefaultPrincipalRate}, {&p.TenantRate, DefaultTenantRate},
		{&p.MaxNodes, DefaultMaxNodes}, {&p.MaxTokens, DefaultMaxTokens}, {&p.MaxIssuers, DefaultMaxIssuers},
		{&p.MaxMembers, DefaultMaxMembers}, {&p.MaxEnrolTokens, DefaultMaxEnrolTokens},
	} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
	}
	return p
}

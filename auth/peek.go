package auth

import (
	"net/http"

	"github.com/telltale-dev/telltale/tenants"
)

// Peek tells who sends a request, as BearerOrSession would, and refuses and
// counts nothing: for a page that shows more to an administrator and something
// to everybody. ok is false for whoever is not verified.
func (g *Gate) Peek(r *http.Request) (scope tenants.Scope, ok bool) {
	slug := r.PathValue("tenant")
	var err error
	if len(r.Header.Values("Authorization")) > 0 {
		var bearer string
		if bearer, err = Bearer(r); err == nil {
			scope, err = g.verifier.check(r.Context(), slug, bearer, g.site.ClientAddr(r))
		}
	} else if g.sessions != nil && len(r.Header.Values("Cookie")) > 0 {
		scope, err = g.sessions.authenticate(r, slug)
	} else {
		return tenants.Scope{}, false
	}
	return scope, err == nil && !scope.Tenant.IsZero()
}

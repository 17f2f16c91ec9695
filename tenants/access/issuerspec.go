package access

import (
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Bounds of an issuer.
const (
	MaxURL        = 512 // bytes
	MaxIssuerName = 200 // bytes
	MaxClientID   = 255 // bytes
	MaxSecret     = 1024
	MaxAudiences  = 16
	MaxClaimPath  = 200 // bytes of a claim's path
	MaxClaimDepth = 16  // parts of a path
	MaxClaimValue = 256 // bytes
	MaxRoles      = 64
)

// IssuerSpec is what an administrator says of an issuer; the fields are those
// of tenants.Issuer.
type IssuerSpec struct {
	Name             string // empty: the host of the URL
	URL              string
	JWKSURL          string
	IntrospectionURL string
	ClientID         string
	// ClientSecret is sealed and never shown again. nil keeps the one that
	// there is, an empty one removes it.
	ClientSecret      *string
	DashboardClientID string
	Mode              tenants.AudienceMode // empty: AudienceResource
	Audiences         []string
	TenantClaim       string
	TenantValue       string
	Types             []string
	Algorithms        []string
	ScopeClaim        string
	Opaque            bool
	Roles             []tenants.RoleRule
}

// TokenTypes are the `typ` headers that an issuer's tokens may be allowed to
// carry. "jwt" is for providers that do not mark their access tokens.
func TokenTypes() []string { return []string{"at+jwt", "application/at+jwt", "jwt"} }

// SignatureAlgorithms are the algorithms that an issuer's tokens may be signed
// with: asymmetric ones, as this server must not be able to make tokens itself.
func SignatureAlgorithms() []string {
	return []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
}

// check holds the spec against its bounds. hasSecret says whether the issuer
// has a secret already; loopback allows http on loopback addresses.
func (i *IssuerSpec) check(hasSecret, loopback bool) error {
	if err := checkURL("url", i.URL, loopback, true); err != nil {
		return err
	}
	if i.Name == "" {
		u, _ := url.Parse(i.URL)
		i.Name = u.Host
	}
	if i.Mode == "" {
		i.Mode = tenants.AudienceResource
	}
	if err := checkText("name", i.Name, 1, MaxIssuerName); err != nil {
		return err
	}
	for _, e := range []struct{ field, url string }{{"jwks_url", i.JWKSURL}, {"introspection_url", i.IntrospectionURL}} {
		if e.url != "" {
			if err := checkURL(e.field, e.url, loopback, false); err != nil {
				return err
			}
		}
	}
	for _, w := range []struct{ field, word string }{{"client_id", i.ClientID}, {"dashboard_client_id", i.DashboardClientID}} {
		if err := checkText(w.field, w.word, 0, MaxClientID); err != nil {
			return err
		}
	}
	if i.ClientSecret != nil {
		hasSecret = *i.ClientSecret != ""
		if len(*i.ClientSecret) > MaxSecret || strings.ContainsFunc(*i.ClientSecret, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
			return fault.Bad("client_secret", "want at most %d bytes without control characters", MaxSecret)
		}
	}
	if hasSecret && i.ClientID == "" {
		return fault.Bad("client_id", "a client secret needs the client's id").Do("name the client that this server is at the issuer")
	}
	if i.Opaque && !hasSecret {
		return fault.Bad("client_secret", "opaque tokens are introspected, for which the issuer asks for a client id and a secret").
			Do("register a client for this server at the issuer and give client_id and client_secret, or leave opaque tokens out")
	}
	if err := i.checkAudience(); err != nil {
		return err
	}
	if err := checkWords("types", i.Types, TokenTypes()); err != nil {
		return err
	}
	if err := checkWords("algorithms", i.Algorithms, SignatureAlgorithms()); err != nil {
		return err
	}
	if i.ScopeClaim != "" {
		if err := checkClaim("scope_claim", i.ScopeClaim); err != nil {
			return err
		}
	}
	return checkRoles(i.Roles)
}

func (i *IssuerSpec) checkAudience() error {
	switch i.Mode {
	case tenants.AudienceResource:
		if len(i.Audiences) > 0 {
			return fault.Bad("audiences", "with mode resource the audience is this tenant's own URL and no other").Do("leave audiences out, or set mode static")
		}
	case tenants.AudienceStatic:
		if len(i.Audiences) == 0 || len(i.Audiences) > MaxAudiences {
			return fault.Bad("audiences", "mode static needs 1 to %d audiences, not %d", MaxAudiences, len(i.Audiences)).
				Do("name the audience that the issuer writes into access tokens for this server")
		}
		if i.TenantClaim == "" || i.TenantValue == "" {
			return fault.Bad("tenant_claim", "mode static needs a claim and its value that only this tenant's tokens have").
				Do("give tenant_claim and tenant_value: an audience that is not bound to this tenant would let in every other one's people")
		}
	default:
		return fault.Bad("mode", "want resource or static, not %.40q", string(i.Mode))
	}
	for _, a := range i.Audiences {
		if err := checkText("audiences", a, 1, MaxURL); err != nil {
			return err
		}
	}
	if (i.TenantClaim == "") != (i.TenantValue == "") {
		return fault.Bad("tenant_claim", "tenant_claim and tenant_value go together")
	}
	if i.TenantClaim == "" {
		return nil
	}
	if err := checkClaim("tenant_claim", i.TenantClaim); err != nil {
		return err
	}
	return checkText("tenant_value", i.TenantValue, 1, MaxClaimValue)
}

func checkRoles(rules []tenants.RoleRule) error {
	if len(rules) > MaxRoles {
		return fault.Bad("roles", "at most %d rules, not %d", MaxRoles, len(rules)).Do("give one group at the issuer what several have now, or admit people by name")
	}
	for _, r := range rules {
		if r.Claim == "" {
			if r.Value != "" {
				return fault.Bad("roles", "a rule with the value %.40q has no claim", r.Value).Do("name the claim; a rule for everybody has neither")
			}
		} else if err := checkClaim("roles", r.Claim); err != nil {
			return err
		} else if err := checkText("roles", r.Value, 1, MaxClaimValue); err != nil {
			return err
		}
		if err := checkScopes("roles", r.Scopes); err != nil {
			return err
		}
		if err := checkSelector("roles", r.Nodes); err != nil {
			return err
		}
	}
	return nil
}

// checkURL takes an absolute https URL without user and fragment, and without a
// query where it names an issuer (RFC 8414, section 2).
func checkURL(field, text string, loopback, issuer bool) error {
	if err := checkText(field, text, 1, MaxURL); err != nil {
		return err
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Hostname() == "" || u.Opaque != "" || strings.ContainsAny(text, " \\") {
		return fault.Bad(field, "want an absolute URL such as https://idp.example.com")
	}
	switch {
	case u.User != nil:
		return fault.Bad(field, "the URL holds a user or a password").Do("leave them out; a client secret has a field of its own")
	case strings.Contains(text, "#"):
		return fault.Bad(field, "the URL has a fragment").Do("leave out what follows the #")
	case issuer && strings.Contains(text, "?"):
		return fault.Bad(field, "an issuer's URL has no query").Do("copy the value of iss from the provider's metadata")
	case strings.Contains(text, "/.well-known/") && issuer:
		return fault.Bad(field, "this is the address of the provider's metadata").Do("leave out /.well-known/ and what follows: the issuer is the value of iss in its tokens")
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && loopback && isLoopback(u.Hostname()):
		return nil
	case u.Scheme == "http" && isLoopback(u.Hostname()):
		return fault.Bad(field, "want https: http on loopback is for telltaled dev alone")
	}
	return fault.Bad(field, "want a URL that begins with https://")
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// checkClaim takes the name of a claim; dots lead into nested objects.
func checkClaim(field, path string) error {
	if err := checkText(field, path, 1, MaxClaimPath); err != nil {
		return err
	}
	if parts := strings.Split(path, "."); len(parts) > MaxClaimDepth || slices.Contains(parts, "") || strings.ContainsAny(path, " \t") {
		return fault.Bad(field, "want the name of a claim, or up to %d names with dots between them, not %.80q", MaxClaimDepth, path)
	}
	return nil
}

func checkWords(field string, got, known []string) error {
	seen := map[string]bool{}
	for _, w := range got {
		if !slices.Contains(known, w) || seen[w] {
			return fault.Bad(field, "want some of %s, each once, not %.40q", strings.Join(known, ", "), w)
		}
		seen[w] = true
	}
	return nil
}

func checkText(field, text string, least, most int) error {
	if len(text) < least || len(text) > most || least > 0 && strings.TrimSpace(text) == "" {
		return fault.Bad(field, "want %d to %d bytes of text, not %d", least, most, len(text))
	}
	if inspector.CleanText(text) != text || strings.ContainsRune(text, 0) {
		return fault.Bad(field, "want plain text without control or invisible characters")
	}
	return nil
}

func checkScopes(field string, s tenants.Scopes) error {
	if s == 0 || s&^tenants.EveryScope != 0 {
		return fault.Bad(field, "want at least one of %s", tenants.EveryScope)
	}
	return nil
}

func checkSelector(field string, sel tenants.Selector) error {
	if len(sel.IDs) > MaxNodeIDs || len(sel.Labels) > tenants.MaxNodeLabels {
		return fault.Bad(field, "at most %d ids and %d labels", MaxNodeIDs, tenants.MaxNodeLabels)
	}
	for k, v := range sel.Labels {
		_, badKey := inspector.CleanLabel(k)
		_, badValue := inspector.CleanLabel(v)
		if k == "" || badKey || badValue {
			return fault.Bad(field, "want label names and values of plain text, at most %d bytes each", inspector.MaxLabelBytes)
		}
	}
	return nil
}

package auth

import (
	"context"
	"crypto/subtle"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/telltale-dev/telltale/tenants"
)

// Endpoints are where an issuer lets people sign in and out. Any but the
// first two may be empty.
type Endpoints struct {
	Authorization, Token, Revocation, EndSession string
	PKCE                                         bool // S256 is announced
	IssInAnswer                                  bool // the authorization answer carries iss (RFC 9207), which must then be checked
}

// Endpoints reads them from the issuer's metadata, as it was at most ten
// minutes ago.
func (o *OAuth) Endpoints(ctx context.Context, i tenants.Issuer) (Endpoints, error) {
	m, err := o.providers.of(i).meta.current(ctx, false)
	if err != nil {
		return Endpoints{}, err
	}
	if m.Authorization == "" || m.Token == "" {
		return Endpoints{}, unreachable(i.URL, "names no endpoints for signing in", nil)
	}
	for _, u := range []string{m.Authorization, m.Token, m.Revocation, m.EndSession} {
		if u == "" {
			continue
		}
		if err := o.fetch.Check(u); err != nil {
			return Endpoints{}, unreachable(i.URL, "names an endpoint that may not be used", err)
		}
	}
	return Endpoints{
		Authorization: m.Authorization, Token: m.Token, Revocation: m.Revocation, EndSession: m.EndSession,
		PKCE: slices.Contains(m.PKCE, "S256"), IssInAnswer: m.IssInAnswer,
	}, nil
}

// Identity is what a verified ID token says.
type Identity struct {
	Subject string
	Name    string // cleaned, may be empty
	Session string // sid: the session at the issuer, may be empty
}

// VerifyIDToken checks an ID token that the issuer gave to the dashboard's
// client (OpenID Connect Core, section 3.1.3.7). nonce is the one that the
// authorization request carried and must not be empty. An ID token says who
// signed in and gives nobody a scope.
func (o *OAuth) VerifyIDToken(ctx context.Context, issuer tenants.Issuer, raw, nonce string) (Identity, error) {
	i := newIssuerView(issuer)
	refuse := func(c Class, expected, received string) (Identity, error) {
		return Identity{}, &Failure{Class: c, Issuer: clean(issuer.URL, maxNoted), Expected: clean(expected, maxNoted), Received: clean(received, maxNoted)}
	}
	parts, err := splitJWT(raw)
	switch {
	case err != nil:
		return refuse(Malformed, "an ID token", err.Error())
	case !slices.Contains(i.algorithms, parts.header.text("alg")):
		return refuse(Algorithm, "an asymmetric algorithm", parts.header.text("alg"))
	case parts.header.has("crit"), parts.header.has("b64"):
		return refuse(Malformed, "no critical header", "crit")
	case parts.claims.text("iss") != issuer.URL || issuer.URL == "":
		return refuse(IssuerUnknown, issuer.URL, parts.claims.text("iss"))
	case tokenType(parts.header.text("typ")) != "jwt":
		return refuse(Type, "an ID token", parts.header.text("typ"))
	case issuer.DashboardClientID == "":
		return refuse(Audience, "a client for the dashboard", "none is configured")
	}
	keys := &namedKeys{set: o.providers.of(issuer).keys, algorithms: i.algorithms}
	_, err = oidc.NewVerifier(issuer.URL, keys, &oidc.Config{
		ClientID: issuer.DashboardClientID, SupportedSigningAlgs: i.algorithms, Now: func() time.Time { return time.Now().Add(-clockSkew) },
	}).Verify(ctx, raw)
	late := &oidc.TokenExpiredError{}
	switch {
	case errors.Is(keys.err, errKid), errors.Is(keys.err, errSignature):
		return refuse(Signature, "a key of the issuer", keys.err.Error())
	case keys.err != nil:
		return Identity{}, keys.err
	case errors.As(err, &late):
		return Identity{}, expired(&i, late.Expiry)
	}
	c := parts.claims
	auds, _ := strictWords(c["aud"])
	switch {
	case !slices.Contains(auds, issuer.DashboardClientID):
		return refuse(Audience, issuer.DashboardClientID, strings.Join(auds, " "))
	case err != nil:
		return refuse(Claims, "claims of OpenID Connect", err.Error())
	}
	azp := c.text("azp")
	if azp != "" && azp != issuer.DashboardClientID || azp == "" && len(auds) > 1 {
		return refuse(Audience, "azp="+issuer.DashboardClientID, azp)
	}
	if nonce == "" || subtle.ConstantTimeCompare([]byte(c.text("nonce")), []byte(nonce)) != 1 {
		return refuse(Claims, "the nonce of this sign-in", "another one")
	}
	if at, ok := c.date("iat"); ok && at.After(time.Now().Add(clockSkew)) {
		return refuse(NotYet, "iat of now", at.UTC().Format(time.RFC3339))
	}
	if !plain(c.text("sub")) {
		return refuse(Claims, "a subject", "none")
	}
	return Identity{Subject: c.text("sub"), Name: gather(&i, c).Name, Session: clean(c.text("sid"), maxWord)}, nil
}

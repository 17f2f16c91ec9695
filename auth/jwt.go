package auth

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/telltale-dev/telltale/tenants"
)

// checkJWT proves a signed token. First comes what needs no key and could make
// a fetch pointless or dangerous (form, algorithm, issuer, type), then the
// signature, then what only a true token is asked.
func (o *OAuth) checkJWT(ctx context.Context, t tenants.Tenant, v *trustView, bearer string) (proof, error) {
	parts, err := splitJWT(bearer)
	if err != nil {
		return proof{}, &Failure{Class: Malformed, Expected: "a JWT of one reading", Received: clean(err.Error(), maxNoted)}
	}
	i, err := checkHeader(parts, v)
	if err != nil {
		return proof{}, err
	}
	keys := &namedKeys{set: o.providers.of(i.Issuer).keys, algorithms: i.algorithms}
	verifier := oidc.NewVerifier(i.URL, keys, &oidc.Config{SkipClientIDCheck: true, SkipExpiryCheck: true, SupportedSigningAlgs: i.algorithms})
	_, err = verifier.Verify(ctx, bearer)
	switch {
	case errors.Is(keys.err, errKid), errors.Is(keys.err, errSignature):
		return proof{}, &Failure{Class: Signature, Issuer: i.URL, Expected: "a key of the issuer", Received: clean(fmt.Sprintf("kid %q: %v", parts.header.text("kid"), keys.err), maxNoted)}
	case keys.err != nil:
		return proof{}, keys.err
	case err != nil:
		return proof{}, &Failure{Class: Claims, Issuer: i.URL, Expected: "claims of RFC 7519", Received: clean(err.Error(), maxNoted)}
	case !bytes.Equal(keys.payload, parts.payload):
		return proof{}, &Failure{Class: Malformed, Issuer: i.URL}
	}
	return o.checkClaims(t, i, parts.claims)
}

// checkHeader checks what a token says before any key is looked for, and finds
// its issuer among the tenant's.
func checkHeader(p jwtParts, v *trustView) (*issuerView, error) {
	iss := p.claims.text("iss")
	refuse := func(c Class, expected, received string) error {
		return &Failure{Class: c, Issuer: clean(iss, maxNoted), Expected: clean(expected, maxNoted), Received: clean(received, maxNoted)}
	}
	alg := p.header.text("alg")
	if !slices.Contains(algorithms(), jose.SignatureAlgorithm(alg)) {
		return nil, refuse(Algorithm, "an asymmetric algorithm", alg)
	}
	if p.header.has("crit") || p.header.has("b64") {
		return nil, refuse(Malformed, "no critical header", "crit")
	}
	i := v.byURL(iss)
	if i == nil {
		return nil, refuse(IssuerUnknown, v.urls(), iss)
	}
	if !slices.Contains(i.algorithms, alg) {
		return nil, refuse(Algorithm, strings.Join(i.algorithms, " "), alg)
	}
	typ := tokenType(p.header.text("typ"))
	if p.header.has("typ") && p.header.text("typ") == "" || !slices.Contains(i.types, typ) {
		return nil, refuse(Type, strings.Join(i.types, " "), typ)
	}
	if typ != "at+jwt" {
		if sign := notAccess(p.claims); sign != "" {
			return nil, refuse(Type, "an access token", sign)
		}
	}
	return i, nil
}

// notAccess says by which sign a token without a telling typ shows that it is
// an ID token, a refresh token or a logout token; empty when there is none.
// Providers that mark their tokens in a claim are believed when they say no.
func notAccess(c claims) string {
	for _, name := range []string{"at_hash", "c_hash", "s_hash", "events"} {
		if c.has(name) {
			return "a token with " + name
		}
	}
	kind := strings.ToLower(c.text("typ"))
	if c.has("typ") && kind != "bearer" && kind != "access" && kind != "at+jwt" {
		return "a token of typ " + kind
	}
	if use := strings.ToLower(c.text("token_use")); c.has("token_use") && use != "access" && use != "access_token" {
		return "a token for the use " + use
	}
	if c.has("nonce") && kind != "bearer" {
		return "a token with nonce"
	}
	return ""
}

// checkClaims checks the claims of a token whose origin is proved.
func (o *OAuth) checkClaims(t tenants.Tenant, i *issuerView, c claims) (proof, error) {
	refuse := func(class Class, expected, received string) (proof, error) {
		return proof{}, &Failure{Class: class, Issuer: i.URL, Expected: clean(expected, maxNoted), Received: clean(received, maxNoted)}
	}
	if c.text("iss") != i.URL {
		return refuse(IssuerUnknown, i.URL, c.text("iss"))
	}
	now := time.Now()
	exp, ok := c.date("exp")
	if !ok {
		return refuse(Claims, "exp as a number of seconds", "none")
	}
	if !now.Before(exp.Add(clockSkew)) {
		return proof{}, expired(i, exp)
	}
	for _, name := range []string{"nbf", "iat"} {
		from, ok := c.date(name)
		if c.has(name) && !ok {
			return refuse(Claims, name+" as a number of seconds", "another form")
		}
		if ok && from.After(now.Add(clockSkew)) {
			return refuse(NotYet, name+" of at most "+now.UTC().Format(time.RFC3339), from.UTC().Format(time.RFC3339))
		}
	}
	auds, ok := strictWords(c["aud"])
	if c.has("aud") && !ok {
		return refuse(Claims, "aud as a string or an array of strings", "another form")
	}
	accepted := o.audiences(t, i)
	if !slices.ContainsFunc(auds, func(a string) bool { return a != "" && slices.Contains(accepted, a) }) {
		return refuse(Audience, strings.Join(accepted, " "), cmp.Or(strings.Join(auds, " "), "none"))
	}
	if c.has("cnf") {
		return refuse(Bound, "a plain bearer token", "a token with cnf")
	}
	if !plain(c.text("sub")) {
		return refuse(Claims, fmt.Sprintf("sub of 1 to %d visible characters", maxWord), c.text("sub"))
	}
	p := proof{facts: gather(i, c), issuer: i.ID, print: i.print, expires: exp}
	if err := checkTenant(i, p.facts); err != nil {
		return proof{}, err
	}
	return p, nil
}

// audiences are what a token of the issuer must name one of.
func (o *OAuth) audiences(t tenants.Tenant, i *issuerView) []string {
	if i.Mode == tenants.AudienceStatic {
		return i.Audiences
	}
	return []string{o.site.MCP(t.Slug), o.site.Origin() + "/t/" + t.Slug, o.site.REST(t.Slug)}
}

// checkTenant checks the claim that ties a token to the tenant. Without the
// resource in its audience a token must have one: the issuer's other
// customers get tokens with the same audience.
func checkTenant(i *issuerView, f Facts) error {
	if i.TenantClaim == "" && i.Mode != tenants.AudienceStatic {
		return nil
	}
	if i.TenantClaim != "" && i.TenantValue != "" && slices.Contains(f.Claims[i.TenantClaim], i.TenantValue) {
		return nil
	}
	return &Failure{Class: TenantClaim, Issuer: i.URL, Expected: clean(i.TenantClaim+"="+i.TenantValue, maxNoted), Received: clean(strings.Join(f.Claims[i.TenantClaim], " "), maxNoted)}
}

func expired(i *issuerView, exp time.Time) *Failure {
	return &Failure{Class: Expired, Issuer: i.URL, Expected: "exp after " + time.Now().UTC().Format(time.RFC3339), Received: exp.UTC().Format(time.RFC3339)}
}

// namedKeys lends a keySet to go-oidc for one token, and keeps what go-oidc's
// error does not carry.
type namedKeys struct {
	set        *keySet
	algorithms []string
	payload    []byte
	err        error
}

// VerifySignature implements oidc.KeySet.
func (n *namedKeys) VerifySignature(ctx context.Context, raw string) ([]byte, error) {
	algs := make([]jose.SignatureAlgorithm, len(n.algorithms))
	for i, a := range n.algorithms {
		algs[i] = jose.SignatureAlgorithm(a)
	}
	jws, err := jose.ParseSignedCompact(raw, algs)
	if err != nil {
		return nil, err
	}
	n.payload, n.err = n.set.verify(ctx, jws)
	return n.payload, n.err
}

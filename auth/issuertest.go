package auth

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"syscall"

	"github.com/go-jose/go-jose/v4"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// issuerTest is one run of Test: what was found so far.
type issuerTest struct {
	o     *OAuth
	i     issuerView
	steps []tenants.Step
	meta  *discovered
}

func (t *issuerTest) pass(name, expected, received string) {
	t.steps = append(t.steps, tenants.Step{Name: name, OK: true, Expected: expected, Received: clean(received, maxNoted)})
}

func (t *issuerTest) fail(name, expected, received, next string) {
	t.steps = append(t.steps, tenants.Step{Name: name, Expected: expected, Received: clean(received, maxNoted), Next: next})
}

func (t *issuerTest) skip(name, why string) {
	t.steps = append(t.steps, tenants.Step{Name: name, OK: true, Skipped: true, Received: why})
}

// Test looks at an issuer afresh, beside everything remembered, and says step
// by step what works: "url", "discovery", "issuer", "keys", "algorithms",
// "introspection", "audience", "roles", "sign_in", always all of them and in
// this order. The issuer need not be stored. It takes at most 15 s.
func (o *OAuth) Test(ctx context.Context, i tenants.Issuer) []tenants.Step {
	ctx, cancel := context.WithTimeout(ctx, 3*fetchTimeout)
	defer cancel()
	t := &issuerTest{o: o, i: newIssuerView(i)}
	t.discovery(ctx)
	t.keys(ctx)
	t.introspection(ctx)
	t.audience()
	t.roles()
	t.signIn()
	return t.steps
}

func (t *issuerTest) discovery(ctx context.Context) {
	if err := t.o.fetch.Check(t.i.URL); err != nil {
		t.fail("url", "an https URL that may be fetched", describe(err), "correct the issuer's URL")
		t.skip("discovery", "the URL is refused")
		t.skip("issuer", "the URL is refused")
		return
	}
	t.pass("url", "an https URL that may be fetched", t.i.URL)
	const want = "metadata by OpenID Connect discovery or RFC 8414"
	other := &otherIssuer{}
	var tried []string
	for _, from := range discoveryURLs(t.i.URL) {
		meta, err := discoverAt(ctx, t.o.fetch, t.i.URL, from)
		if err == nil {
			t.meta = &meta
			t.pass("discovery", want, from)
			t.pass("issuer", t.i.URL, meta.Issuer)
			return
		}
		if errors.As(err, &other) {
			t.pass("discovery", want, from)
			t.fail("issuer", t.i.URL, other.received, "set the issuer's URL to exactly what its metadata says, with or without a slash at the end")
			return
		}
		tried = append(tried, from+": "+describe(err))
	}
	if t.i.JWKSURL != "" && (!t.i.Opaque || t.i.IntrospectionURL != "") && t.i.DashboardClientID == "" {
		t.skip("discovery", "no metadata, and none is needed: all places are set")
		t.skip("issuer", "no metadata")
		return
	}
	t.fail("discovery", want, strings.Join(tried, "; "), "correct the URL, or name the places of keys and introspection yourself")
	t.skip("issuer", "no metadata")
}

func (t *issuerTest) keys(ctx context.Context) {
	from := t.i.JWKSURL
	if from == "" && t.meta != nil {
		from = t.meta.JWKS
	}
	if from == "" {
		t.missing("keys", t.meta == nil, "a jwks_uri in the metadata", "name the place of the keys yourself")
		t.skip("algorithms", "no keys")
		return
	}
	raw, err := t.o.fetch.Get(ctx, from)
	var keys []jose.JSONWebKey
	if err == nil {
		keys, err = parseKeys(raw)
	}
	if err != nil {
		t.fail("keys", "public signature keys at "+clean(from, maxNoted), describe(err), "let the provider publish a JSON Web Key Set there with RSA keys of 2048 bits or more, or EC or Ed25519 keys")
		t.skip("algorithms", "no keys")
		return
	}
	t.pass("keys", "public signature keys at "+clean(from, maxNoted), fmt.Sprintf("%d", len(keys)))
	var named, fit []string
	for _, k := range keys {
		for _, a := range keyAlgorithms(k) {
			named = append(named, a)
			if slices.Contains(t.i.algorithms, a) {
				fit = append(fit, a)
			}
		}
	}
	slices.Sort(named)
	received := strings.Join(slices.Compact(named), " ")
	if len(fit) == 0 {
		t.fail("algorithms", strings.Join(t.i.algorithms, " "), received, "accept an algorithm that the provider's keys are for")
		return
	}
	t.pass("algorithms", strings.Join(t.i.algorithms, " "), received)
}

// keyAlgorithms lists the algorithms that a key can be used with.
func keyAlgorithms(k jose.JSONWebKey) []string {
	var out []string
	for _, a := range algorithms() {
		one := k
		if one.Algorithm == "" {
			one.Algorithm = string(a)
		}
		if one.Algorithm == string(a) && usable(one) {
			out = append(out, string(a))
		}
	}
	return out
}

func (t *issuerTest) introspection(ctx context.Context) {
	const name, want = "introspection", "an answer that an invented token is not active"
	if !t.i.Opaque {
		t.skip(name, "the issuer's tokens are JWTs only")
		return
	}
	pr := t.o.providers.of(t.i.Issuer)
	one := t.i.Issuer
	if one.IntrospectionURL == "" {
		if t.meta == nil || t.meta.Introspection == "" {
			t.missing(name, t.meta == nil, "an introspection_endpoint in the metadata", "name the introspection endpoint yourself")
			return
		}
		one.IntrospectionURL = t.meta.Introspection
	}
	c, err := t.o.ask(ctx, pr, one, rand.Text())
	active, isBool := c["active"].(bool)
	switch {
	case err != nil:
		t.fail(name, want, describe(err), "check the introspection endpoint, and the client id and secret that this server has at the provider")
	case !isBool:
		t.fail(name, want, "an answer without active", "check that the URL is the introspection endpoint (RFC 7662)")
	case active:
		t.fail(name, want, "it calls an invented token active", "do not trust this endpoint: it vouches for anything")
	default:
		t.pass(name, want, "not active")
	}
}

// missing is a step that fails because the metadata does not name a place, or
// is skipped because there is no metadata.
func (t *issuerTest) missing(name string, noMeta bool, expected, next string) {
	if noMeta {
		t.skip(name, "no metadata")
		return
	}
	t.fail(name, expected, "none", next)
}

func (t *issuerTest) audience() {
	const name = "audience"
	switch {
	case t.i.Mode != tenants.AudienceStatic:
		t.pass(name, "tokens with the tenant's MCP URL as audience (RFC 8707)", "by the token")
	case len(t.i.Audiences) == 0:
		t.fail(name, "one or more audiences", "none", "list the audiences that the provider gives to tokens for this server")
	case t.i.TenantClaim == "" || t.i.TenantValue == "":
		t.fail(name, "a claim that ties tokens to this tenant", "none", "set the tenant claim and its value: without it every customer of the provider would pass")
	default:
		t.pass(name, "one of the audiences, and "+clean(t.i.TenantClaim+"="+t.i.TenantValue, maxNoted), strings.Join(t.i.Audiences, " "))
	}
}

func (t *issuerTest) roles() {
	const name, want = "roles", "rules that give scopes to claims, or members"
	switch {
	case t.i.Open() && t.i.Shared:
		t.fail(name, "no rule for everybody: another tenant trusts this issuer too", "a rule for everybody, which is void", "set the tenant claim to what only your people's tokens have, name a claim in each rule, or admit people as members")
	case len(t.i.Roles) == 0:
		t.pass(name, want, "no rule: members only")
	default:
		t.pass(name, want, tenants.RuleCount(len(t.i.Roles)))
	}
}

func (t *issuerTest) signIn() {
	const name, want = "sign_in", "endpoints for the authorization code with PKCE S256"
	switch {
	case t.i.DashboardClientID == "":
		t.skip(name, "no client for the dashboard is set")
	case t.meta == nil:
		t.skip(name, "no metadata")
	case t.meta.Authorization == "" || t.meta.Token == "":
		t.fail(name, want, "no endpoints", "use an issuer whose metadata names authorization_endpoint and token_endpoint")
	case t.o.fetch.Check(t.meta.Authorization) != nil || t.o.fetch.Check(t.meta.Token) != nil:
		t.fail(name, want, t.meta.Authorization+" and "+t.meta.Token, "let the metadata name https URLs of public addresses, or allow the provider's network on this server")
	case len(t.meta.PKCE) > 0 && !slices.Contains(t.meta.PKCE, "S256"):
		t.fail(name, want, strings.Join(t.meta.PKCE, " "), "switch PKCE with S256 on at the provider")
	default:
		t.pass(name, want, t.meta.Authorization)
	}
}

// describe says what went wrong with a fetch in words of this server, without
// addresses of its network.
func describe(err error) string {
	var (
		dns  *net.DNSError
		cert *tls.CertificateVerificationError
		wait interface{ Timeout() bool }
	)
	f, isFault := errors.AsType[*fault.Error](err)
	switch {
	case isFault && f.Cause != nil:
		return f.Msg + ": " + describe(f.Cause)
	case isFault:
		return f.Msg
	case errors.As(err, &dns):
		return "the name does not resolve"
	case errors.As(err, &cert):
		return "its certificate is not trusted here"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection is refused"
	case errors.As(err, &wait) && wait.Timeout():
		return "no answer in time"
	}
	if _, network := errors.AsType[*net.OpError](err); network {
		return "the connection failed"
	}
	if _, bad := errors.AsType[*url.Error](err); bad {
		return "the URL cannot be fetched"
	}
	return err.Error()
}

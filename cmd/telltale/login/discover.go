package login

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// hello is the request that the server answers with its challenge.
const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"telltale-cli","version":"login"}}}`

// discover asks the server without a credential and returns the scopes that it
// wants and the identity provider that it names.
func (f *Flow) discover(ctx context.Context, resource string) (scopes []string, issuer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, resource, strings.NewReader(hello))
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("User-Agent", f.UserAgent)
	res, err := f.Client.Do(req)
	if err != nil {
		return nil, "", &Unreachable{resource, err}
	}
	told := words(res)
	switch {
	case res.StatusCode == http.StatusUnauthorized:
	case told != "" && res.StatusCode >= 400:
		return nil, "", wrong("", "%s answers %d: %s", resource, res.StatusCode, told)
	case res.StatusCode == http.StatusNotFound:
		return nil, "", wrong("it looks like https://HOST/t/TENANT/mcp", "there is no MCP endpoint at %s", resource)
	case res.StatusCode >= 300 && res.StatusCode < 400:
		return nil, "", wrong("use that URL if you trust it", "%s redirects to %s", resource, res.Header.Get("Location"))
	case res.StatusCode < 300:
		return nil, "", wrong("check the URL", "%s asks for no credential, so it is no Telltale server", resource)
	default:
		return nil, "", wrong("try again later", "%s answers %d instead of asking for a credential", resource, res.StatusCode)
	}
	link, scopes := challengeOf(res.Header.Values("WWW-Authenticate"))
	m, err := f.resourceMetadata(ctx, resource, link)
	if err != nil {
		return nil, "", err
	}
	if len(scopes) == 0 {
		scopes = m.Scopes
	}
	switch {
	case len(m.Servers) == 0:
		return nil, "", errNoProvider(resource)
	case f.Issuer == "":
		if len(m.Servers) > 1 {
			f.Say("the tenant has %d identity providers; taking the first of %s (--issuer picks another)", len(m.Servers), strings.Join(m.Servers, " "))
		}
		return scopes, m.Servers[0], nil
	case !slices.Contains(m.Servers, f.Issuer):
		return nil, "", wrong("", "the tenant does not accept the identity provider %s; it names %s", f.Issuer, strings.Join(m.Servers, " "))
	}
	return scopes, f.Issuer, nil
}

// words is what the server says of a refusal, in a problem document or as a
// JSON-RPC error: its message, the next step and the reference id.
func words(res *http.Response) string {
	var doc struct {
		Detail string   `json:"detail"`
		Next   []string `json:"next"`
		Error  struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	err := json.NewDecoder(io.LimitReader(res.Body, 64<<10)).Decode(&doc)
	drain(res)
	if err != nil || doc.Detail+doc.Error.Message == "" {
		return ""
	}
	list := append([]string{doc.Detail + doc.Error.Message}, doc.Next...)
	if ref := res.Header.Get("Telltale-Reference"); ref != "" {
		list = append(list, "reference id "+ref)
	}
	return strings.Join(list, "; ")
}

// errNoProvider: an unknown tenant answers like one without a provider.
func errNoProvider(resource string) error {
	return wrong("check the tenant's name in the URL; a tenant without one is used with an operator token in TELLTALE_TOKEN",
		"%s names no identity provider to sign in at", resource)
}

// challengeOf reads the Bearer challenge; a challenge of another scheme, or one
// that cannot be read, is passed over.
func challengeOf(headers []string) (link string, scopes []string) {
	for _, h := range headers {
		list, err := oauthex.ParseWWWAuthenticate([]string{h})
		if err != nil {
			continue
		}
		for _, c := range list {
			if c.Scheme == "bearer" {
				return c.Params["resource_metadata"], strings.Fields(c.Params["scope"])
			}
		}
	}
	return "", nil
}

// resourceMetadata is what matters of RFC 9728.
type resourceMetadata struct {
	Resource string   `json:"resource"`
	Servers  []string `json:"authorization_servers"`
	Scopes   []string `json:"scopes_supported"`
}

// resourceMetadata fetches the document that the challenge links, or without a
// link the one at the well-known place. It must be about this very resource.
func (f *Flow) resourceMetadata(ctx context.Context, resource, link string) (resourceMetadata, error) {
	var m resourceMetadata
	if link == "" {
		u, err := url.Parse(resource)
		if err != nil {
			return m, err
		}
		u.Path = wellKnownRes + u.Path
		link = u.String()
	}
	if err := checkEndpoint("resource metadata URL", link, resource); err != nil {
		return m, err
	}
	found, err := f.document(ctx, link, &m)
	if err != nil {
		return m, err
	}
	if !found {
		return m, errNoProvider(resource)
	}
	if m.Resource != resource {
		return m, wrong("use --url "+m.Resource+" if that is your server; otherwise somebody stands in between",
			"the metadata at %s is about %q, not about %s", link, m.Resource, resource)
	}
	return m, nil
}

// provider is what matters of an authorization server's metadata (RFC 8414,
// OpenID Connect Discovery, RFC 9207).
type provider struct {
	Issuer        string   `json:"issuer"`
	Authorization string   `json:"authorization_endpoint"`
	Token         string   `json:"token_endpoint"`
	Registration  string   `json:"registration_endpoint"`
	Revocation    string   `json:"revocation_endpoint"`
	Challenges    []string `json:"code_challenge_methods_supported"`
	Scopes        []string `json:"scopes_supported"`
	Grants        []string `json:"grant_types_supported"`
	SaysIssuer    bool     `json:"authorization_response_iss_parameter_supported"`
	ByURL         bool     `json:"client_id_metadata_document_supported"`
}

// provider reads the metadata of an identity provider, wherever it keeps it.
func (f *Flow) provider(ctx context.Context, resource, issuer string) (provider, error) {
	if err := checkEndpoint("identity provider", issuer, resource); err != nil {
		return provider{}, err
	}
	places, err := metadataURLs(issuer)
	if err != nil {
		return provider{}, err
	}
	for _, place := range places {
		var p provider
		found, err := f.document(ctx, place, &p)
		if err != nil {
			return p, err
		}
		if found {
			return p, f.checkProvider(p, place, resource, issuer)
		}
	}
	return provider{}, wrong("check the issuer with telltaled issuer test", "the identity provider %s publishes no metadata (looked at %s)", issuer, strings.Join(places, " "))
}

// metadataURLs are the places of RFC 8414, section 3 and 5, and of OpenID
// Connect Discovery, section 4, in the order of the MCP specification.
func metadataURLs(issuer string) ([]string, error) {
	u, err := url.Parse(issuer)
	if err != nil {
		return nil, err
	}
	root, path := u.Scheme+"://"+u.Host, strings.TrimRight(u.EscapedPath(), "/")
	if path == "" {
		return []string{root + wellKnownOAuth, root + wellKnownOIDC}, nil
	}
	return []string{root + wellKnownOAuth + path, root + wellKnownOIDC + path, root + path + wellKnownOIDC}, nil
}

func (f *Flow) checkProvider(p provider, place, resource, issuer string) error {
	if p.Issuer != issuer {
		return wrong("tell the administrator; both must be the same to the letter", "the metadata at %s is that of %q, not of %s", place, p.Issuer, issuer)
	}
	for _, e := range []struct {
		what, url string
		optional  bool
	}{
		{"authorization endpoint", p.Authorization, false}, {"token endpoint", p.Token, false},
		{"registration endpoint", p.Registration, true}, {"revocation endpoint", p.Revocation, true},
	} {
		if e.url == "" && e.optional {
			continue
		}
		if err := checkEndpoint(e.what, e.url, resource); err != nil {
			return err
		}
	}
	if slices.Contains(p.Challenges, "S256") || f.AssumePKCE && len(p.Challenges) == 0 {
		return nil
	}
	if len(p.Challenges) == 0 {
		return wrong("if you know that it does (Entra ID does), add --assume-pkce", "the identity provider %s does not say that it supports PKCE, without which a code could be stolen", issuer)
	}
	return wrong("ask for a provider with S256", "the identity provider %s supports PKCE only as %s, which protects nothing", issuer, strings.Join(p.Challenges, ", "))
}

// document fetches JSON. found is false when nothing is there.
func (f *Flow) document(ctx context.Context, from string, into any) (found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return false, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", f.UserAgent)
	res, err := f.Client.Do(req)
	if err != nil {
		return false, &Unreachable{from, err}
	}
	defer drain(res)
	switch {
	case res.StatusCode >= 400 && res.StatusCode < 500:
		return false, nil
	case res.StatusCode >= 300 && res.StatusCode < 400:
		return false, wrong("tell the administrator; metadata is not fetched from elsewhere", "%s redirects to %s", from, res.Header.Get("Location"))
	case res.StatusCode != http.StatusOK:
		return false, wrong("try again later", "%s answers %d", from, res.StatusCode)
	}
	if err := readJSON(res.Body, into); err != nil {
		kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
		return false, wrong("check what is served there", "%s answers no JSON document (%s): %v", from, kind, err)
	}
	return true, nil
}

var errTooLong = errors.New("longer than 1 MiB")

func readJSON(r io.Reader, into any) error {
	raw, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err != nil {
		return err
	}
	if len(raw) > maxDocument {
		return errTooLong
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("not as expected: %w", err)
	}
	return nil
}

// drain reads the little that is left, so that the connection ends politely.
func drain(res *http.Response) {
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	_ = res.Body.Close()
}

package auth

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

const wellKnown = "/.well-known/oauth-protected-resource"

// Metadata serves the protected resource metadata (RFC 9728) of every tenant,
// in both places where clients look for it:
//
//	/.well-known/oauth-protected-resource/t/{tenant}/mcp
//	/t/{tenant}/mcp/.well-known/oauth-protected-resource
//
// with or without a slash at the end. Any other path and an unknown tenant
// answer 404: no client is ever given the document of another resource. The
// root form answers 404 too, or with the sole tenant's document where the
// SiteConfig names one. The document holds nothing secret and may be read from
// any web origin.
type Metadata struct {
	site     *Site
	tenants  TenantLookup
	trusts   Trusts
	attempts *attempts
}

// NewMetadata makes the handler; trusts may be nil, as for NewChallenger.
func NewMetadata(site *Site, lookup TenantLookup, trusts Trusts) *Metadata {
	return &Metadata{site: site, tenants: lookup, trusts: trusts}
}

// Reporting returns a handler that reports each reading to rec.
func (m *Metadata) Reporting(rec Recorder) *Metadata {
	d := *m
	d.attempts = newAttempts(m.site, m.tenants, rec)
	return &d
}

type resource struct {
	Resource string   `json:"resource"`
	Servers  []string `json:"authorization_servers,omitempty"`
	Scopes   []string `json:"scopes_supported"`
	Methods  []string `json:"bearer_methods_supported"`
	Name     string   `json:"resource_name"`
	Docs     string   `json:"resource_documentation,omitempty"`
}

// ServeHTTP reads the tenant from the path itself and depends on no router.
func (m *Metadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Cache-Control", "no-store") // of everything but the document
	slug, ok := m.slug(r.URL.Path)
	if !ok {
		problem(w, http.StatusNotFound, fault.New(fault.NotFound, "unknown_resource", "no protected resource here").Do("ask for the metadata of /t/TENANT/mcp"))
		return
	}
	switch r.Method {
	case http.MethodOptions:
		h.Set("Access-Control-Allow-Methods", "GET, HEAD, OPTIONS")
		h.Set("Access-Control-Allow-Headers", "Content-Type, Accept, MCP-Protocol-Version")
		w.WriteHeader(http.StatusNoContent)
		return
	case http.MethodGet, http.MethodHead:
	default:
		h.Set("Allow", "GET, HEAD, OPTIONS")
		problem(w, http.StatusMethodNotAllowed, fault.New(fault.Invalid, "method", "the metadata can only be read"))
		return
	}
	t, err := m.tenants.TenantBySlug(r.Context(), slug)
	if err != nil {
		writeFault(w, err)
		return
	}
	trust, err := trustOf(r.Context(), m.tenants, m.trusts, slug)
	if err != nil {
		writeFault(w, err)
		return
	}
	doc := resource{
		Resource: m.site.MCP(slug), Scopes: tenants.EveryScope.Words(), Methods: []string{"header"},
		Name: "Telltale: " + t.Name, Docs: m.site.docs,
	}
	if trust.Policy.Scopes != 0 {
		doc.Scopes = trust.Policy.Scopes.Effective().Words()
	}
	for _, i := range trust.Issuers {
		if !slices.Contains(doc.Servers, i.URL) {
			doc.Servers = append(doc.Servers, i.URL)
		}
	}
	m.attempts.fetched(r, t)
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "public, max-age=60")
	_ = json.NewEncoder(w).Encode(doc) // the client is gone if this fails
}

// slug takes the tenant from one of the forms.
func (m *Metadata) slug(path string) (slug string, ok bool) {
	path = strings.TrimSuffix(path, "/")
	if path == wellKnown {
		return m.site.sole, m.site.sole != ""
	}
	rest, ok := strings.CutPrefix(path, wellKnown+"/t/")
	if ok {
		slug, ok = strings.CutSuffix(rest, "/mcp")
	} else if rest, ok = strings.CutPrefix(path, "/t/"); ok {
		slug, ok = strings.CutSuffix(rest, "/mcp"+wellKnown)
	}
	return slug, ok && tenants.CheckSlug(slug) == nil
}

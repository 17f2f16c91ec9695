package auth

import (
	"encoding/json"
	"net/http"
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
// Any other path, the root form among them, and an unknown tenant answer 404:
// no client is ever given the document of another resource. The document holds
// nothing secret and may be read from any web origin.
type Metadata struct {
	site    *Site
	tenants TenantLookup
	issuers Issuers
}

// NewMetadata makes the handler; issuers may be nil, as for NewChallenger.
func NewMetadata(site *Site, lookup TenantLookup, issuers Issuers) *Metadata {
	return &Metadata{site: site, tenants: lookup, issuers: issuers}
}

type resource struct {
	Resource string   `json:"resource"`
	Servers  []string `json:"authorization_servers,omitempty"`
	Scopes   []string `json:"scopes_supported"`
	Methods  []string `json:"bearer_methods_supported"`
	Name     string   `json:"resource_name"`
}

// ServeHTTP reads the tenant from the path itself and depends on no router.
func (m *Metadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	slug, ok := metadataSlug(r.URL.Path)
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
	servers, err := issuersOf(r.Context(), m.tenants, m.issuers, slug)
	if err != nil {
		writeFault(w, err)
		return
	}
	doc := resource{Resource: m.site.MCP(slug), Servers: servers, Scopes: []string{}, Methods: []string{"header"}, Name: "Telltale: " + t.Name}
	for _, s := range tenants.AllScopes() {
		doc.Scopes = append(doc.Scopes, s.Words()...)
	}
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "public, max-age=60")
	_ = json.NewEncoder(w).Encode(doc) // the client is gone if this fails
}

// metadataSlug takes the tenant from one of the two forms.
func metadataSlug(path string) (slug string, ok bool) {
	rest, ok := strings.CutPrefix(path, wellKnown+"/t/")
	if ok {
		slug, ok = strings.CutSuffix(rest, "/mcp")
	} else if rest, ok = strings.CutPrefix(path, "/t/"); ok {
		slug, ok = strings.CutSuffix(rest, "/mcp"+wellKnown)
	}
	return slug, ok && tenants.CheckSlug(slug) == nil
}

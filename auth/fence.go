package auth

import (
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/telltale-dev/telltale/tenants/fault"
)

// preflightAge is how long a browser may remember a preflight.
const preflightAge = 10 * time.Minute

var (
	corsMethods = "GET, POST, PUT, PATCH, DELETE, OPTIONS"
	corsHeaders = strings.Join([]string{"Authorization", "Content-Type", "Accept", "MCP-Protocol-Version", "Mcp-Session-Id", "Mcp-Method", "Mcp-Name", "Last-Event-ID", "If-None-Match", "Idempotency-Key", CSRFHeader}, ", ")
	corsExposed = strings.Join([]string{"MCP-Protocol-Version", "Mcp-Session-Id", "WWW-Authenticate", ReferenceHeader, "ETag", "Retry-After", "RateLimit", "RateLimit-Policy"}, ", ")
)

// Fence keeps foreign hosts and foreign web origins out (DNS rebinding,
// cross-site calls) and answers CORS for the origins that are listed. Put it
// in front of every API route. The zero counters are ready.
type Fence struct {
	site                 *Site
	attempts             *attempts
	badHosts, badOrigins atomic.Uint64
}

// NewFence makes the middleware for a site.
func NewFence(site *Site) *Fence { return &Fence{site: site} }

// Reporting lets a Fence report the origins that it refuses at a tenant's door
// to rec. Call it before the first request.
func (f *Fence) Reporting(lookup TenantLookup, rec Recorder) *Fence {
	f.attempts = newAttempts(f.site, lookup, rec)
	return f
}

// Refused counts the requests refused for their host and for their origin.
func (f *Fence) Refused() (hosts, origins uint64) { return f.badHosts.Load(), f.badOrigins.Load() }

// Hosts answers 421 to a Host that is not this server's.
func (f *Fence) Hosts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !f.site.hostAllowed(r.Host) {
			f.badHosts.Add(1)
			problem(w, http.StatusMisdirectedRequest, fault.New(fault.Invalid, "foreign_host", "this server does not answer for that host").
				Do("use the server's public URL, or add the host to the allowed hosts"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Origins answers 403 to an Origin that is present and not allowed, and CORS
// to one that is. Cookies are never offered to another origin, and "*" is
// never answered.
func (f *Fence) Origins(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origins := r.Header["Origin"]
		if h := w.Header(); len(h["Vary"]) == 0 {
			h["Vary"] = varyOrigin
		} else {
			h.Add("Vary", "Origin")
		}
		if len(origins) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		if len(origins) > 1 || !f.site.originAllowed(origins[0]) {
			f.badOrigins.Add(1)
			w.Header().Set("Cache-Control", "no-store")
			slug, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/t/"), "/")
			f.attempts.refused(r, slug, Reference(w), &Failure{Class: Origin, Expected: clean(strings.Join(f.site.origins, " "), maxNoted), Received: clean(strings.Join(origins, " "), maxNoted)})
			problem(w, http.StatusForbidden, fault.New(fault.Denied, "foreign_origin", "this web origin may not call this server").
				Do("add the origin to the allowed origins"))
			return
		}
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", origins[0])
		h.Set("Access-Control-Expose-Headers", corsExposed)
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			h.Set("Access-Control-Allow-Methods", corsMethods)
			h.Set("Access-Control-Allow-Headers", corsHeaders)
			h.Set("Access-Control-Max-Age", strconv.Itoa(int(preflightAge.Seconds())))
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next.ServeHTTP(w, r)
	})
}

package auth

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/telltale-dev/telltale/tenants"
)

// SiteConfig says how the outside reaches this server.
type SiteConfig struct {
	// PublicURL is the scheme and authority people use, for example
	// "https://telltale.example.org". Plain http is for loopback only. Every
	// link and every canonical resource is built from it and never from a
	// request's Host.
	PublicURL string
	// AllowedHosts are further Host values to answer, with or without a port; a
	// name without one is answered on any port. The public URL's host is always
	// answered, and with a loopback public URL every loopback name is.
	AllowedHosts []string
	// AllowedOrigins are further web origins whose scripts may call with a
	// bearer, such as "https://inspector.example.org". Never "*".
	AllowedOrigins []string
	// TrustedProxies are the networks whose X-Forwarded-For is believed, and
	// TrustUnix believes it of peers on a unix socket.
	TrustedProxies []netip.Prefix
	TrustUnix      bool
	// SoleTenant is the slug whose metadata the root well-known answers with,
	// on a server for one tenant; empty: the root answers 404.
	SoleTenant string
	// Documentation is the page that the metadata names for people who connect;
	// empty: none.
	Documentation string
}

// Site knows the server's public face. It is immutable.
type Site struct {
	origin   string // scheme://authority, no trailing slash
	secure   bool
	loopback bool
	port     string // of the public URL, empty for the scheme's own
	hosts    []string
	origins  []string
	proxies  []netip.Prefix
	unix     bool
	sole     string
	docs     string
}

// NewSite checks the configuration and reports all its mistakes together.
func NewSite(cfg SiteConfig) (*Site, error) {
	u, err := url.Parse(cfg.PublicURL)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || (u.Path != "" && u.Path != "/") || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("public URL %q: want https://HOST[:PORT] without path, query or user", cfg.PublicURL)
	}
	s := &Site{
		origin: strings.ToLower(u.Scheme + "://" + u.Host), secure: u.Scheme == "https", loopback: isLoopback(u.Hostname()), port: u.Port(),
		hosts: []string{strings.ToLower(u.Host)}, proxies: cfg.TrustedProxies, unix: cfg.TrustUnix,
		sole: cfg.SoleTenant, docs: cfg.Documentation,
	}
	s.origins = []string{s.origin}
	var errs []error
	if !s.secure && !s.loopback {
		errs = append(errs, fmt.Errorf("public URL %q: plain http is for loopback only; put TLS in front and name its https URL", cfg.PublicURL))
	}
	if s.sole != "" && tenants.CheckSlug(s.sole) != nil {
		errs = append(errs, fmt.Errorf("sole tenant %q: want a tenant's slug", s.sole))
	}
	if du, err := url.Parse(s.docs); s.docs != "" && (err != nil || du.Host == "" || du.Scheme != "https" && du.Scheme != "http") {
		errs = append(errs, fmt.Errorf("documentation %q: want an absolute URL", s.docs))
	}
	for _, h := range cfg.AllowedHosts {
		if h == "" || strings.ContainsAny(h, "*/ ,") {
			errs = append(errs, fmt.Errorf("allowed host %q: want a host name or address, with or without a port", h))
		}
		s.hosts = append(s.hosts, strings.ToLower(h))
	}
	for _, o := range cfg.AllowedOrigins {
		if ou, err := url.Parse(o); err != nil || ou.Scheme == "" || ou.Host == "" || ou.Path != "" || ou.RawQuery != "" || strings.Contains(o, "*") {
			errs = append(errs, fmt.Errorf("allowed origin %q: want scheme://host[:port] and no wildcard", o))
		}
		s.origins = append(s.origins, strings.ToLower(o))
	}
	return s, errors.Join(errs...)
}

// Origin is the server's own web origin, without a trailing slash.
func (s *Site) Origin() string { return s.origin }

// MCP is the canonical resource of one tenant: the URL that people paste.
func (s *Site) MCP(slug string) string { return s.origin + "/t/" + slug + "/mcp" }

// REST is the base URL of one tenant's REST API.
func (s *Site) REST(slug string) string { return s.origin + "/t/" + slug + "/api/v1" }

// Metadata is the URL of one tenant's protected resource metadata (RFC 9728,
// section 3.1: the well-known part goes between authority and path).
func (s *Site) Metadata(slug string) string { return s.origin + wellKnown + "/t/" + slug + "/mcp" }

// ClientAddr is the address a request comes from, for network lists and logs.
// X-Forwarded-For counts only when the peer is a trusted proxy, and then up to
// the last hop that no trusted proxy vouches for. The zero Addr is unknown,
// for example a plain peer on a unix socket.
func (s *Site) ClientAddr(r *http.Request) netip.Addr {
	peer := netip.Addr{}
	if ap, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		peer = ap.Addr().Unmap().WithZone("")
	}
	if !s.trusts(peer) {
		return peer
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		hop = strings.TrimSpace(hop)
		if hop == "" && len(hops) == 1 {
			return peer // the proxy itself calls
		}
		addr, err := netip.ParseAddr(hop)
		if err != nil {
			return netip.Addr{} // a trusted proxy passed on nonsense: unknown, not a guess
		}
		if peer = addr.Unmap().WithZone(""); !s.trusts(peer) {
			return peer
		}
	}
	return peer
}

func (s *Site) trusts(peer netip.Addr) bool {
	if !peer.IsValid() {
		return s.unix
	}
	return len(s.proxies) > 0 && within(s.proxies, peer)
}

// hostAllowed reports whether a Host header names this server.
func (s *Site) hostAllowed(host string) bool {
	host = strings.ToLower(host)
	if slices.Contains(s.hosts, host) {
		return true
	}
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.Trim(name, "[]")
	return slices.Contains(s.hosts[1:], name) || s.loopback && isLoopback(name)
}

// originAllowed reports whether a web origin may call.
func (s *Site) originAllowed(origin string) bool {
	return slices.Contains(s.origins, strings.ToLower(origin)) || s.ownOrigin(origin)
}

// ownOrigin reports whether a web origin is this server's: the public URL, or
// for a loopback one any loopback name on the same scheme and port.
func (s *Site) ownOrigin(origin string) bool {
	origin = strings.ToLower(origin)
	if origin == s.origin {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && s.loopback && u.Path == "" && (u.Scheme == "https") == s.secure && isLoopback(u.Hostname()) && u.Port() == s.port
}

func isLoopback(name string) bool {
	if name == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(name)
	return err == nil && addr.Unmap().IsLoopback()
}

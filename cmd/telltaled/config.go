package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
)

// documentation is where the metadata sends whoever connects.
const documentation = "https://github.com/telltale-dev/telltale/blob/main/docs/connect.md"

// config is everything that serve can be told. dev fills most of it itself.
type config struct {
	db database

	http, grpc, mgmt  string // host:port, or unix:PATH for http
	publicURL         string
	tlsCert, tlsKey   string
	proxies           words
	hosts, origins    words
	grpcCert, grpcKey string
	keyFile           string
	trustDomain       string
	noMCP             bool
	strictEras        bool
	toolSets, exclude words
	readOnly          bool
	soleTenant        string
	issuerNets        words
	issuerLoopback    bool // dev alone: issuers may be plain http on this machine
	migrate           bool
	logLevel, logForm string
}

func (c *config) flags(fs *flag.FlagSet) {
	c.db.flags(fs)
	c.db.ownerFlag(fs)
	fs.StringVar(&c.http, "http", "127.0.0.1:8400", "`ADDRESS` for REST, MCP and the dashboard: host:port, or unix:PATH")
	fs.StringVar(&c.grpc, "grpc", "127.0.0.1:8401", "`ADDRESS` for agents")
	fs.StringVar(&c.mgmt, "mgmt", "127.0.0.1:8402", "`ADDRESS` for this server's own metrics and profiles; keep it private")
	fs.StringVar(&c.publicURL, "public-url", "", "`URL` under which people reach --http; default: http:// and its address, on loopback only")
	fs.StringVar(&c.tlsCert, "tls-cert", "", "certificate `FILE` for --http; read again when it changes")
	fs.StringVar(&c.tlsKey, "tls-key", "", "key `FILE` for --http")
	fs.Var(&c.proxies, "trusted-proxies", "`NETWORKS` of the proxy that ends TLS in front of --http and whose X-Forwarded-For is believed")
	fs.Var(&c.hosts, "allowed-hosts", "further Host `NAMES` to answer")
	fs.Var(&c.origins, "allowed-origins", "further web `ORIGINS` whose scripts may call")
	fs.StringVar(&c.grpcCert, "grpc-cert", "", "certificate `FILE` for --grpc; read again when it changes")
	fs.StringVar(&c.grpcKey, "grpc-key", "", "key `FILE` for --grpc")
	fs.StringVar(&c.keyFile, "key-file", "", "`FILE` with the key that seals the tenants' certificate authorities; made when missing")
	fs.StringVar(&c.trustDomain, "trust-domain", "telltale", "SPIFFE trust `DOMAIN` of node certificates; never change it")
	fs.BoolVar(&c.noMCP, "no-mcp", false, "offer MCP to nobody")
	fs.BoolVar(&c.strictEras, "strict-mcp", false, "refuse clients that mix the MCP revisions in one conversation")
	fs.Var(&c.toolSets, "toolsets", "MCP tool `SETS` that are offered at most, comma-separated: observe, diagnose, jobs, apps (the default), act, maintain, admin")
	fs.BoolVar(&c.readOnly, "read-only", false, "offer no MCP tool that changes anything, whatever --toolsets says")
	fs.Var(&c.exclude, "exclude-tools", "MCP `TOOLS` or sets that are never offered")
	fs.StringVar(&c.soleTenant, "sole-tenant", "", "`SLUG` of the only tenant: its metadata is answered at the root, too")
	fs.Var(&c.issuerNets, "issuer-networks", "private `NETWORKS` in which tenants' identity providers may live; by default none is reached")
	fs.BoolVar(&c.migrate, "migrate", false, "bring the database's schema up to date before serving")
	logFlags(fs, &c.logLevel, &c.logForm)
}

func logFlags(fs *flag.FlagSet, level, form *string) {
	fs.StringVar(level, "log-level", "info", "least `LEVEL` that is logged: debug, info, warn, error")
	fs.StringVar(form, "log-format", "text", "`FORMAT` of the log: text or json")
}

func checkLog(level, form string) error {
	var bad []error
	if _, ok := logLevels[level]; !ok {
		bad = append(bad, fmt.Errorf("--log-level %q: want debug, info, warn or error", level))
	}
	if form != "text" && form != "json" {
		bad = append(bad, fmt.Errorf("--log-format %q: want text or json", form))
	}
	return errors.Join(bad...)
}

// check reports every mistake and unsafe combination together.
func (c *config) check() error {
	var bad []error
	say := func(format string, args ...any) { bad = append(bad, fmt.Errorf(format, args...)) }
	if err := c.db.check(); err != nil {
		bad = append(bad, err)
	}
	if err := checkLog(c.logLevel, c.logForm); err != nil {
		bad = append(bad, err)
	}
	if c.keyFile == "" {
		say("--key-file is missing: name a file on durable storage; it is made when it does not exist")
	}
	if (c.tlsCert == "") != (c.tlsKey == "") {
		say("--tls-cert and --tls-key go together")
	}
	if c.grpcCert == "" || c.grpcKey == "" {
		say("--grpc-cert and --grpc-key are missing: agents speak TLS only")
	}
	if _, err := c.proxyNets(); err != nil {
		bad = append(bad, err)
	}
	if _, err := c.fetcher(); err != nil {
		bad = append(bad, err)
	}
	if c.soleTenant != "" && tenants.CheckSlug(c.soleTenant) != nil {
		say("--sole-tenant %q: want a tenant's slug, 1 to 40 of a-z, 0-9 and -", c.soleTenant)
	}
	if !strings.HasPrefix(c.http, "unix:") {
		routable, err := routable(c.http)
		switch {
		case err != nil:
			say("--http: %w", err)
		case routable && c.tlsCert == "" && len(c.proxies) == 0:
			say("--http %s can be reached from outside and has no TLS: give --tls-cert and --tls-key, name the proxy that ends TLS in --trusted-proxies, or listen on 127.0.0.1", c.http)
		case routable && c.publicURL == "":
			say("--public-url is missing: --http %s can be reached from outside, so name the URL people use", c.http)
		}
	} else if c.publicURL == "" {
		say("--public-url is missing: name the URL of the proxy in front of the unix socket")
	}
	if c.publicURL != "" || len(c.hosts)+len(c.origins) > 0 {
		if _, err := c.site(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}); err != nil {
			bad = append(bad, err)
		}
	}
	if _, err := routable(c.grpc); err != nil {
		say("--grpc: %w", err)
	}
	if out, err := routable(c.mgmt); err != nil {
		say("--mgmt: %w", err)
	} else if out {
		say("--mgmt %s can be reached from outside: it asks for no credential, so bind it to 127.0.0.1", c.mgmt)
	}
	if len(bad) > 0 {
		return fmt.Errorf("%w: %w", errUsage, errors.Join(bad...))
	}
	return nil
}

// routable reports whether an address takes connections from other machines.
func routable(addr string) (bool, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false, fmt.Errorf("%q is no host:port", addr)
	}
	if host == "localhost" {
		return false, nil
	}
	ip, err := netip.ParseAddr(host)
	return host == "" || err != nil || !ip.IsLoopback(), nil
}

func (c *config) proxyNets() ([]netip.Prefix, error) {
	nets, err := c.proxies.prefixes("--trusted-proxies")
	for _, n := range nets {
		if n.Bits() == 0 {
			return nil, fmt.Errorf("--trusted-proxies: %s is everybody: name the proxy's own network, whose word on who calls is believed", n)
		}
	}
	return nets, err
}

// prefixes reads the words of a flag as networks.
func (w words) prefixes(flag string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, p := range w {
		n, err := netip.ParsePrefix(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is no prefix such as 10.0.0.0/8", flag, p)
		}
		out = append(out, n)
	}
	return out, nil
}

// site is the server's public face; bound is the address --http listens on.
func (c *config) site(bound net.Addr) (*auth.Site, error) {
	nets, err := c.proxyNets()
	if err != nil {
		return nil, err
	}
	public := c.publicURL
	if public == "" {
		scheme := "http://"
		if c.tlsCert != "" {
			scheme = "https://"
		}
		public = scheme + bound.String()
	}
	return auth.NewSite(auth.SiteConfig{
		PublicURL: public, AllowedHosts: c.hosts, AllowedOrigins: c.origins,
		TrustedProxies: nets, TrustUnix: strings.HasPrefix(c.http, "unix:"),
		SoleTenant: c.soleTenant, Documentation: documentation,
	})
}

var logLevels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

func newLogger(w io.Writer, level, form string) *slog.Logger {
	opts := &slog.HandlerOptions{Level: logLevels[level]}
	if form == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

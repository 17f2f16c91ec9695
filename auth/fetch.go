package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/telltale-dev/telltale/tenants/fault"
)

const (
	fetchTimeout   = 5 * time.Second // of one fetch, whatever it is made of
	fetchBytes     = 1 << 20         // of one response's body
	fetchRedirects = 3
	fetchURL       = 2048 // bytes of a URL that is fetched
)

// FetchConfig tunes a Fetcher. The zero value is ready for production.
type FetchConfig struct {
	// AllowHTTPLoopback lets plain http reach names and addresses of this
	// machine, and https too: for development.
	AllowHTTPLoopback bool
	// AllowNetworks are private or special networks that an identity provider
	// may live in.
	AllowNetworks []netip.Prefix
	// RootCAs replaces the system's certificate authorities; nil keeps them.
	RootCAs *x509.CertPool
	// Timeout bounds one fetch; zero means 5 s.
	Timeout time.Duration
}

// Fetcher is the only HTTP client that reaches identity providers. Their URLs
// are an administrator's input, so it lets nobody look into this network: it
// speaks https only, and the address that is really dialled must be a public
// one (a name that resolves to another address the second time gains
// nothing). Redirects are few and each is checked again, answers are bounded
// in time and bytes, and no proxy, cookie or credential of the environment is
// ever used. Safe for concurrent use.
type Fetcher struct {
	cfg      FetchConfig
	client   *http.Client
	resolver *net.Resolver // nil: the system's
	fetches  atomic.Uint64
	refused  atomic.Uint64
}

// NewFetcher makes a Fetcher.
func NewFetcher(cfg FetchConfig) *Fetcher {
	if cfg.Timeout <= 0 {
		cfg.Timeout = fetchTimeout
	}
	f := &Fetcher{cfg: cfg}
	f.client = &http.Client{
		Timeout: cfg.Timeout,
		Transport: &http.Transport{
			Proxy: nil, DialContext: f.dial, DisableCompression: true, ForceAttemptHTTP2: true,
			TLSClientConfig:     &tls.Config{RootCAs: cfg.RootCAs, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout: cfg.Timeout, ResponseHeaderTimeout: cfg.Timeout, MaxResponseHeaderBytes: 64 << 10,
			MaxConnsPerHost: 128, MaxIdleConnsPerHost: 4, MaxIdleConns: 64, IdleConnTimeout: 30 * time.Second,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > fetchRedirects {
				return fmt.Errorf("more than %d redirects", fetchRedirects)
			}
			return f.Check(req.URL.String())
		},
	}
	return f
}

// Close ends the connections that nothing uses.
func (f *Fetcher) Close() { f.client.CloseIdleConnections() }

// Stats counts fetches, and those refused by a rule of this Fetcher.
func (f *Fetcher) Stats() (fetches, refused uint64) { return f.fetches.Load(), f.refused.Load() }

// Check says whether a URL could be fetched at all, by what can be seen before
// its name is resolved. The fault names the rule.
func (f *Fetcher) Check(raw string) error {
	err := f.check(raw)
	if err != nil {
		f.refused.Add(1)
	}
	return err
}

func (f *Fetcher) check(raw string) error {
	if len(raw) > fetchURL {
		return fault.Bad("url", "a URL of at most %d bytes", fetchURL)
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "" || u.Opaque != "":
		return fault.Bad("url", "want an absolute URL: https://HOST/PATH")
	case u.User != nil:
		return fault.Bad("url", "a URL with a user or password in it is refused")
	case u.Fragment != "":
		return fault.Bad("url", "a URL with a fragment is refused")
	}
	loopback := isLoopback(strings.ToLower(u.Hostname()))
	switch {
	case u.Scheme == "https":
	case u.Scheme == "http" && loopback && f.cfg.AllowHTTPLoopback:
	case u.Scheme == "http" && loopback:
		return fault.Bad("url", "plain http on loopback is for development only; want https")
	default:
		return fault.Bad("url", "want https")
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		return f.reachable(addr, loopback)
	}
	return nil
}

// HTTPLoopback reports whether a URL is plain http on this machine, which a
// Fetcher takes only when AllowHTTPLoopback says so.
func HTTPLoopback(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && u.Scheme == "http" && isLoopback(strings.ToLower(u.Hostname()))
}

// dial checks the address that is dialled, after every resolution.
func (f *Fetcher) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	loopback := isLoopback(strings.ToLower(host))
	d := net.Dialer{Timeout: f.cfg.Timeout, Resolver: f.resolver, ControlContext: func(_ context.Context, _, resolved string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(resolved)
		if err != nil {
			return err
		}
		if err := f.reachable(ap.Addr(), loopback); err != nil {
			f.refused.Add(1)
			return err
		}
		return nil
	}}
	return d.DialContext(ctx, network, address)
}

// reachable refuses addresses that are not public. loopback says that the URL
// itself names this machine: such a name must stay on it, and no other name
// may lead to it.
func (f *Fetcher) reachable(addr netip.Addr, loopback bool) error {
	addr = addr.Unmap().WithZone("")
	if len(f.cfg.AllowNetworks) > 0 && within(f.cfg.AllowNetworks, addr) {
		return nil
	}
	if f.cfg.AllowHTTPLoopback && loopback && addr.IsLoopback() {
		return nil
	}
	if loopback || !public(addr) {
		return fault.New(fault.Invalid, "private_address", "the URL leads to an address that is not public").
			Do("name a public address, or add the network to the allowed networks of this server")
	}
	return nil
}

// Get fetches a document: the body of a 200.
func (f *Fetcher) Get(ctx context.Context, raw string) ([]byte, error) {
	if err := f.Check(raw); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, raw, nil)
	if err != nil {
		return nil, err
	}
	status, body, err := f.do(f.client, req)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d", status)
	}
	return body, err
}

// Post sends a form with client credentials (client_secret_basic, RFC 6749
// section 2.3.1; none when id is empty). It follows no redirect: credentials
// go to the URL that was checked and nowhere else.
func (f *Fetcher) Post(ctx context.Context, raw string, form url.Values, id, secret string) (status int, body []byte, err error) {
	if err := f.Check(raw); err != nil {
		return 0, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, raw, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if id != "" {
		req.SetBasicAuth(url.QueryEscape(id), url.QueryEscape(secret))
	}
	still := *f.client
	still.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return f.do(&still, req)
}

func (f *Fetcher) do(client *http.Client, req *http.Request) (int, []byte, error) {
	f.fetches.Add(1)
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "telltaled")
	resp, err := client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the URL, which the caller names as far as is right
		}
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, fetchBytes+1))
	if err != nil {
		return 0, nil, err
	}
	if len(body) > fetchBytes {
		return 0, nil, fmt.Errorf("an answer of more than %d bytes", fetchBytes)
	}
	return resp.StatusCode, body, nil
}

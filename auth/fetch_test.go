package auth

import (
	"compress/gzip"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/telltale-dev/telltale/tenants/fault"
)

// tlsServer is a real https listener that counts the connections it gets.
func tlsServer(t *testing.T, h http.Handler) (s *httptest.Server, roots *x509.CertPool, conns *atomic.Int64) {
	t.Helper()
	conns = &atomic.Int64{}
	s = httptest.NewUnstartedServer(h)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	roots = x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return s, roots, conns
}

var loopbackNet = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

func TestFetchRefusesURLs(t *testing.T) {
	prod, dev := NewFetcher(FetchConfig{}), NewFetcher(FetchConfig{AllowHTTPLoopback: true})
	for _, c := range []struct {
		url       string
		prod, dev bool
	}{
		{"https://id.example.org", true, true},
		{"https://id.example.org:8443/realms/x?y=z", true, true},
		{"https://8.8.8.8/x", true, true},
		{"http://id.example.org", false, false},
		{"http://127.0.0.1:80/x", false, true},
		{"http://localhost:80/x", false, true},
		{"http://[::1]:80/x", false, true},
		{"https://127.0.0.1/x", false, true},
		{"https://10.0.0.1", false, false},
		{"http://10.0.0.1", false, false},
		{"https://172.16.9.9", false, false},
		{"https://192.168.0.1", false, false},
		{"https://169.254.169.254/latest/meta-data", false, false},
		{"https://100.64.1.1", false, false},
		{"https://0.0.0.0", false, false},
		{"https://255.255.255.255", false, false},
		{"https://224.0.0.1", false, false},
		{"https://198.18.0.1", false, false},
		{"https://[::]", false, false},
		{"https://[fe80::1]", false, false},
		{"https://[fe80::1%25eth0]", false, false},
		{"https://[fd00::1]", false, false},
		{"https://[ff02::1]", false, false},
		{"https://[::ffff:10.0.0.1]", false, false},
		{"https://[::ffff:127.0.0.1]", false, true},
		{"https://[64:ff9b::a00:1]", false, false},
		{"https://[2002:a00:1::]", false, false},
		{"https://[2001:db8::1]", false, false},
		{"https://user:pw@id.example.org", false, false},
		{"https://user@id.example.org", false, false},
		{"https://id.example.org/#x", false, false},
		{"ftp://id.example.org", false, false},
		{"file:///etc/passwd", false, false},
		{"gopher://id.example.org", false, false},
		{"https:id.example.org", false, false},
		{"//id.example.org", false, false},
		{"https://", false, false},
		{"https://:443", false, false},
		{"", false, false},
		{"https://id.example.org/" + strings.Repeat("a", 3000), false, false},
		{"https://id.example.org/\x00", false, false},
	} {
		for which, f := range map[string]*Fetcher{"production": prod, "development": dev} {
			want := map[string]bool{"production": c.prod, "development": c.dev}[which]
			err := f.Check(c.url)
			if (err == nil) != want {
				t.Errorf("%s %q: %v", which, c.url, err)
			}
			if err != nil && !fault.Is(err, fault.Invalid) {
				t.Errorf("%s %q: %v is no fault of the argument", which, c.url, err)
			}
		}
	}
	inside := NewFetcher(FetchConfig{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}})
	if inside.Check("https://10.1.2.3") != nil || inside.Check("https://10.2.2.3") == nil || inside.Check("http://10.1.2.3") == nil {
		t.Error("allowed networks are not what is allowed")
	}
}

// The address that is dialled counts, whatever the name looked like before.
func TestFetchChecksTheDialledAddress(t *testing.T) {
	s, roots, conns := tlsServer(t, http.NotFoundHandler())
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	names := fakeDNS(t, map[string][]string{
		"private.example.org.": {"127.0.0.1"}, "rebound.example.org.": {"127.0.0.1"}, "mixed.example.org.": {"10.0.0.1", "127.0.0.1"},
		"mapped.example.org.": {"::ffff:127.0.0.1"}, "metadata.example.org.": {"169.254.169.254"},
	})
	for _, dev := range []bool{false, true} { // in development, too, only loopback's own names lead to it
		f := NewFetcher(FetchConfig{RootCAs: roots, AllowHTTPLoopback: dev})
		f.resolver = names
		for _, host := range []string{"private.example.org", "rebound.example.org", "mixed.example.org", "mapped.example.org", "metadata.example.org", "localhost.", "127.1", "0x7f000001", "2130706433"} {
			began := time.Now()
			if _, err := f.Get(t.Context(), "https://"+host+":"+port+"/"); err == nil {
				t.Errorf("%s: fetched", host)
			}
			if time.Since(began) > 4*time.Second {
				t.Errorf("%s: took %v", host, time.Since(began))
			}
		}
		f.Close()
	}
	if n := conns.Load(); n != 0 {
		t.Errorf("%d connections to loopback", n)
	}
	f := NewFetcher(FetchConfig{RootCAs: roots, AllowNetworks: loopbackNet})
	f.resolver = names
	if _, err := f.Get(t.Context(), "https://private.example.org:"+port+"/"); err == nil || conns.Load() == 0 {
		t.Errorf("an allowed network is not reached: %v", err) // the certificate is for another name, but it connects
	}
	f.Close()
}

func TestFetchRedirects(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inner.Close() })
	reached := make(chan struct{}, 10)
	go func() {
		for {
			c, err := inner.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
			reached <- struct{}{}
		}
	}()
	_, innerPort, _ := net.SplitHostPort(inner.Addr().String())
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))
	t.Cleanup(plain.Close)
	var last atomic.Value
	s, roots, _ := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last.Store(r.Header.Get("Authorization") + r.Header.Get("Cookie"))
		http.SetCookie(w, &http.Cookie{Name: "a", Value: "b", Path: "/"})
		switch r.URL.Path {
		case "/3", "/2", "/1":
			http.Redirect(w, r, map[string]string{"/3": "/2", "/2": "/1", "/1": "/0"}[r.URL.Path], http.StatusFound)
		case "/4":
			http.Redirect(w, r, "/3", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/to":
			http.Redirect(w, r, r.URL.Query().Get("u"), http.StatusTemporaryRedirect)
		default:
			fmt.Fprint(w, `{"ok":true}`)
		}
	}))
	// Only the one address is allowed: where it redirects to is not.
	f := NewFetcher(FetchConfig{RootCAs: roots, AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
	defer f.Close()
	f.resolver = fakeDNS(t, map[string][]string{"inner.example.org.": {"127.0.0.2"}})
	for path, want := range map[string]bool{
		"/0": true, "/1": true, "/3": true, "/4": false, "/loop": false,
		"/to?u=" + url.QueryEscape("https://"+inner.Addr().String()): false, "/to?u=" + url.QueryEscape("https://inner.example.org:"+innerPort): false, "/to?u=" + url.QueryEscape(plain.URL): false,
		"/to?u=" + url.QueryEscape("https://10.0.0.1/"): false, "/to?u=file:///etc/passwd": false, "/to?u=" + url.QueryEscape("https://u:p@127.0.0.1/"): false,
	} {
		if body, err := f.Get(t.Context(), s.URL+path); (err == nil) != want {
			t.Errorf("%s: %q, %v", path, body, err)
		}
		if got, _ := last.Load().(string); got != "" {
			t.Errorf("%s: sent %q", path, got)
		}
	}
	status, _, err := f.Post(t.Context(), s.URL+"/to?u=/0", url.Values{"token": {"t"}}, "id", "secret")
	if err != nil || status != http.StatusTemporaryRedirect {
		t.Errorf("a POST was redirected: %d, %v", status, err)
	}
	if len(reached) > 0 {
		t.Error("a redirect led to an address that is not allowed")
	}
}

func TestFetchBounds(t *testing.T) {
	release := make(chan struct{})
	s, roots, conns := tlsServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/big":
			for range 40 {
				_, _ = w.Write(make([]byte, 32<<10))
			}
		case "/fits":
			_, _ = w.Write(make([]byte, fetchBytes))
		case "/header":
			w.Header().Set("X", strings.Repeat("x", 100<<10))
		case "/zip":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = z.Write(make([]byte, 8<<20))
			_ = z.Close()
		case "/mute":
			<-release
		case "/drip":
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			<-release
		case "/error":
			w.WriteHeader(500)
		}
	}))
	t.Cleanup(func() { close(release) })
	f := NewFetcher(FetchConfig{RootCAs: roots, AllowNetworks: loopbackNet, Timeout: 300 * time.Millisecond})
	defer f.Close()
	for _, path := range []string{"/big", "/header", "/mute", "/drip", "/error"} {
		began := time.Now()
		if _, err := f.Get(t.Context(), s.URL+path); err == nil || time.Since(began) > 5*time.Second {
			t.Errorf("%s: %v after %v", path, err, time.Since(began))
		}
	}
	if body, err := NewFetcher(FetchConfig{RootCAs: roots, AllowNetworks: loopbackNet}).Get(t.Context(), s.URL+"/zip"); err != nil || len(body) > 100<<10 {
		t.Errorf("a compressed answer was unpacked: %d, %v", len(body), err)
	}
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	t.Setenv("https_proxy", "http://127.0.0.1:1")
	if body, err := NewFetcher(FetchConfig{RootCAs: roots, AllowNetworks: loopbackNet}).Get(t.Context(), s.URL+"/fits"); err != nil || len(body) != fetchBytes {
		t.Errorf("%d bytes, %v", len(body), err)
	}
	if _, err := NewFetcher(FetchConfig{AllowNetworks: loopbackNet}).Get(t.Context(), s.URL+"/"); err == nil || !strings.Contains(describe(err), "certificate") {
		t.Errorf("a certificate of nobody: %v", err)
	}
	before := conns.Load()
	if _, err := NewFetcher(FetchConfig{RootCAs: roots}).Get(t.Context(), s.URL+"/"); err == nil || conns.Load() != before {
		t.Errorf("loopback in production: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Get(ctx, s.URL+"/mute"); err == nil {
		t.Error("a caller that is gone is answered")
	}
}

// fakeDNS resolves names to what the test says.
func fakeDNS(t *testing.T, names map[string][]string) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if out := dnsAnswer(buf[:n], names); out != nil {
				_, _ = conn.WriteTo(out, from)
			}
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

func dnsAnswer(raw []byte, names map[string][]string) []byte {
	var m dnsmessage.Message
	if m.Unpack(raw) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	m.Response, m.Authoritative, m.Additionals = true, true, nil
	list, ok := names[strings.ToLower(q.Name.String())]
	if !ok {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, a := range list {
		addr := netip.MustParseAddr(a)
		head := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 0}
		if q.Type == dnsmessage.TypeA && addr.Is4() {
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: addr.As4()}})
		}
		if q.Type == dnsmessage.TypeAAAA && !addr.Is4() {
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
		}
	}
	out, _ := m.Pack()
	return out
}

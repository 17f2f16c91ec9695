package authtest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// The client that a Signer lets introspect.
const (
	IntrospectID     = "telltale: server"
	IntrospectSecret = "s3cret+of:the/server%"
)

// Signer is an issuer inside the test, on loopback, that makes any token it is
// told to, good or bad: what no real provider can be asked for. It serves
// discovery, keys and introspection, counts who asks, and can be down.
type Signer struct {
	URL string

	server *httptest.Server
	mu     sync.Mutex
	kid    int // of the present keys
	rsa    *rsa.PrivateKey
	ec     *ecdsa.PrivateKey
	ed     ed25519.PrivateKey
	opaque map[string]map[string]any
	asked  map[string]int
	down   bool
	meta   map[string]any
}

// Draft is a token before it is signed. Change it to make a bad one.
type Draft struct {
	Header, Claims map[string]any
	// RawHeader and RawClaims, when not nil, are signed instead of the maps.
	RawHeader, RawClaims []byte
	// Key signs in the place of the issuer's own: an *rsa.PrivateKey, or bytes
	// for HMAC. Header["alg"] says how.
	Key any
}

// NewSigner starts an issuer that ends with the test.
func NewSigner(t testing.TB) *Signer {
	t.Helper()
	return newSigner(t, (*httptest.Server).Start)
}

// NewTLSSigner starts one on https, as a server that is no demo wants it, and
// returns a file with the certificate to trust (SSL_CERT_FILE).
func NewTLSSigner(t testing.TB) (s *Signer, certFile string) {
	t.Helper()
	s = newSigner(t, (*httptest.Server).StartTLS)
	certFile = filepath.Join(t.TempDir(), "issuer.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw})
	if err := os.WriteFile(certFile, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return s, certFile
}

func newSigner(t testing.TB, start func(*httptest.Server)) *Signer {
	t.Helper()
	s := &Signer{opaque: map[string]map[string]any{}, asked: map[string]int{}, meta: map[string]any{}}
	s.Rotate(t)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", s.discovery)
	mux.HandleFunc("GET /keys", s.keys)
	mux.HandleFunc("POST /introspect", s.introspect)
	s.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked[r.URL.Path]++
		down := s.down
		s.mu.Unlock()
		if down {
			panic(http.ErrAbortHandler)
		}
		mux.ServeHTTP(w, r)
	}))
	start(s.server)
	s.URL = s.server.URL
	t.Cleanup(s.server.Close)
	return s
}

// Rotate replaces the issuer's keys and gives them another id.
func (s *Signer) Rotate(t testing.TB) {
	t.Helper()
	one, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	two, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, three, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kid++
	s.rsa, s.ec, s.ed = one, two, three
}

// SetDown makes the issuer cut every connection, or answer again.
func (s *Signer) SetDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// SetMetadata sets a member of the discovery document; nil takes it away.
func (s *Signer) SetMetadata(name string, value any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meta[name] = value
}

// Asked counts the requests to a path, for example "/keys".
func (s *Signer) Asked(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[path]
}

// PublicPEM is the present RSA key as PKIX, the secret of choice of who
// confuses algorithms.
func (s *Signer) PublicPEM() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, _ := x509.MarshalPKIXPublicKey(&s.rsa.PublicKey)
	return raw
}

// Access signs an access token in the first dialect (RFC 9068): typ at+jwt,
// RS256, the resource as audience, scopes as one string. change may be nil.
func (s *Signer) Access(t testing.TB, aud, subject, scope string, groups []string, change func(*Draft)) string {
	t.Helper()
	d := &Draft{Header: s.header("at+jwt"), Claims: s.claims(aud, subject, scope, groups)}
	if change != nil {
		change(d)
	}
	return s.Sign(t, d)
}

// Directory signs an access token in the second dialect, that of directories
// which know no resource indicators: typ JWT, GUID audience, scopes as the
// array scp, client in azp, the customer in tid. change may be nil.
func (s *Signer) Directory(t testing.TB, aud, tid, subject string, scopes, groups []string, change func(*Draft)) string {
	t.Helper()
	now := time.Now().Unix()
	d := &Draft{Header: s.header("JWT"), Claims: map[string]any{
		"iss": s.URL, "aud": aud, "sub": subject, "tid": tid, "azp": "0d4a9d6f-0000-4000-8000-00000000c11e", "scp": scopes, "groups": groups,
		"exp": now + 600, "iat": now, "nbf": now, "ver": "2.0", "preferred_username": subject + "@example.org",
	}}
	if change != nil {
		change(d)
	}
	return s.Sign(t, d)
}

// Opaque makes an opaque token and what introspection says of it. change may
// be nil; only the claims of the draft count.
func (s *Signer) Opaque(t testing.TB, aud, subject, scope string, groups []string, change func(*Draft)) string {
	t.Helper()
	d := &Draft{Header: map[string]any{}, Claims: s.claims(aud, subject, scope, groups)}
	d.Claims["active"], d.Claims["token_type"] = true, "Bearer"
	if change != nil {
		change(d)
	}
	token := "op." + rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opaque[token] = d.Claims
	return token
}

// Revoke makes an opaque token inactive.
func (s *Signer) Revoke(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.opaque, token)
}

func (s *Signer) claims(aud, subject, scope string, groups []string) map[string]any {
	now := time.Now().Unix()
	return map[string]any{
		"iss": s.URL, "aud": aud, "sub": subject, "client_id": "client-1", "scope": scope, "groups": groups, "name": "The " + subject,
		"exp": now + 600, "iat": now, "jti": rand.Text(),
	}
}

func (s *Signer) header(typ string) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return map[string]any{"alg": "RS256", "typ": typ, "kid": fmt.Sprintf("rs-%d", s.kid)}
}

// Sign signs a draft as its header says: RS256, ES256, EdDSA, HS256 or none.
func (s *Signer) Sign(t testing.TB, d *Draft) string {
	t.Helper()
	encode := func(raw []byte, v map[string]any) string {
		if raw == nil {
			var err error
			if raw, err = json.Marshal(v); err != nil {
				t.Fatal(err)
			}
		}
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	input := encode(d.RawHeader, d.Header) + "." + encode(d.RawClaims, d.Claims)
	sig, err := s.signature(d, []byte(input))
	if err != nil {
		t.Fatal(err)
	}
	return input + "." + base64.RawURLEncoding.EncodeToString(sig)
}

func (s *Signer) signature(d *Draft, input []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := sha256.Sum256(input)
	switch d.Header["alg"] {
	case "ES256":
		r, v, err := ecdsa.Sign(rand.Reader, s.ec, sum[:])
		if err != nil {
			return nil, err
		}
		out := make([]byte, 64)
		r.FillBytes(out[:32])
		v.FillBytes(out[32:])
		return out, nil
	case "EdDSA":
		return ed25519.Sign(s.ed, input), nil
	case "HS256":
		key, _ := d.Key.([]byte)
		mac := hmac.New(sha256.New, key)
		mac.Write(input)
		return mac.Sum(nil), nil
	case "none":
		return nil, nil
	}
	key, ok := d.Key.(*rsa.PrivateKey)
	if !ok {
		key = s.rsa
	}
	return rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
}

func (s *Signer) discovery(w http.ResponseWriter, _ *http.Request) {
	doc := map[string]any{
		"issuer": s.URL, "jwks_uri": s.URL + "/keys", "introspection_endpoint": s.URL + "/introspect",
		"authorization_endpoint": s.URL + "/auth", "token_endpoint": s.URL + "/token", "code_challenge_methods_supported": []string{"S256"},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, v := range s.meta {
		if doc[name] = v; v == nil {
			delete(doc, name)
		}
	}
	answer(w, doc)
}

func (s *Signer) keys(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.kid
	answer(w, map[string]any{"keys": []any{
		map[string]any{"kty": "oct", "kid": "secret", "k": "AAAA"}, // left out, like other kinds that are not understood
		map[string]any{"kty": "XYZ", "kid": "odd"},
		jose.JSONWebKey{Key: &s.rsa.PublicKey, KeyID: fmt.Sprintf("rs-%d", n), Use: "sig"},
		jose.JSONWebKey{Key: &s.ec.PublicKey, KeyID: fmt.Sprintf("es-%d", n), Algorithm: "ES256"},
		jose.JSONWebKey{Key: s.ed.Public(), KeyID: fmt.Sprintf("ed-%d", n)},
	}})
}

func (s *Signer) introspect(w http.ResponseWriter, r *http.Request) {
	id, secret, _ := r.BasicAuth()
	if id != "telltale%3A+server" || secret != "s3cret%2Bof%3Athe%2Fserver%25" { // form-urlencoded first: RFC 6749, 2.3.1
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	claims, ok := s.opaque[r.PostFormValue("token")]
	if !ok {
		answer(w, map[string]any{"active": false})
		return
	}
	answer(w, maps.Clone(claims))
}

func answer(w http.ResponseWriter, doc any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(doc) // the client is gone if this fails
}

package authtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// Tokens are what a client gets.
type Tokens struct {
	Access  string `json:"access_token"`
	Refresh string `json:"refresh_token"`
	ID      string `json:"id_token"`
	Scope   string `json:"scope"`
	Expires int    `json:"expires_in"` // seconds
}

// Token signs an account in and returns an access token: the authorization
// code flow with PKCE, walked as a browser does. scope is a list with spaces;
// an empty client is CLI. Without a resource the token opens nothing.
func (p *Provider) Token(t testing.TB, account, client, scope, resource string) string {
	t.Helper()
	return p.Tokens(t, account, client, scope, resource).Access
}

// Tokens is Token with all that came with it.
func (p *Provider) Tokens(t testing.TB, account, client, scope, resource string) Tokens {
	t.Helper()
	if client == "" {
		client = CLI
	}
	verifier, state := rand.Text()+rand.Text(), rand.Text()
	sum := sha256.Sum256([]byte(verifier))
	redirect := p.redirect(client, resource)
	q := url.Values{
		"client_id": {client}, "redirect_uri": {redirect}, "response_type": {"code"}, "scope": {scope}, "state": {state},
		"code_challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}, "code_challenge_method": {"S256"},
	}
	form := url.Values{"grant_type": {"authorization_code"}, "client_id": {client}, "redirect_uri": {redirect}, "code_verifier": {verifier}}
	if resource != "" {
		q.Set("resource", resource)
		form.Set("resource", resource)
	}
	back := p.SignIn(t, account, p.issuer+"/auth?"+q.Encode()).Query()
	if back.Get("state") != state || back.Get("iss") != p.issuer || back.Get("code") == "" {
		t.Fatalf("sign-in of %s for %s: %s: %s", account, resource, back.Get("error"), back.Get("error_description"))
	}
	form.Set("code", back.Get("code"))
	return p.token(t, form, "", "")
}

// Refresh spends a refresh token; the answer holds the next one.
func (p *Provider) Refresh(t testing.TB, client, refresh string) Tokens {
	t.Helper()
	return p.token(t, url.Values{"grant_type": {"refresh_token"}, "client_id": {client}, "refresh_token": {refresh}}, "", "")
}

// ClientCredentials gets an access token for a client itself: Robot.
func (p *Provider) ClientCredentials(t testing.TB, client, scope, resource string) string {
	t.Helper()
	return p.token(t, url.Values{"grant_type": {"client_credentials"}, "scope": {scope}, "resource": {resource}}, client, RobotSecret).Access
}

// Revoke withdraws a client's opaque access token or refresh token. JWTs end
// only by their expiry.
func (p *Provider) Revoke(t testing.TB, client, token string) {
	t.Helper()
	resp, body := p.post(t, "/token/revocation", url.Values{"client_id": {client}, "token": {token}}, "", "")
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("revoke: %s %s", resp.Status, body)
	}
}

// Register registers a client dynamically and returns its id. metadata needs
// redirect_uris, of which Token uses the first.
func (p *Provider) Register(t testing.TB, metadata map[string]any) string {
	t.Helper()
	text, err := json.Marshal(metadata)
	if err != nil {
		t.Fatal(err)
	}
	resp, body := p.send(t, http.MethodPost, "/reg", "application/json", text, "", "")
	var made struct {
		ID           string   `json:"client_id"`
		RedirectURIs []string `json:"redirect_uris"`
	}
	if resp.StatusCode != http.StatusCreated || json.Unmarshal(body, &made) != nil || len(made.RedirectURIs) == 0 {
		t.Fatalf("register: %s %s", resp.Status, body)
	}
	p.redirects[made.ID] = made.RedirectURIs[0]
	return made.ID
}

// SignIn opens an authorization URL in a new browser, presses the account's
// button and then Allow, and returns where the provider sends the browser
// back to: the client's redirect with `code`, or with `error`.
func (p *Provider) SignIn(t testing.TB, account, authorizeURL string) *url.URL {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	home, err := url.Parse(p.issuer)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Timeout: deadline, CheckRedirect: func(req *http.Request, _ []*http.Request) error {
		if req.URL.Host != home.Host {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	resp, page := visit(t, browser, http.MethodGet, authorizeURL, nil)
	for _, button := range []struct{ name, value string }{{"account", account}, {"decision", "allow"}} {
		if away(resp) {
			break
		}
		action := formAction(page, button.name, button.value)
		if action == "" {
			t.Fatalf("%s has no button %s=%s: %s\n%s", resp.Request.URL, button.name, button.value, resp.Status, page)
		}
		resp, page = visit(t, browser, http.MethodPost, p.issuer+action, url.Values{button.name: {button.value}})
	}
	to, err := resp.Location()
	if err != nil {
		t.Fatalf("the sign-in of %s ends at %s: %s\n%s", account, resp.Request.URL, resp.Status, page)
	}
	return to
}

func away(resp *http.Response) bool { return resp.StatusCode/100 == 3 }

var (
	formPattern   = regexp.MustCompile(`(?s)<form method="post" action="([^"]+)".*?</form>`)
	buttonPattern = regexp.MustCompile(`<button[^>]* name="([^"]+)" value="([^"]+)"`)
)

// formAction finds the form that has the button.
func formAction(page, name, value string) string {
	for _, form := range formPattern.FindAllStringSubmatch(page, -1) {
		for _, b := range buttonPattern.FindAllStringSubmatch(form[0], -1) {
			if b[1] == name && b[2] == value {
				return html.UnescapeString(form[1])
			}
		}
	}
	return ""
}

func visit(t testing.TB, browser *http.Client, method, to string, form url.Values) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, to, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html")
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := browser.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(page)
}

func (p *Provider) redirect(client, resource string) string {
	switch client {
	case CLI:
		return "http://127.0.0.1:1/callback"
	case Dashboard:
		tenant, _, _ := strings.Cut(strings.TrimPrefix(resource, p.baseURL+"/t/"), "/")
		return p.baseURL + "/t/" + tenant + "/api/v1/session/callback"
	default:
		return p.redirects[client]
	}
}

func (p *Provider) token(t testing.TB, form url.Values, client, secret string) (got Tokens) {
	t.Helper()
	resp, body := p.post(t, "/token", form, client, secret)
	if resp.StatusCode != http.StatusOK || json.Unmarshal(body, &got) != nil {
		t.Fatalf("token: %s %s", resp.Status, body)
	}
	return got
}

func (p *Provider) post(t testing.TB, path string, form url.Values, client, secret string) (*http.Response, []byte) {
	t.Helper()
	return p.send(t, http.MethodPost, path, "application/x-www-form-urlencoded", []byte(form.Encode()), client, secret)
}

func (p *Provider) send(t testing.TB, method, path, contentType string, body []byte, client, secret string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, p.issuer+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	if client != "" {
		req.SetBasicAuth(url.QueryEscape(client), url.QueryEscape(secret))
	}
	resp, err := (&http.Client{Timeout: deadline}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return resp, text
}

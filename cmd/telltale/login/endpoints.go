package login

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Ways to send a client secret.
const (
	basic = "client_secret_basic"
	post  = "client_secret_post"
)

// ErrEnded is a login that the provider no longer renews.
var ErrEnded = errors.New("the login has ended")

// Endpoints calls a provider's token and revocation endpoints. Client must not
// follow redirects.
type Endpoints struct {
	Client    *http.Client
	UserAgent string
}

// tokenAnswer is RFC 6749, section 5.
type tokenAnswer struct {
	Access      string  `json:"access_token"`
	Refresh     string  `json:"refresh_token"`
	Kind        string  `json:"token_type"`
	ExpiresIn   float64 `json:"expires_in"`
	Scope       *string `json:"scope"`
	Code        string  `json:"error"`
	Description string  `json:"error_description"`
}

// exchange turns the code into tokens.
func (e Endpoints) exchange(ctx context.Context, in *Login, code, redirect, verifier string) error {
	a, err := e.token(ctx, in, url.Values{"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {redirect}, "code_verifier": {verifier}})
	if err != nil {
		return err
	}
	if a.Code != "" {
		return wrong(nextFor(a.Code), "the identity provider gives no token: %s", a.words())
	}
	return in.take(a)
}

// renew gets a new access token, and usually a new refresh token, which makes
// the old one worthless. errors.Is(err, ErrEnded) when the provider is done
// with this login.
func (e Endpoints) renew(ctx context.Context, in *Login) error {
	a, err := e.token(ctx, in, url.Values{"grant_type": {"refresh_token"}, "refresh_token": {in.RefreshToken}})
	switch {
	case err != nil:
		return err
	case a.Code == "invalid_grant" || a.Code == "invalid_client" || a.Code == "unauthorized_client":
		return ErrEnded
	case a.Code != "":
		return wrong("sign in again with telltale login", "the identity provider renews no token: %s", a.words())
	}
	return in.take(a)
}

func (a tokenAnswer) words() string {
	return printable(strings.TrimRight(a.Code+": "+a.Description, ": "))
}

func (in *Login) take(a tokenAnswer) error {
	if a.Access == "" || !strings.EqualFold(a.Kind, "bearer") {
		return wrong("tell the administrator of the identity provider", "%s gives no bearer token (token_type %q)", in.TokenEndpoint, printable(a.Kind))
	}
	if strings.ContainsFunc(a.Access, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return wrong("tell the administrator of the identity provider", "%s gives a token with characters that no header can carry", in.TokenEndpoint)
	}
	in.AccessToken, in.Obtained, in.Expires = a.Access, time.Now().UTC().Truncate(time.Second), time.Time{}
	if a.ExpiresIn > 0 && a.ExpiresIn < 10*365*24*3600 {
		in.Expires = time.Now().UTC().Add(time.Duration(a.ExpiresIn * float64(time.Second))).Truncate(time.Second)
	}
	if a.Refresh != "" {
		in.RefreshToken = a.Refresh
	}
	if a.Scope != nil {
		in.Scope = *a.Scope
	}
	return nil
}

// Revoke tells the provider to forget the tokens (RFC 7009). It reports
// whether the provider offers that.
func (e Endpoints) Revoke(ctx context.Context, in *Login) (offered bool, err error) {
	if in.RevocationEndpoint == "" {
		return false, nil
	}
	token, hint := in.RefreshToken, "refresh_token"
	if token == "" {
		token, hint = in.AccessToken, "access_token"
	}
	res, err := e.post(ctx, in, in.RevocationEndpoint, url.Values{"token": {token}, "token_type_hint": {hint}})
	if err != nil {
		return true, err
	}
	drain(res)
	if res.StatusCode != http.StatusOK {
		return true, wrong("", "%s answers %d", in.RevocationEndpoint, res.StatusCode)
	}
	return true, nil
}

func (e Endpoints) token(ctx context.Context, in *Login, form url.Values) (tokenAnswer, error) {
	var a tokenAnswer
	if !in.NoResource {
		form.Set("resource", in.Resource)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	res, err := e.post(ctx, in, in.TokenEndpoint, form)
	if err != nil {
		return a, err
	}
	defer drain(res)
	err = readJSON(res.Body, &a)
	ok := res.StatusCode == http.StatusOK
	switch {
	case err != nil || !ok && a.Code == "":
		return a, wrong("try again later, and tell the administrator of the identity provider", "%s answers %d and nothing that is understood", in.TokenEndpoint, res.StatusCode)
	case !ok && res.StatusCode >= 500:
		return a, wrong("try again later", "%s answers %d: %s", in.TokenEndpoint, res.StatusCode, a.words())
	}
	return a, nil
}

// post authenticates the client as it was registered: most are public and send
// their id alone.
func (e Endpoints) post(ctx context.Context, in *Login, to string, form url.Values) (*http.Response, error) {
	if in.ClientSecret == "" || in.ClientAuth != basic {
		form.Set("client_id", in.ClientID)
	}
	if in.ClientSecret != "" && in.ClientAuth == post {
		form.Set("client_secret", in.ClientSecret)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	if in.ClientSecret != "" && in.ClientAuth == basic {
		req.SetBasicAuth(url.QueryEscape(in.ClientID), url.QueryEscape(in.ClientSecret))
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", e.UserAgent)
	res, err := e.Client.Do(req)
	if err != nil {
		return nil, &Unreachable{to, err}
	}
	return res, nil
}

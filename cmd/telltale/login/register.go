package login

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
)

// client is who this program is at an identity provider.
type client struct {
	ID, Secret string
	Auth       string // token_endpoint_auth_method; empty is "none"
}

// client decides under which id to sign in: the one that was asked for, else
// one that the provider registers now (RFC 7591), else DefaultClient.
func (f *Flow) client(ctx context.Context, p provider, redirect string) (client, error) {
	switch {
	case strings.HasPrefix(f.ClientID, "https://") && !p.ByURL:
		return client{}, wrong("name a client id that the provider registered", "the identity provider %s takes no URL as a client id", p.Issuer)
	case f.ClientID != "":
		return client{ID: f.ClientID}, nil
	case p.Registration == "":
		return client{ID: DefaultClient}, nil
	}
	c, refusal, err := f.register(ctx, p, redirect)
	if err == nil && refusal != "" {
		f.Say("%s registers no client of itself (%s); trying the client id %s", p.Issuer, refusal, DefaultClient)
		return client{ID: DefaultClient}, nil
	}
	return c, err
}

// registration is the request of RFC 7591, section 2.
type registration struct {
	Name      string   `json:"client_name"`
	Kind      string   `json:"application_type"`
	Redirects []string `json:"redirect_uris"`
	Grants    []string `json:"grant_types"`
	Responses []string `json:"response_types"`
	Auth      string   `json:"token_endpoint_auth_method"`
}

// register asks for a public native client with this one redirect. A provider
// that advertises registration and then refuses is common; its refusal is no
// error.
func (f *Flow) register(ctx context.Context, p provider, redirect string) (c client, refusal string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	body, err := json.Marshal(registration{clientName, "native", []string{redirect}, []string{"authorization_code", "refresh_token"}, []string{"code"}, "none"})
	if err != nil {
		return c, "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.Registration, bytes.NewReader(body))
	if err != nil {
		return c, "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", f.UserAgent)
	res, err := f.Client.Do(req)
	if err != nil {
		return c, "", &Unreachable{p.Registration, err}
	}
	defer drain(res)
	var answer struct {
		ID          string `json:"client_id"`
		Secret      string `json:"client_secret"`
		Auth        string `json:"token_endpoint_auth_method"`
		Code        string `json:"error"`
		Description string `json:"error_description"`
	}
	err = readJSON(res.Body, &answer)
	if res.StatusCode != http.StatusCreated && res.StatusCode != http.StatusOK {
		return c, orElse(printable(strings.TrimSpace(answer.Code+" "+answer.Description)), res.Status), nil
	}
	if err != nil || answer.ID == "" {
		return c, "", wrong("name one with --client-id", "%s registered a client without an id", p.Registration)
	}
	c = client{ID: answer.ID, Auth: answer.Auth}
	if answer.Auth != "none" {
		c.Secret = answer.Secret
	}
	if c.Secret != "" && c.Auth == "" {
		c.Auth = basic // the default of RFC 7591
	}
	return c, "", nil
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// printable keeps words of a provider from steering the terminal, and short.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x200b && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if r := []rune(s); len(r) > 300 {
		s = string(r[:300]) + "…"
	}
	return s
}

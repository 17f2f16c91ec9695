package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/cmd/telltale/login"
)

const loginHelp = `Opens the tenant's identity provider in a browser and waits up to 5 minutes for it to
come back to a port of this machine. The login is kept for this URL in the user's
configuration directory, readable for that user alone, and every command uses it when
no token is given. It is renewed by itself for as long as the provider allows.

  --scopes S       what to ask for, instead of what the server asks for: such as
                   "telltale:read telltale:diagnose", or diagnose,act for short
                   (a plain word that is none of Telltale's or OpenID's is refused here)
  --client-id ID   the client that the provider's administrator registered; else the
                   provider registers one, and where it registers none it is telltale-cli
  --issuer URL     which identity provider, where the tenant has several
  --port N         the port that the browser comes back to; a free one unless given
  --no-browser     open no browser, only print the address
  --assume-pkce    the provider supports PKCE although it does not say so (Entra ID)
  --no-resource    the provider refuses the resource parameter (Entra ID)

The program for the browser is xdg-open, or what BROWSER names. On a machine without a
screen use --no-browser --port N, forward the port (ssh -L N:127.0.0.1:N) and open the
address where the screen is.
`

const logoutHelp = `The tokens are revoked where the provider offers that, and the file is removed in any
case.
`

// scopeWords reads scopes that are parted by commas or spaces; the seven of
// Telltale may be written short.
func scopeWords(s string) []string {
	var out []string
	for word := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		switch word {
		case "openid", "profile", "email", "address", "phone", "groups", "roles":
		default:
			if short(word) {
				word = "telltale:" + word
			}
		}
		out = append(out, word)
	}
	return out
}

// ours are the scopes of Telltale, short.
func ours() []string {
	return []string{"read", "payloads", "diagnose", "act", "approve", "maintain", "admin"}
}

// short reports a word that can only be one of ours, perhaps mistyped; a
// provider's own scopes have more than letters in them.
func short(word string) bool {
	return !strings.ContainsFunc(word, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-' })
}

// mistyped says which of the scopes are meant for Telltale and none of its.
func mistyped(scopes []string) string {
	for _, s := range scopes {
		if word, ok := strings.CutPrefix(s, "telltale:"); ok && !slices.Contains(ours(), word) {
			return fmt.Sprintf("--scopes: no scope %q; Telltale's are %s", word, strings.Join(ours(), ", "))
		}
	}
	return ""
}

func signIn(ctx context.Context, e env, f *flags) error {
	if len(f.rest) > 0 {
		return usageError{fmt.Sprintf("login takes no argument %q", f.rest[0])}
	}
	var wrong []string
	ep, msg := addressOf(e, f)
	if msg != "" {
		wrong = append(wrong, msg)
	}
	if msg := mistyped(f.scopes); msg != "" {
		wrong = append(wrong, msg)
	}
	port := 0
	if f.port != "" {
		var err error
		if port, err = strconv.Atoi(f.port); err != nil || port < 1 || port > 65535 {
			wrong = append(wrong, fmt.Sprintf("--port %q is no port, which is 1 to 65535", f.port))
		}
	}
	if len(wrong) > 0 {
		return usageError{strings.Join(wrong, "; ")}
	}
	w := newWire()
	defer w.close()
	store, err := storeOf(w)
	if err != nil {
		return err
	}
	say := func(format string, args ...any) { fmt.Fprintf(e.err, "telltale login: "+format+"\n", args...) }
	flow := &login.Flow{
		URL: ep.url, Client: httpClient(w), UserAgent: userAgent(), ClientID: f.clientID, Issuer: f.issuer, Scopes: f.scopes,
		Port: port, AssumePKCE: f.assumePKCE, NoResource: f.noResource, Say: say,
	}
	if !f.noBrowser {
		flow.Browse = func(url string) {
			if err := browse(ctx, e, url); err != nil {
				say("no browser: %v; open the address yourself", err)
			}
		}
	}
	in, err := flow.Run(ctx)
	if err != nil {
		return err
	}
	// A former login of this URL is forgotten and not revoked: providers end
	// the whole grant with one of its tokens, and the new one may share it.
	if err := store.Put(ctx, in); err != nil {
		return err
	}
	say("signed in at %s for %s; kept in %s", in.Issuer, orElse(in.Scope, "what it grants"), store.Path(ep.resource))
	if missing := lacking(f.scopes, in.Scope); len(missing) > 0 {
		say("the provider did not grant %s", strings.Join(missing, " "))
	}
	switch {
	case in.RefreshToken != "":
	case in.Expires.IsZero():
		say("the provider gave nothing to renew it with; sign in again when it ends")
	default:
		say("the provider gave nothing to renew it with; it ends at %s", in.Expires.Local().Format("15:04"))
	}
	return tryLogin(ctx, ep, w, store, f.scopes, say)
}

// tryLogin uses the new login once: a token that the server does not take, or
// that may do nothing, is better known now.
func tryLogin(ctx context.Context, ep endpoint, w *wire, store *login.Store, asked []string, say func(string, ...any)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ep.cred = signedIn{store, ep}
	s, err := connect(ctx, ep, w, "")
	var refused *statusError
	if errors.As(err, &refused) && refused.reason == "credential_no_role" {
		say("you are signed in, but your account has no role in this tenant, so no command will work until an administrator gives it one; signing in again, or for other scopes, changes nothing")
	}
	if err != nil {
		return err
	}
	defer s.Close()
	if held := inForce(ctx, ep, w); len(held) > 0 {
		say("in force there: %s", strings.Join(held, " "))
		if missing := missingOurs(asked, held); len(missing) > 0 {
			say("your role there, or the token, leaves out %s", strings.Join(missing, " "))
		}
	}
	n, err := s.countTools(ctx)
	if err != nil {
		return err
	}
	say("%s lets you use %d tools; telltale tools lists them", ep.resource, n)
	return nil
}

// inForce asks the server which scopes it lets the login use, those that its
// holder's role left over; nil when it does not say.
func inForce(ctx context.Context, ep endpoint, w *wire) []string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(ep.resource, "/mcp")+"/api/v1/session", nil)
	if err != nil {
		return nil
	}
	res, err := ep.send(req, w)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	var me struct {
		Scopes []string `json:"scopes"`
	}
	if res.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(res.Body, maxErrorBody)).Decode(&me) != nil {
		return nil
	}
	return me.Scopes
}

// missingOurs are the scopes of Telltale that were asked for and are not held.
func missingOurs(asked, held []string) []string {
	var out []string
	for _, s := range asked {
		if strings.HasPrefix(s, "telltale:") && !slices.Contains(held, s) {
			out = append(out, s)
		}
	}
	return out
}

// lacking are the wanted scopes that were not granted; nobody knows when the
// provider did not say.
func lacking(want []string, granted string) []string {
	have := map[string]bool{"offline_access": true} // shows by the refresh token
	for word := range strings.FieldsSeq(granted) {
		have[word] = true
	}
	var out []string
	for _, s := range want {
		if !have[s] {
			out = append(out, s)
		}
	}
	return out
}

func signOut(ctx context.Context, e env, f *flags) error {
	if len(f.rest) > 0 {
		return usageError{fmt.Sprintf("logout takes no argument %q", f.rest[0])}
	}
	ep, msg := addressOf(e, f)
	if msg != "" {
		return usageError{msg}
	}
	w := newWire()
	defer w.close()
	store, err := storeOf(w)
	if err != nil {
		return err
	}
	in, err := store.Remove(ctx, ep.resource)
	if errors.Is(err, login.ErrNone) {
		fmt.Fprintf(e.err, "telltale logout: nobody is signed in at %s\n", ep.resource)
		return nil
	}
	if err != nil {
		if in.AccessToken == "" {
			fmt.Fprintf(e.err, "telltale logout: the file is removed, and nothing was revoked: %v\n", err)
			return errReported
		}
		return err
	}
	offered, err := store.Ends.Revoke(ctx, &in)
	switch {
	case err != nil:
		return fmt.Errorf("the login is removed here, but %s did not revoke it: %w; it ends by itself, or its administrator ends it", in.Issuer, err)
	case !offered:
		fmt.Fprintf(e.err, "telltale logout: the login is removed; %s offers no revocation, so its tokens end by themselves\n", in.Issuer)
	default:
		fmt.Fprintf(e.err, "telltale logout: the login at %s is revoked and removed\n", in.Issuer)
	}
	return nil
}

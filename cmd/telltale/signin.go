package main

import (
	"context"
	"errors"
	"fmt"
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
		case "read", "payloads", "diagnose", "act", "approve", "maintain", "admin":
			word = "telltale:" + word
		}
		out = append(out, word)
	}
	return out
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
	return tryLogin(ctx, ep, w, store, say)
}

// tryLogin uses the new login once: a token that the server does not take, or
// that may do nothing, is better known now.
func tryLogin(ctx context.Context, ep endpoint, w *wire, store *login.Store, say func(string, ...any)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ep.cred = signedIn{store, ep}
	s, err := connect(ctx, ep, w, "")
	if err != nil {
		return err
	}
	defer s.Close()
	n, err := s.countTools(ctx)
	if err != nil {
		return err
	}
	say("%s lets you use %d tools; telltale tools lists them", ep.resource, n)
	return nil
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

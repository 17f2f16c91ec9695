package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/cmd/telltale/login"
)

// credential gives each request its token.
type credential interface {
	// token is the one to send now.
	token(context.Context) (string, error)
	// instead is another one after the server refused a token; "" when there is
	// none.
	instead(ctx context.Context, refused string) (string, error)
	// words describe it for people, without giving it away.
	words() string
	// next is what to do when the server refuses it; want are the scopes that
	// it asked for, if it lacks one.
	next(ep endpoint, want string) string
}

// credentialOf picks the credential of the settings: --token-file, then
// --token-env, then TELLTALE_TOKEN, then a stored login.
func credentialOf(e env, f *flags, ep endpoint, w *wire) (credential, error) {
	if f.tokenFile != "" {
		t := fileToken(f.tokenFile)
		_, err := t.token(context.Background())
		return t, err
	}
	name := f.tokenEnv
	if name == "" {
		name = "TELLTALE_TOKEN"
	}
	t, err := checkToken(e.get(name))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case t != "":
		return envToken{name, t}, nil
	case f.tokenEnv != "":
		return nil, fmt.Errorf("the variable %s holds no token", name)
	case ep.url == "": // what is wrong with it is said already
		return nil, errors.New("no token: set TELLTALE_TOKEN, name a --token-file, or sign in with telltale login")
	}
	s, err := storeOf(w)
	if err != nil {
		return nil, err
	}
	return signedIn{s, ep}, nil
}

func checkToken(raw string) (string, error) {
	t := strings.TrimSpace(raw)
	if strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New("the token holds characters that no token has; copy it again")
	}
	return t, nil
}

// envToken is an operator token from the environment.
type envToken struct{ name, value string }

func (t envToken) token(context.Context) (string, error)           { return t.value, nil }
func (t envToken) instead(context.Context, string) (string, error) { return "", nil }
func (t envToken) words() string                                   { return "the token in " + t.name }
func (t envToken) next(_ endpoint, want string) string             { return nextForToken(t.name, want) }

func nextForToken(where, want string) string {
	if want != "" {
		return "use a token with the scopes " + want
	}
	return "check " + where + ", and that it belongs to the tenant in the URL"
}

// fileToken is an operator token in a file, which may be replaced while a
// bridge runs.
type fileToken string

// maxToken bounds what is read of a token file.
const maxToken = 64 << 10

func (t fileToken) token(context.Context) (string, error) {
	f, err := os.Open(string(t))
	if err != nil {
		return "", fmt.Errorf("cannot read the token file: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return "", fmt.Errorf("cannot read the token file: %w", err)
	}
	s, err := checkToken(string(raw))
	if err == nil && s == "" {
		err = fmt.Errorf("the token file %s is empty", string(t))
	}
	return s, err
}

func (t fileToken) instead(ctx context.Context, refused string) (string, error) {
	s, err := t.token(ctx)
	if err != nil || s == refused {
		return "", nil // the refusal says more than the file
	}
	return s, nil
}

func (t fileToken) words() string { return "the token in " + string(t) }

func (t fileToken) next(_ endpoint, want string) string { return nextForToken(string(t), want) }

// signedIn is a stored login.
type signedIn struct {
	store *login.Store
	ep    endpoint
}

// storeOf is where logins are kept.
func storeOf(w *wire) (*login.Store, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return nil, fmt.Errorf("no token in TELLTALE_TOKEN, and no place where a login could be: %w", err)
	}
	return &login.Store{Dir: filepath.Join(dir, "telltale", "logins"), Ends: login.Endpoints{Client: httpClient(w), UserAgent: userAgent()}}, nil
}

func (s signedIn) token(ctx context.Context) (string, error) {
	in, err := s.store.Fresh(ctx, s.ep.resource)
	if errors.Is(err, login.ErrNone) {
		return "", usageError{"no token: set TELLTALE_TOKEN, name a --token-file, or sign in: telltale login --url " + s.ep.resource}
	}
	return in.AccessToken, err
}

func (s signedIn) instead(ctx context.Context, refused string) (string, error) {
	in, err := s.store.Renew(ctx, s.ep.resource, refused)
	if err != nil {
		return "", err
	}
	return in.AccessToken, nil
}

func (s signedIn) words() string {
	in, err := s.store.Get(s.ep.resource)
	if err != nil {
		return "no login"
	}
	out := "the login at " + in.Issuer
	if in.Scope != "" {
		out += " for " + in.Scope
	}
	if !in.Expires.IsZero() {
		out += ", token good until " + in.Expires.Local().Format(time.DateTime)
	}
	if in.RefreshToken == "" {
		out += ", not renewed"
	}
	return out
}

func (s signedIn) next(ep endpoint, want string) string {
	out := "telltale login --url " + quoted(ep.resource)
	if want != "" {
		return "sign in for these scopes: " + out + " --scopes " + quoted(want)
	}
	return "sign in again: " + out
}

// quoted makes one word of a shell of s.
func quoted(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+,=", r))
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

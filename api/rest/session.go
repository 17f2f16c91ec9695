package rest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"

	"github.com/telltale-dev/telltale/auth"
)

// caller is auth.SessionView without what only a cookie's session has.
type caller struct {
	Tenant    string   `json:"tenant"`
	Principal string   `json:"principal"`
	Name      string   `json:"name"`
	Scopes    []string `json:"scopes"`
}

// whoAmI answers the caller of a bearer itself and leaves cookies to auth.
func (s *Server) whoAmI(w http.ResponseWriter, r *http.Request) {
	if err := parseParams(r.URL.RawQuery).done(); err != nil {
		s.fail(w, r, err)
		return
	}
	if len(r.Header.Values("Authorization")) == 0 {
		w.Header().Add("Vary", "Authorization")
		if r.Method == http.MethodHead { // the connection leaves the body out
			r = r.Clone(r.Context())
			r.Method = http.MethodGet
		}
		s.session().ServeHTTP(w, r)
		return
	}
	s.cfg.Guards.Gate.Bearer(s.noted(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sc, _ := auth.ScopeFrom(r.Context())
		s.write(w, r, http.StatusOK, caller{sc.Slug, sc.Principal.ID, sc.Principal.Name, sc.Granted.Effective().Words()})
	}))).ServeHTTP(w, r)
}

type signInRequest struct {
	Token string `json:"token"`
}

// signIn holds the body to this API's strictness before auth reads it.
func (s *Server) signIn(w http.ResponseWriter, r *http.Request) {
	if err := parseParams(r.URL.RawQuery).done(); err != nil {
		s.fail(w, r, err)
		return
	}
	var in signInRequest
	if err := s.decode(w, r, &in); err != nil {
		s.fail(w, r, err)
		return
	}
	if in.Token == "" {
		s.fail(w, r, badBody("token", "the operator token is missing"))
		return
	}
	b, err := json.Marshal(in)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	s.session().ServeHTTP(w, r)
}

func (s *Server) signOut(w http.ResponseWriter, r *http.Request) {
	if err := parseParams(r.URL.RawQuery).done(); err != nil {
		s.fail(w, r, err)
		return
	}
	s.session().ServeHTTP(w, r)
}

func (s *Server) session() http.Handler {
	return s.cfg.Guards.Sessions.Handler(s.cfg.Guards.Challenger)
}

// The three steps of signing in at an identity provider are auth's; without
// one they answer like any address that is not there.

func (s *Server) signInProviders(w http.ResponseWriter, r *http.Request) {
	if err := parseParams(r.URL.RawQuery).done(); err != nil {
		s.fail(w, r, err)
		return
	}
	if s.cfg.Guards.SignIn == nil {
		s.write(w, r, http.StatusOK, map[string][]auth.Provider{"providers": {}})
		return
	}
	s.cfg.Guards.SignIn.Providers(w, r)
}

func (s *Server) signInBegin(w http.ResponseWriter, r *http.Request) {
	q := parseParams(r.URL.RawQuery)
	q.text("issuer")
	q.text("return")
	q.oneOf("again", "true", "false")
	if err := q.done(); err != nil {
		s.fail(w, r, err)
		return
	}
	if s.cfg.Guards.SignIn == nil {
		s.notFound(w, r)
		return
	}
	s.cfg.Guards.SignIn.Begin(w, r)
}

// signInCallback takes whatever parameters a provider adds to its answer.
func (s *Server) signInCallback(w http.ResponseWriter, r *http.Request) {
	if s.cfg.Guards.SignIn == nil {
		s.notFound(w, r)
		return
	}
	s.cfg.Guards.SignIn.Callback(w, r)
}

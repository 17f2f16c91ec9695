package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

const (
	// signInTime is how long a person may take at the identity provider.
	signInTime = 10 * time.Minute
	// signInUse separates what is sealed for a sign-in from all other seals.
	signInUse = "dashboard sign-in"
	maxReturn = 1024 // bytes of the page to return to
)

// Sealing hides what a browser carries for us; a Sealer does.
type Sealing interface {
	Seal(plain []byte, use string) []byte
	Open(sealed []byte, use string) ([]byte, error)
}

// SignIn signs people in to the dashboard at their tenant's identity provider:
// authorization code with PKCE (OAuth 2.1), state and nonce, and the answer's
// issuer (RFC 9207). What is under way travels sealed in the browser's own
// cookie, so that any replica can finish it. The tokens are looked at once and
// kept nowhere; the session holds their facts.
type SignIn struct {
	sessions   *Sessions
	oauth      *OAuth
	sealer     Sealing
	challenger *Challenger
}

// NewSignIn makes the handlers. The sessions must have been made WithPeople.
func NewSignIn(s *Sessions, o *OAuth, sealer Sealing, c *Challenger) *SignIn {
	return &SignIn{sessions: s, oauth: o, sealer: sealer, challenger: c}
}

// Provider is one identity provider that people of a tenant sign in at.
type Provider struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// underWay is what the browser carries, sealed, while a person signs in.
type underWay struct {
	Tenant   tenants.TenantID `json:"t"`
	Issuer   string           `json:"i"`
	State    string           `json:"s"`
	Nonce    string           `json:"n"`
	Verifier string           `json:"v"`
	Return   string           `json:"r"`
	Until    time.Time        `json:"u"`
}

// Providers lists where people of the tenant in the path can sign in: nowhere,
// for a tenant that does not exist.
func (s *SignIn) Providers(w http.ResponseWriter, r *http.Request) {
	list, _, err := s.providers(r)
	if err != nil {
		s.challenger.Refuse(w, r, r.PathValue("tenant"), err)
		return
	}
	out := []Provider{}
	for _, i := range list {
		out = append(out, Provider{ID: i.ID, Name: i.Name})
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(map[string][]Provider{"providers": out}) // the client is gone if this fails
}

func (s *SignIn) providers(r *http.Request) (list []tenants.Issuer, t tenants.Tenant, err error) {
	t, err = s.sessions.verifier.Tenant(r.Context(), r.PathValue("tenant"))
	if fault.Is(err, fault.NotFound) {
		return nil, t, nil
	}
	if err != nil {
		return nil, t, err
	}
	trust, err := s.oauth.Trust(r.Context(), t.ID)
	for _, i := range trust.Issuers {
		if i.DashboardClientID != "" {
			list = append(list, i)
		}
	}
	return list, t, err
}

// Begin sends the browser to the identity provider that the query names by its
// id, or to the first one. The query's return is the page to come back to; with
// again=true the provider asks who it is, even if it knows somebody.
func (s *SignIn) Begin(w http.ResponseWriter, r *http.Request) {
	if err := s.begin(w, r); err != nil {
		s.fail(w, r, err)
	}
}

func (s *SignIn) begin(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Cache-Control", "no-store")
	slug := r.PathValue("tenant")
	list, t, err := s.providers(r)
	if err != nil {
		return err
	}
	want := r.URL.Query().Get("issuer")
	for _, i := range list {
		if want != "" && i.ID != want {
			continue
		}
		ends, err := s.oauth.Endpoints(r.Context(), i)
		if err != nil {
			return err
		}
		flow := underWay{Tenant: t.ID, Issuer: i.ID, State: rand.Text(), Nonce: rand.Text(), Verifier: rand.Text() + rand.Text(), Return: pageOf(slug, r.URL.Query().Get("return")), Until: time.Now().Add(signInTime)}
		to, err := url.Parse(ends.Authorization)
		if err != nil {
			return unreachable(i.URL, "names an endpoint that cannot be read", err)
		}
		sum := sha256.Sum256([]byte(flow.Verifier))
		q := to.Query()
		for k, v := range map[string]string{
			"response_type": "code", "client_id": i.DashboardClientID, "redirect_uri": s.callback(slug),
			"scope": "openid profile " + tenants.EveryScope.String(), "state": flow.State, "nonce": flow.Nonce,
			"code_challenge": base64.RawURLEncoding.EncodeToString(sum[:]), "code_challenge_method": "S256",
		} {
			q.Set(k, v)
		}
		if i.Mode == tenants.AudienceResource {
			q.Set("resource", s.sessions.site.MCP(slug))
		}
		if r.URL.Query().Get("again") == "true" {
			q.Set("prompt", "login") // else a person without a role here would come back as the same one for ever
		}
		to.RawQuery = q.Encode()
		plain, err := json.Marshal(flow)
		if err != nil {
			return err
		}
		http.SetCookie(w, s.cookie(slug, base64.RawURLEncoding.EncodeToString(s.sealer.Seal(plain, signInUse)), int(signInTime.Seconds())))
		http.Redirect(w, r, to.String(), http.StatusSeeOther)
		return nil
	}
	return fault.New(fault.NotFound, "no_sign_in", "nobody can sign in here through an identity provider").Do("sign in with an operator token, or ask an administrator of this tenant")
}

// Callback takes the browser back from the identity provider and gives it a
// session.
func (s *SignIn) Callback(w http.ResponseWriter, r *http.Request) {
	if err := s.finish(w, r); err != nil {
		s.fail(w, r, err)
	}
}

func (s *SignIn) finish(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Cache-Control", "no-store")
	slug := r.PathValue("tenant")
	flow, err := s.underWay(r, slug)
	http.SetCookie(w, s.cookie(slug, "", -1)) // good for one answer
	if err != nil {
		return err
	}
	list, t, err := s.providers(r)
	if err != nil {
		return err
	}
	var issuer *tenants.Issuer
	for n := range list {
		if list[n].ID == flow.Issuer && t.ID == flow.Tenant {
			issuer = &list[n]
		}
	}
	if issuer == nil {
		return &Failure{Class: SignInOver, Expected: "the issuer that the sign-in began with", Received: "it is no longer there"}
	}
	ends, err := s.oauth.Endpoints(r.Context(), *issuer)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	if iss := q.Get("iss"); iss != "" && iss != issuer.URL || iss == "" && ends.IssInAnswer {
		return &Failure{Class: IssuerUnknown, Issuer: clean(iss, maxNoted), Expected: issuer.URL, Received: clean(iss, maxNoted)}
	}
	if why := q.Get("error"); why != "" || q.Get("code") == "" {
		return &Failure{Class: SignInRefused, Issuer: issuer.URL, Expected: "a code", Received: clean(why+" "+q.Get("error_description"), maxNoted)}
	}
	access, id, err := s.exchange(r, slug, *issuer, ends, flow, q.Get("code"))
	if err != nil {
		return err
	}
	if _, err := s.oauth.VerifyIDToken(r.Context(), *issuer, id, flow.Nonce); err != nil {
		return err
	}
	scope, facts, err := s.oauth.VerifyAccess(r.Context(), t, access, s.sessions.site.ClientAddr(r))
	if err != nil {
		return err
	}
	if facts.Issuer != issuer.ID {
		return &Failure{Class: IssuerUnknown, Issuer: facts.IssuerURL, Expected: issuer.URL, Received: facts.IssuerURL}
	}
	kept, err := json.Marshal(facts)
	if err != nil {
		return err
	}
	value, ses := newSession(t.ID)
	ses.Facts = kept
	if err := s.sessions.put(w, r, slug, value, ses); err != nil {
		return err
	}
	s.challenger.attempts.accepted(r, scope)
	http.Redirect(w, r, flow.Return, http.StatusSeeOther)
	return nil
}

// underWay reads what the browser carries and compares the state.
func (s *SignIn) underWay(r *http.Request, slug string) (flow underWay, err error) {
	over := &Failure{Class: SignInOver, Expected: "the sign-in that this browser began in the last " + signInTime.String()}
	if tenants.CheckSlug(slug) != nil {
		return flow, failed(NoToken)
	}
	found := r.CookiesNamed(s.cookieName(slug))
	if len(found) != 1 {
		over.Received = "none"
		return flow, over
	}
	sealed, err := base64.RawURLEncoding.DecodeString(found[0].Value)
	if err == nil {
		var plain []byte
		if plain, err = s.sealer.Open(sealed, signInUse); err == nil {
			err = json.Unmarshal(plain, &flow)
		}
	}
	state := r.URL.Query().Get("state")
	switch {
	case err != nil:
		over.Received = "one that cannot be read"
	case !time.Now().Before(flow.Until):
		over.Received = "an older one"
	case subtle.ConstantTimeCompare([]byte(state), []byte(flow.State)) != 1:
		over.Received = "another one (state)"
	default:
		return flow, nil
	}
	return underWay{}, over
}

// exchange turns the code into tokens, at the provider that gave it.
func (s *SignIn) exchange(r *http.Request, slug string, i tenants.Issuer, ends Endpoints, flow underWay, code string) (access, id string, err error) {
	form := url.Values{
		"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {s.callback(slug)},
		"client_id": {i.DashboardClientID}, "code_verifier": {flow.Verifier},
	}
	if i.Mode == tenants.AudienceResource {
		form.Set("resource", s.sessions.site.MCP(slug))
	}
	free := s.oauth.lanes.of("sign-in "+flow.Tenant.String()+i.ID, maxFirst) // one cookie can be sent with any number of codes
	select {
	case free <- struct{}{}:
		defer func() { <-free }()
	case <-r.Context().Done():
		return "", "", unreachable(i.URL, "is asked for too many sign-ins at once", r.Context().Err())
	}
	status, body, err := s.oauth.fetch.Post(r.Context(), ends.Token, form, "", "")
	if err != nil {
		return "", "", unreachable(i.URL, "does not answer at its token endpoint", err)
	}
	var got struct {
		Access string `json:"access_token"`
		Type   string `json:"token_type"`
		ID     string `json:"id_token"`
		Error  string `json:"error"`
		Why    string `json:"error_description"`
	}
	if err := json.Unmarshal(body, &got); err != nil || status != http.StatusOK || got.Access == "" || !strings.EqualFold(got.Type, "Bearer") || got.ID == "" {
		return "", "", &Failure{Class: SignInRefused, Issuer: i.URL, Expected: "a bearer token and an ID token for the code", Received: clean(http.StatusText(status)+" "+got.Error+" "+got.Why, maxNoted)}
	}
	return got.Access, got.ID, nil
}

// fail leads a person to the page that explains a reference id, after the
// attempt was noted there.
func (s *SignIn) fail(w http.ResponseWriter, r *http.Request, err error) {
	slug, ref := r.PathValue("tenant"), Reference(w)
	f, ok := errors.AsType[*Failure](err)
	if fault.Of(err).Reason == string(Unreachable) {
		f, ok = &Failure{Class: Unreachable, Expected: "an answer of the identity provider", Received: describe(err)}, true
	}
	if !ok || tenants.CheckSlug(slug) != nil {
		s.challenger.Refuse(w, r, slug, err)
		return
	}
	_ = s.sessions.verifier.count(f)
	s.challenger.log.Info("sign-in refused", "reference", ref, "tenant", slug, "class", f.Class, "issuer", f.Issuer, "from", s.sessions.site.ClientAddr(r))
	s.challenger.attempts.refused(r, slug, ref, f)
	http.Redirect(w, r, "/t/"+slug+"/connect?reference="+ref, http.StatusSeeOther)
}

func (s *SignIn) callback(slug string) string {
	return s.sessions.site.REST(slug) + "/session/callback"
}

// pageOf keeps the page to return to within the tenant's dashboard.
func pageOf(slug, page string) string {
	home := "/t/" + slug + "/ui/"
	u, err := url.Parse(page)
	if err != nil || len(page) > maxReturn || u.Host != "" || u.Scheme != "" || u.User != nil || !strings.HasPrefix(u.EscapedPath(), home) ||
		strings.Contains(u.Path, "..") || strings.ContainsAny(page, "\\\r\n") {
		return home
	}
	return page
}

func (s *SignIn) cookieName(slug string) string { return s.sessions.cookieName(slug) + "_signin" }

func (s *SignIn) cookie(slug, value string, age int) *http.Cookie {
	return &http.Cookie{
		Name: s.cookieName(slug), Value: value, Path: "/", MaxAge: age,
		Secure: s.sessions.site.secure, HttpOnly: true, SameSite: http.SameSiteLaxMode,
	}
}

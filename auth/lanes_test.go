package auth

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

// TestFloodOfOpaqueTokens: made-up tokens, about which the issuer answers
// slowly, hold up neither those who are in already nor another tenant of the
// same issuer.
func TestFloodOfOpaqueTokens(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	stuck, end := make(chan struct{}, 1000), make(chan struct{})
	answers := map[string]string{}
	for slug, aud := range map[string]string{"acme": acmeMCP, "globex": globexMCP} {
		answers["good-of-"+slug] = fmt.Sprintf(`{"active":true,"iss":%q,"sub":"s","aud":%q,"exp":%d,"scope":"telltale:read","groups":[%q]}`, r.signer.URL, aud, time.Now().Add(time.Hour).Unix(), slug+"-sre")
	}
	idp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if body, ok := answers[q.PostFormValue("token")]; ok {
			fmt.Fprint(w, body)
			return
		}
		stuck <- struct{}{}
		<-end
		fmt.Fprint(w, `{"active":false}`)
	}))
	t.Cleanup(idp.Close)
	for _, slug := range []string{"acme", "globex"} {
		r.issuer(r.tenants[slug], func(i *tenants.Issuer) { i.IntrospectionURL = idp.URL })
	}
	r.wantGood(t, "before", "acme", "good-of-acme", tenants.Read)
	r.oauth.opaque.ttl = 0 // each request asks again

	done := make(chan struct{})
	const flood = 4 * maxFirst
	for n := range flood {
		go func() {
			_, _ = r.verify(t, "acme", fmt.Sprintf("made-up-%d", n))
			done <- struct{}{}
		}()
	}
	for range maxFirst {
		<-stuck
	}
	r.wantGood(t, "one who is in", "acme", "good-of-acme", tenants.Read)
	r.wantGood(t, "one of the other tenant", "globex", "good-of-globex", tenants.Read)
	if len(stuck) > 0 {
		t.Errorf("%d more questions than may wait", len(stuck))
	}
	close(end)
	for range flood {
		<-done
	}
}

// TestFloodOfCodes: one sign-in under way is good for one answer of the browser,
// but the cookie that carries it can be sent any number of times, each with
// another code. The provider is not asked about all of them at once.
func TestFloodOfCodes(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	stuck, end := make(chan struct{}, 1000), make(chan struct{})
	idp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		stuck <- struct{}{}
		<-end
		w.WriteHeader(http.StatusBadRequest)
	}))
	t.Cleanup(idp.Close)
	r.signer.SetMetadata("authorization_endpoint", idp.URL+"/auth")
	r.signer.SetMetadata("token_endpoint", idp.URL+"/token")
	r.issuer(acme, func(i *tenants.Issuer) { i.DashboardClientID = "dash" })
	sealer, err := NewSealer(make([]byte, KeySize))
	if err != nil {
		t.Fatal(err)
	}
	signIn := NewSignIn(r.sessions, r.oauth, sealer, NewChallenger(r.site, r, r.oauth, slog.New(slog.DiscardHandler)))
	mux := http.NewServeMux()
	mux.HandleFunc("/t/{tenant}/login", signIn.Begin)
	mux.HandleFunc("/t/{tenant}/callback", signIn.Callback)
	begun := httptest.NewRecorder()
	mux.ServeHTTP(begun, httptest.NewRequest("GET", "/t/acme/login", nil))
	to, err := url.Parse(begun.Header().Get("Location"))
	if err != nil || to.Query().Get("state") == "" {
		t.Fatalf("%d %v", begun.Code, begun.Header())
	}
	const flood = 4 * maxFirst
	cookie := begun.Result().Cookies()[0] // once: a recorder is not for many at a time
	done := make(chan struct{})
	for n := range flood {
		go func() {
			q := httptest.NewRequest("GET", fmt.Sprintf("/t/acme/callback?state=%s&code=made-up-%d&iss=%s", to.Query().Get("state"), n, url.QueryEscape(r.signer.URL)), nil)
			q.AddCookie(cookie)
			mux.ServeHTTP(httptest.NewRecorder(), q)
			done <- struct{}{}
		}()
	}
	for range maxFirst {
		<-stuck
	}
	select { // those that wait would be here at once
	case <-stuck:
		t.Error("more questions than may wait")
	case <-time.After(100 * time.Millisecond):
	}
	close(end)
	for range flood {
		<-done
	}
}

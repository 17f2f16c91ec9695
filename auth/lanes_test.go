package auth

import (
	"fmt"
	"net/http"
	"net/http/httptest"
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

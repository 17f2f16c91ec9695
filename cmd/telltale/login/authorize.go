package login

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// request is one authorization request and what its answer is checked against.
type request struct {
	url      string
	state    string
	verifier string // PKCE, RFC 7636
	issuer   string
	issMust  bool // the provider says that it names itself in the answer
}

func newRequest(p provider, c client, redirect, resource string, scopes []string) request {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	q := request{state: rand.Text(), verifier: base64.RawURLEncoding.EncodeToString(secret), issuer: p.Issuer, issMust: p.SaysIssuer}
	sum := sha256.Sum256([]byte(q.verifier))
	v := url.Values{
		"response_type": {"code"}, "client_id": {c.ID}, "redirect_uri": {redirect}, "state": {q.state},
		"code_challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}, "code_challenge_method": {"S256"},
	}
	if resource != "" {
		v.Set("resource", resource)
	}
	if len(scopes) > 0 {
		v.Set("scope", strings.Join(scopes, " "))
	}
	sep := "?"
	if strings.Contains(p.Authorization, "?") {
		sep = "&"
	}
	q.url = p.Authorization + sep + v.Encode()
	return q
}

// code takes the code out of the provider's answer. ours is false when the
// answer belongs to no login of this program: it is not even an attempt.
func (q request) code(answer url.Values) (code string, ours bool, err error) {
	if answer.Get("state") != q.state || len(answer["state"]) != 1 {
		return "", false, nil
	}
	iss, named := answer.Get("iss"), answer.Has("iss")
	switch {
	case named && (iss != q.issuer || len(answer["iss"]) != 1): // RFC 9207: a mix-up of two providers
		return "", true, wrong("tell the administrator; the code was not used", "the answer comes from %q, not from %s", printable(iss), q.issuer)
	case q.issMust && !named:
		return "", true, wrong("tell the administrator; the code was not used", "the answer does not say that it comes from %s, which it promises", q.issuer)
	}
	if e := answer.Get("error"); e != "" {
		words := printable(e)
		if d := answer.Get("error_description"); d != "" {
			words += ": " + printable(d)
		}
		return "", true, wrong(nextFor(e), "the identity provider refused: %s", words)
	}
	if code = answer.Get("code"); code == "" || len(answer["code"]) != 1 {
		return "", true, wrong("tell the administrator of the identity provider", "the answer holds no code")
	}
	return code, true, nil
}

func nextFor(code string) string {
	switch code {
	case "access_denied":
		return "sign in again and consent, or ask the administrator for access"
	case "invalid_scope":
		return "ask for other --scopes"
	case "invalid_target":
		return "the provider does not know this tenant's URL as a resource; tell its administrator"
	case "unauthorized_client", "invalid_client", "invalid_request":
		return "check --client-id and that its redirect http://127.0.0.1" + callbackPath + " is registered for any port (else use --port)"
	case "temporarily_unavailable", "server_error":
		return "try again later"
	}
	return "run telltale login again"
}

// authorize sends the browser away and waits for it to come back.
func (f *Flow) authorize(ctx context.Context, back *redirect, q request) (code string, err error) {
	back.expect(q)
	f.Say("open this in a browser on this machine:\n\n  %s\n", q.url)
	if f.Browse != nil {
		f.Browse(q.url)
	}
	f.Say("waiting up to %s for the browser to come back to %s", minutes(Patience), back.uri)
	for {
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-back.strange:
			f.Say("an answer that belongs to no login of this program came to %s and was left alone", back.uri)
		case a := <-back.answers:
			if a.err != nil {
				back.verdict(a.err)
			}
			return a.code, a.err
		}
	}
}

type answer struct {
	code string
	err  error
}

// redirect listens where the provider sends the browser (RFC 8252).
type redirect struct {
	uri     string
	host    string
	srv     *http.Server
	done    chan struct{} // closed when the listener is gone
	answers chan answer   // one
	strange chan struct{}
	ends    chan error // one: what the person is told

	mu   sync.Mutex
	want *request // nil before it is known and after its answer
}

// listen opens the loopback listener: a literal address, which no name server
// can point elsewhere.
func listen(ctx context.Context, port int) (*redirect, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, wrong("choose another --port, or leave it out", "cannot listen for the browser: %v", err)
	}
	r := &redirect{
		host: ln.Addr().String(), done: make(chan struct{}), answers: make(chan answer, 1), strange: make(chan struct{}, 1), ends: make(chan error, 1),
	}
	r.uri = "http://" + r.host + callbackPath
	r.srv = &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10}
	go func() {
		defer close(r.done)
		_ = r.srv.Serve(ln) // ends with close
	}()
	return r, nil
}

func (r *redirect) expect(q request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.want = &q
}

// take checks an answer; the first that belongs to the request settles it,
// good or bad. A stranger's leaves it open.
func (r *redirect) take(v url.Values) (open, ours bool, a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.want == nil {
		return false, false, a
	}
	if a.code, ours, a.err = r.want.code(v); ours {
		r.want = nil
	}
	return true, ours, a
}

// verdict ends the browser's wait with what came of the login.
func (r *redirect) verdict(err error) { r.ends <- err }

// close lets a page that is being written get out.
func (r *redirect) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if r.srv.Shutdown(ctx) != nil {
		_ = r.srv.Close()
	}
	<-r.done
}

// ServeHTTP takes the one answer of this login and nothing else.
func (r *redirect) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Connection", "close")
	if req.Host != r.host || req.URL.Path != callbackPath || req.Method != http.MethodGet {
		w.WriteHeader(http.StatusNotFound)
		page(w, "Nothing here", "This address waits for the answer of a sign-in.")
		return
	}
	open, ours, a := r.take(req.URL.Query())
	if !open {
		w.WriteHeader(http.StatusConflict)
		page(w, "Already answered", "This sign-in has had its answer. Look at the terminal.")
		return
	}
	if !ours {
		select {
		case r.strange <- struct{}{}:
		default:
		}
		w.WriteHeader(http.StatusBadRequest)
		page(w, "Not this sign-in", "The answer belongs to another sign-in, or to none. Use the link that the terminal shows.")
		return
	}
	r.answers <- a
	var err error
	limit := time.NewTimer(2 * requestTime)
	defer limit.Stop()
	select {
	case err = <-r.ends:
	case <-limit.C:
		err = wrong("", "the identity provider has not answered yet; look at the terminal")
	case <-req.Context().Done():
		return
	}
	if err != nil {
		w.WriteHeader(http.StatusForbidden)
		page(w, "Not signed in", err.Error())
		return
	}
	page(w, "Signed in", "You can close this window and go back to the terminal.")
}

func page(w http.ResponseWriter, title, words string) {
	_, _ = fmt.Fprintf(w, `<!doctype html><html lang="en"><meta charset="utf-8"><title>Telltale: %[1]s</title>`+
		`<body style="font-family:system-ui;max-width:40em;margin:4em auto;padding:0 1em"><h1>%[1]s</h1><p>%[2]s</p></body></html>`+"\n",
		html.EscapeString(title), html.EscapeString(words)) // the browser is gone if this fails
}

package rig

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// dialTest connects to an authority for one test.
func dialTest(t testing.TB, ctx context.Context, addr string) *Wire {
	t.Helper()
	w, err := Dial(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// A real server reads the requests as net/http's client would have sent them,
// and its answers are read whole however they are framed.
func TestAnswersOfARealServer(t *testing.T) {
	var addr string
	sent := func() *http.Request {
		req, err := http.NewRequest(http.MethodPost, "http://"+addr+"/t/acme/mcp", strings.NewReader("asked"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer secret")
		return req
	}
	long := strings.Repeat("0123456789abcdef", 10_000)
	answers := []string{"short", long, "", "streamed", long}
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != "asked" || r.URL.Path != "/t/acme/mcp" || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s: %v %s %v", r.URL.Path, err, body, r.Header)
		}
		answer := answers[n%len(answers)]
		if n++; n%2 == 0 {
			w.WriteHeader(http.StatusTeapot)
		}
		if answer == "streamed" {
			w.(http.Flusher).Flush()
		}
		io.WriteString(w, answer)
	}))
	defer s.Close()
	addr = s.Listener.Addr().String()
	w := dialTest(t, t.Context(), addr)
	for i := range 2 * len(answers) {
		var whole bytes.Buffer
		if err := sent().Write(&whole); err != nil {
			t.Fatal(err)
		}
		status, body, err := w.Ask(whole.Bytes())
		if want := answers[i%len(answers)]; err != nil || string(body) != want {
			t.Fatalf("answer %d: %v, %d bytes of %d", i, err, len(body), len(want))
		}
		if want := 200 + 218*(i%2); status != want {
			t.Errorf("answer %d: %d, want %d", i, status, want)
		}
	}
}

// As the transport of a client it answers the same.
func TestWireAsATransport(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		io.Copy(w, r.Body)
	}))
	defer s.Close()
	client := &http.Client{Transport: dialTest(t, t.Context(), s.Listener.Addr().String())}
	for _, word := range []string{"one", "two"} {
		resp, err := client.Post(s.URL, "text/plain", strings.NewReader(word))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != word || resp.StatusCode != http.StatusTeapot {
			t.Errorf("%d %q %v", resp.StatusCode, b, err)
		}
	}
}

// answering listens once and gives the same bytes to whoever asks.
func answering(t *testing.T, answer string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := c.Read(make([]byte, 100)); err == nil {
			io.WriteString(c, answer)
		}
	}()
	return l.Addr().String()
}

func TestWhatIsNotKnownIsAnError(t *testing.T) {
	for answer, want := range map[string]string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok":                                                 "",
		"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;x=y\r\no\r\n1\r\nk\r\n0\r\nA: b\r\n\r\n": "",
		"HTTP/1.1 200 OK\r\n\r\nok": "where it ends",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok": "where it ends",
		"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok":                              "bad length",
		"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\nok":                      "bad length",
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok":                               "EOF",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Encoding: gzip\r\n\r\nok":     "encoded",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok":          "does not keep",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n":         "transfer encoding",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nok\r\n0\r\n\r\n":    "longer than it said",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n":             "EOF",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n":            "bad length",
		"HTTP/1.1 100 Continue\r\n\r\n":                                                "status",
		"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok":                               "no HTTP/1.1",
		"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n":                                          "no header line",
	} {
		status, body, err := dialTest(t, t.Context(), answering(t, answer)).Ask([]byte("x"))
		switch {
		case want == "" && (err != nil || status != 200 || string(body) != "ok"):
			t.Errorf("%q: %d %q %v", answer, status, body, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", answer, err, want)
		}
	}
}

// Whoever waits for an answer that never comes is released by the context.
func TestTheContextEndsAWait(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	}))
	defer s.Close()
	w := dialTest(t, ctx, s.Listener.Addr().String())
	ended := make(chan error, 1)
	go func() {
		_, _, err := w.Ask([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
		ended <- err
	}()
	<-asked
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("still waiting")
	}
}

func BenchmarkAsk(b *testing.B) {
	answer := []byte(strings.Repeat("0123456789abcdef", 512))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Write(answer)
	}))
	defer s.Close()
	raw := []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	w := dialTest(b, b.Context(), s.Listener.Addr().String())
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := w.Ask(raw); err != nil {
			b.Fatal(err)
		}
	}
}

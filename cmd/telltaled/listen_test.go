package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// send opens a connection, writes a request and returns all that comes until
// the server closes, or a failure when it does not.
func send(t *testing.T, addr, request string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatalf("the connection stays open: %v (after %q)", err, b)
	}
	return string(b)
}

func TestSlowBodiesEnd(t *testing.T) {
	const within = 100 * time.Millisecond
	mux := http.NewServeMux()
	mux.HandleFunc("/ignores", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "answer") })
	mux.HandleFunc("/reads", func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			http.Error(w, "late", http.StatusRequestTimeout)
		}
	})
	s := httptest.NewServer(bodyInTime(mux, within))
	defer s.Close()
	addr := s.Listener.Addr().String()
	for _, path := range []string{"/ignores", "/reads"} {
		got := send(t, addr, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 400\r\n\r\n1")
		if path == "/reads" && !strings.Contains(got, "408") {
			t.Errorf("%s answered %q", path, got)
		}
	}
}

func TestLongAnswersOutliveTheBodysDeadline(t *testing.T) {
	const within = 50 * time.Millisecond
	s := httptest.NewServer(bodyInTime(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
		select {
		case <-r.Context().Done():
			t.Error("the request was cancelled while its answer was under way")
		case <-time.After(4 * within):
		}
		fmt.Fprint(w, "done")
	}), within))
	defer s.Close()
	resp, err := http.Post(s.URL, "text/plain", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "done" {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestManagementAnswersOnLoopbackOnly(t *testing.T) {
	h := loopbackHosts(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for host, want := range map[string]int{
		"127.0.0.1:8402": 200, "localhost:8402": 200, "[::1]:8402": 200, "127.0.0.1": 200,
		"evil.example": 421, "evil.example:8402": 421, "10.0.0.1": 421, "localhost.evil.example": 421, "": 421,
	} {
		r := httptest.NewRequest("GET", "http://x/metrics", nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("host %q: %d, want %d", host, w.Code, want)
		}
	}
}

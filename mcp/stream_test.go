package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

func TestIdleStreamsGetComments(t *testing.T) {
	release := make(chan struct{})
	w := start(t, stub{}, func(c *Config) { c.Pulse = 10 * time.Millisecond })
	w.h.tools = append(w.h.tools, Tool{Name: "wait_here", Title: "Wait", Description: "for tests", Set: observeSet, Scope: tenants.Read,
		Run: func(ctx context.Context, _ Call) (Answer, error) {
			select {
			case <-release:
			case <-ctx.Done():
			}
			return Answer{Body: map[string]any{}, Text: "waited"}, nil
		}})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.URL+"/t/acme/mcp", strings.NewReader(toolCall("wait_here", "{}")))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer read"}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	comments, answered := 0, false
	for sc := bufio.NewScanner(res.Body); sc.Scan(); {
		switch {
		case strings.HasPrefix(sc.Text(), ":"):
			if comments++; comments == 3 {
				close(release)
			}
		case strings.HasPrefix(sc.Text(), "data:"):
			answered = strings.Contains(sc.Text(), "waited")
		}
	}
	if comments < 3 || !answered {
		t.Errorf("%d comments, answered %t", comments, answered)
	}
}

// TestErrorAfterAComment is an answer that wants a status of its own although
// a comment has opened the stream: it goes out as an event.
func TestErrorAfterAComment(t *testing.T) {
	rec := httptest.NewRecorder()
	s := newStream(rec, message{ID: json.RawMessage("1"), Method: "tools/call"}, time.Hour)
	s.beat()
	s.Header().Set("Content-Type", "application/json")
	s.WriteHeader(http.StatusBadRequest)
	if _, err := s.Write([]byte(`{"jsonrpc":"2.0","id":1}` + "\n")); err != nil {
		t.Fatal(err)
	}
	s.finish()
	if _, err := s.Write([]byte("late")); err == nil {
		t.Error("a write after the end was taken")
	}
	s.beat()
	want := ": alive\n\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1}\n\n"
	if rec.Code != http.StatusOK || rec.Body.String() != want || rec.Header().Get("Content-Type") != "text/event-stream" {
		t.Errorf("%d %v %q", rec.Code, rec.Header(), rec.Body)
	}
}

package mcp

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestOneWrite: what is answered beside the SDK leaves at once, whole and with
// its length, also over a connection.
func TestOneWrite(t *testing.T) {
	w, _ := bothWays(t, nil)
	for _, body := range []string{listCall, listCall, toolCall("list_nodes", "{}"), toolCall("panic_now", "{}"), toolCall("list_nodes", `{"limit":0}`)} {
		r := w.post(t, "read", "", body)
		if r.status != http.StatusOK || r.header.Get("Content-Type") != "text/event-stream" || !strings.HasPrefix(r.body, eventOpen) || !strings.HasSuffix(r.body, "}"+eventEnd) || strings.Count(r.body, "\n") != 3 {
			t.Errorf("%s: %d %v %.200q", body, r.status, r.header, r.body)
		}
	}
	if n := w.h.beside.Load(); n != 4 { // the first list is the SDK's
		t.Errorf("%d of five were answered beside the SDK", n)
	}
	out := &sink{head: http.Header{}}
	b := w.h.answers.open([]byte("1"))
	b.WriteString(`,"result":{}`)
	w.h.send(out, b)
	if want := fmt.Sprint(out.size); out.head.Get("Content-Length") != want {
		t.Errorf("the length %q, want %s", out.head.Get("Content-Length"), want)
	}
}

// TestClientsGoBeside: what a client of either era sends for a list and a read
// is plain.
func TestClientsGoBeside(t *testing.T) {
	w, _ := bothWays(t, nil)
	for _, version := range []string{modernVersion, lastLegacy} {
		s := connect(t, w.URL+"/t/acme/mcp", "read", version)
		before := w.h.beside.Load()
		for range 2 {
			if res, err := s.ListTools(t.Context(), nil); err != nil || len(res.Tools) < 10 {
				t.Errorf("%s: %v", version, err)
			}
			if res := call(t, s, "get_node", `{"node":"node-001"}`); res.IsError {
				t.Errorf("%s: %s", version, textOf(t, res))
			}
		}
		if n := w.h.beside.Load() - before; n < 3 { // the first list is the SDK's
			t.Errorf("%s: %d of four were answered beside the SDK", version, n)
		}
	}
}

// TestListsAreKeptApart: what is kept of a list is for the tools it lists,
// whoever asked first, and callers who see the same share the memory of it.
func TestListsAreKeptApart(t *testing.T) {
	w, _ := bothWays(t, nil)
	names := func(bearer, query string) (list []string) {
		body := w.post(t, bearer, query, listCall).body
		for i := range w.h.tools {
			if strings.Contains(body, `"name":"`+w.h.tools[i].Name+`"`) {
				list = append(list, w.h.tools[i].Name)
			}
		}
		return list
	}
	want := map[[2]string][]string{}
	callers := [][2]string{{"read", ""}, {"admin", ""}, {"diagnose@globex", ""}, {"read", "?exclude=get_node"}, {"admin", "?readonly=1"}, {"payloads", ""}, {"read@globex", ""}}
	w.h.sdkOnly = true
	for _, c := range callers {
		want[c] = names(c[0], c[1])
	}
	w.h.sdkOnly = false
	var wg sync.WaitGroup
	for range 3 {
		for _, c := range callers {
			wg.Go(func() {
				if got := names(c[0], c[1]); !slices.Equal(got, want[c]) {
					t.Errorf("%v lists %v, want %v", c, got, want[c])
				}
			})
		}
	}
	wg.Wait()
	if n := w.h.beside.Load(); n < uint64(len(callers)) {
		t.Errorf("only %d lists were kept", n)
	}
}

// TestAbandonedReads: the end of a request of the new era reaches the tool; a
// call of the initialize era runs out. The record says how it ended.
func TestAbandonedReads(t *testing.T) {
	for _, sdkOnly := range []bool{false, true} {
		for version, want := range map[string]string{modernVersion: "wait_here failed cancelled", lastLegacy: "wait_here ok"} {
			w, l := bothWays(t, nil)
			w.h.sdkOnly = sdkOnly
			began, release := make(chan struct{}), make(chan struct{})
			w.withTool("wait_here", nil, func(ctx context.Context, _ Call) (Answer, error) {
				close(began)
				select {
				case <-ctx.Done():
					return Answer{}, ctx.Err()
				case <-release:
					return Answer{Body: map[string]any{}, Text: "waited"}, nil
				}
			})
			list := eras(asked{}, "tools/call", `"name":"wait_here"`)
			q := list[len(list)-1]
			if version == lastLegacy {
				q = list[len(list)-2]
			}
			ctx, cancel := context.WithCancel(t.Context())
			req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/t/acme/mcp", bytes.NewReader([]byte(q.body)))
			req.Header = q.header
			req.Header["Authorization"], req.Header["Content-Type"], req.Header["Accept"] = []string{"Bearer read"}, []string{"application/json"}, []string{"*/*"}
			done := make(chan struct{})
			go func() {
				defer close(done)
				w.signIn(w.h).ServeHTTP(httptest.NewRecorder(), req)
			}()
			<-began
			cancel()
			if version == lastLegacy {
				close(release)
			}
			<-done
			if got := l.take(); len(got) != 1 || got[0] != want {
				t.Errorf("%s, SDK alone %t: recorded %q, want %q", version, sdkOnly, got, want)
			}
			if got := w.h.beside.Load() > 0; got == sdkOnly {
				t.Errorf("%s: beside the SDK %t", version, got)
			}
		}
	}
}

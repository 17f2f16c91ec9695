package web

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
)

func TestHandler(t *testing.T) {
	built := fstest.MapFS{
		"index.html":       {Data: []byte("<title>page</title>")},
		"assets/app-1a.js": {Data: []byte("1")},
	}
	tests := []struct {
		name   string
		files  fstest.MapFS
		method string
		path   string
		status int
		body   string
		cache  string
	}{
		{"root", built, "GET", "/", 200, "<title>page", "no-cache"},
		{"a page of the app", built, "GET", "/t/acme/ui/nodes/x", 200, "<title>page", "no-cache"},
		{"the self-test of a connector", built, "GET", "/t/acme/connect?reference=x", 200, "<title>page", "no-cache"},
		{"an asset", built, "GET", "/assets/app-1a.js", 200, "1", "public, max-age=31536000, immutable"},
		{"a missing asset is no page", built, "GET", "/assets/gone.js", 404, "", ""},
		{"no way out of the folder", built, "GET", "/assets/../../embed.go", 200, "<title>page", "no-cache"},
		{"a folder is not listed", built, "GET", "/assets/", 200, "<title>page", "no-cache"},
		{"a write", built, "POST", "/", 405, "", ""},
		{"not built", fstest.MapFS{}, "GET", "/", 200, "make build", "no-cache"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := httptest.NewRecorder()
			handler(tt.files).ServeHTTP(w, httptest.NewRequest(tt.method, "http://x"+tt.path, nil))
			if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.body) {
				t.Errorf("%d %q, want %d with %q", w.Code, w.Body, tt.status, tt.body)
			}
			if got := w.Header().Get("Cache-Control"); tt.cache != "" && got != tt.cache {
				t.Errorf("Cache-Control %q, want %q", got, tt.cache)
			}
			if w.Code != http.StatusNotFound && w.Header().Get("Content-Security-Policy") == "" {
				t.Error("no content security policy")
			}
		})
	}
}

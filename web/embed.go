// Package web holds the dashboard: its source, and, once `make web` has run,
// its build, embedded into the server. It knows nothing of the server; the
// pages speak to REST like any other client. Start reading at src/main.tsx.
package web

import (
	"bytes"
	"embed"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed all:dist
var dist embed.FS

// ContentSecurityPolicy is sent with every page: scripts, styles and data of
// this server only, nothing inline, no frames.
const ContentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

const notBuilt = "<!doctype html><title>Telltale</title><p>The dashboard is not part of this build: run <code>make build</code> and start the server again. REST and MCP work without it.</p>\n"

// Handler serves the dashboard. Files below /assets/ carry a hash in their
// name and may be kept for ever; every other path answers the one page, whose
// script reads the address. Without a build it answers one line that says how
// to make one. Only GET and HEAD are allowed.
func Handler() http.Handler {
	files, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // the embedded folder is part of the program
	}
	return handler(files)
}

func handler(files fs.FS) http.Handler {
	page, err := fs.ReadFile(files, "index.html")
	if err != nil {
		page = []byte(notBuilt)
	}
	static := http.FileServerFS(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", ContentSecurityPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "this page can only be read", http.StatusMethodNotAllowed)
			return
		}
		if p := path.Clean(r.URL.Path); strings.HasPrefix(p, "/assets/") {
			if st, err := fs.Stat(files, strings.TrimPrefix(p, "/")); err != nil || st.IsDir() {
				http.NotFound(w, r)
				return
			}
			h.Set("Cache-Control", "public, max-age=31536000, immutable")
			static.ServeHTTP(w, r)
			return
		}
		h.Set("Cache-Control", "no-cache")
		h.Set("Content-Type", "text/html; charset=utf-8")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(page))
	})
}

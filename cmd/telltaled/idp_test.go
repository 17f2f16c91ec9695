package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFindIDPSaysWhatIsMissing(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "deploy", "devidp")
	missing := func(want string) {
		t.Helper()
		t.Setenv("PATH", root)
		if _, err := findIDP(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to say %q", err, want)
		}
	}
	put := func(path string, mode os.FileMode, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	missing("--idp-dir names another folder")
	put(filepath.Join(dir, "server.mjs"), 0o644, "")
	missing("run 'make deps'")
	put(filepath.Join(dir, "node_modules", "oidc-provider", "package.json"), 0o644, "{}")
	missing("no Node")
	put(filepath.Join(root, "node"), 0o755, "#!/bin/sh\n")
	if p, err := findIDP(dir); err != nil || p.node != filepath.Join(root, "node") {
		t.Errorf("got %+v, %v, want the Node on PATH", p, err)
	}
	pinned := filepath.Join(root, "deploy", "node", "bin", "node")
	put(pinned, 0o755, "#!/bin/sh\n")
	if p, err := findIDP(dir); err != nil || p.node != filepath.Join(dir, "..", "node", "bin", "node") {
		t.Errorf("got %+v, %v, want the pinned Node", p, err)
	}
}

func TestIDPAddressKeepsItsPort(t *testing.T) {
	_, first, err := idpAddress("", 0)
	if err != nil || first < 20000 || first >= 30000 {
		t.Fatalf("port %d, %v: want one outside the range of outgoing connections", first, err)
	}
	if _, again, err := idpAddress("", first); err != nil || again != first {
		t.Errorf("port %d, %v: want %d as before", again, err, first)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	if _, other, err := idpAddress("", taken); err != nil || other == taken {
		t.Errorf("port %d, %v: want another than the taken one", other, err)
	}
	if host, port, err := idpAddress("localhost:8402", first); err != nil || host != "localhost" || port != 8402 {
		t.Errorf("%s %d, %v: want what the flag says", host, port, err)
	}
	if _, port, err := idpAddress("127.0.0.1:0", first); err != nil || port != first {
		t.Errorf("port %d, %v: port 0 means the remembered one", port, err)
	}
}

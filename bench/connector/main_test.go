package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"testing"
)

// The requests are those of a client of the protocol, with all their headers.
func TestRequests(t *testing.T) {
	raw, addr, err := questions[1].request("http://127.0.0.1:1/t/acme/mcp", "secret", "n1", 23)
	if err != nil || addr != "127.0.0.1:1" {
		t.Fatal(addr, err)
	}
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/t/acme/mcp" || !bytes.Contains(body, []byte(`"arguments":{"limit":23}`)) {
		t.Errorf("%s %s: %v %s", r.Method, r.URL, err, body)
	}
	for name, want := range map[string]string{"Authorization": "Bearer secret", "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": modern, "Mcp-Method": "tools/call", "Mcp-Name": "list_nodes", "Accept-Encoding": "identity", "User-Agent": "telltale-bench"} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestNumbersOfConnections(t *testing.T) {
	c := counts{48, 16}
	if c.String() != "48,16" {
		t.Error(c.String())
	}
	if err := c.Set("8, 4"); err != nil || fmt.Sprint(c) != "[8 4]" {
		t.Error(c, err)
	}
	for _, bad := range []string{"", "0", "a", "4,,", "-1"} {
		if c.Set(bad) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

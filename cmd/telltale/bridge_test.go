package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`

// TestBridgeAnswersInFlightRequestsAtTheEnd closes the input at once: every
// request is answered, once, and stdout holds nothing else.
func TestBridgeAnswersInFlightRequestsAtTheEnd(t *testing.T) {
	lines := []string{initialize, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "", "  "}
	want := []string{"1"}
	for i := 2; i < 20; i++ {
		lines = append(lines, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"metrics_summary","arguments":{"module":"network","node":"slow"}}}`, i))
		want = append(want, fmt.Sprint(i))
	}
	lines = append(lines, `{"jsonrpc":"2.0","id":"words","method":"tools/list"}`)
	want = append(want, `"words"`)
	r := cli(t, serve(t), "good", strings.Join(lines, "\n"), "mcp") // no newline at the end
	var got []string
	for _, m := range messages(t, r.out) {
		got = append(got, string(m["id"]))
		if m["error"] != nil {
			t.Errorf("error %s", m["error"])
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if r.code != 0 || !slices.Equal(got, want) || r.err != "" {
		t.Errorf("exit %d, answered %v, stderr %s", r.code, got, r.err)
	}
}

func TestBridgeRefusals(t *testing.T) {
	input := strings.Join([]string{"not json", "[" + initialize + "]", "42", initialize,
		`{"jsonrpc":"2.0","id":2,"method":"no/such"}`, `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"nope"}}`, `{"jsonrpc":"2.0","id":4,"method":"ping","id":4}`}, "\n") + "\n"
	r := cli(t, serve(t), "good", input, "mcp")
	codes := map[string][]int{}
	for _, m := range messages(t, r.out) {
		var e struct {
			Code int `json:"code"`
		}
		if m["error"] != nil {
			if err := json.Unmarshal(m["error"], &e); err != nil {
				t.Fatal(err)
			}
		}
		codes[string(m["id"])] = append(codes[string(m["id"])], e.Code)
	}
	for id, want := range map[string][]int{"null": {-32700, -32600, -32600}, "1": {0}, "2": {-32601}, "3": {-32602}, "4": {-32600}} {
		if !slices.Equal(codes[id], want) {
			t.Errorf("id %s: codes %v, want %v", id, codes[id], want)
		}
	}
}

func TestBridgeWithoutServer(t *testing.T) {
	r := cli(t, nobody, "good", initialize+"\n"+`{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n", "mcp")
	list := messages(t, r.out)
	if r.code != 0 || len(list) != 1 || string(list[0]["id"]) != "1" || !strings.Contains(string(list[0]["error"]), "the Telltale server is away") || !strings.Contains(r.err, "no answer from "+nobody) {
		t.Errorf("exit %d\n%s\n%s", r.code, r.out, r.err)
	}
}

func TestBridgeWithBadToken(t *testing.T) {
	r := cli(t, serve(t), "old", initialize+"\n", "mcp")
	list := messages(t, r.out)
	if len(list) != 1 || !strings.Contains(string(list[0]["error"]), "reference_id") || !strings.Contains(string(list[0]["error"]), "expired") || !strings.Contains(r.err, "reference id") {
		t.Errorf("%s\n%s", r.out, r.err)
	}
}

// TestBridgeSendsTheNegotiatedVersion watches the headers of both eras.
func TestBridgeSendsTheNegotiatedVersion(t *testing.T) {
	type seen struct{ method, version, mcpMethod, name string }
	var got []seen
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		got = append(got, seen{m.Method, r.Header.Get("MCP-Protocol-Version"), r.Header.Get("Mcp-Method"), r.Header.Get("Mcp-Name")})
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, ": a comment\n\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"id\":%s,\"result\":{\"protocolVersion\":\"2025-06-18\"}}\n\n", m.ID)
	}))
	t.Cleanup(srv.Close)
	modernCall := `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"list_nodes","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	cmd := exec.CommandContext(t.Context(), binary, "mcp", "--url", srv.URL+"/t/acme/mcp")
	cmd.Env = []string{"TELLTALE_TOKEN=good"}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewScanner(out)
	for _, line := range []string{initialize, `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`, modernCall} {
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			t.Fatal(err)
		}
		if !answers.Scan() || !strings.HasPrefix(answers.Text(), `{"jsonrpc":"2.0","id":`) {
			t.Fatalf("answer %q", answers.Text())
		}
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	want := []seen{{"initialize", "", "", ""}, {"tools/list", "2025-06-18", "", ""}, {"tools/call", "2026-07-28", "tools/call", "list_nodes"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

// TestBridgeServesRealClients runs the protocol SDK over the built program.
func TestBridgeServesRealClients(t *testing.T) {
	url := serve(t)
	for _, version := range []string{"2025-06-18", "2025-11-25", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			cmd := exec.Command(binary, "mcp")
			cmd.Env = []string{"TELLTALE_URL=" + url, "TELLTALE_TOKEN=good"}
			client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil)
			s, err := client.Connect(t.Context(), &sdk.CommandTransport{Command: cmd, TerminateDuration: 10 * time.Second}, &sdk.ClientSessionOptions{ProtocolVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			if got := s.InitializeResult().ProtocolVersion; got != version {
				t.Errorf("negotiated %s", got)
			}
			res, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "list_nodes"})
			if err != nil || res.IsError {
				t.Errorf("list_nodes: %v %+v", err, res)
			}
			if _, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "telltale://health"}); err != nil {
				t.Errorf("resource: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

// TestBridgeCancels ends a request that its client gave up, without an answer.
func TestBridgeCancels(t *testing.T) {
	started, ended := make(chan struct{}), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		close(started)
		<-r.Context().Done()
		close(ended)
	}))
	t.Cleanup(srv.Close)
	cmd := exec.CommandContext(t.Context(), binary, "mcp", "--url", srv.URL+"/t/acme/mcp")
	cmd.Env = []string{"TELLTALE_TOKEN=good"}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	send := func(s string) {
		if _, err := io.WriteString(in, s+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	send(`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"x"}}`)
	wait(t, started)
	send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`)
	wait(t, ended)
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || out.String() != "" {
		t.Errorf("%v, stdout %q", err, out.String())
	}
}

func wait(t *testing.T, c chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("waited for 20 s")
	}
}

func TestBridgeLongLine(t *testing.T) {
	r := cli(t, nobody, "good", strings.Repeat("x", maxLine+10)+"\n", "mcp")
	list := messages(t, r.out)
	if len(list) != 1 || !strings.Contains(string(list[0]["error"]), "longer than") {
		t.Errorf("%.300s", r.out)
	}
}

package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// modern is the revision of MCP that Tool speaks: no session, all in one POST.
const modern = "2026-07-28"

const maxAnswer = 8 << 20

// REST sends one request below the tenant's address and reads the answer
// whole; any status but 200 is an error. A nil body sends none.
func (t Tenant) REST(ctx context.Context, client *http.Client, method, path, token string, body any) ([]byte, error) {
	var sent []byte
	if body != nil {
		var err error
		if sent, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	return send(ctx, client, method, t.RESTURL+path, token, sent, nil)
}

// Tool calls a tool over MCP and returns its structured answer and the size
// of the whole; a refusal is an error.
func (t Tenant) Tool(ctx context.Context, client *http.Client, token, name string, arguments any) (doc json.RawMessage, size int, err error) {
	type object = map[string]any
	sent, err := json.Marshal(object{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": object{
		"name": name, "arguments": arguments,
		"_meta": object{"io.modelcontextprotocol/protocolVersion": modern, "io.modelcontextprotocol/clientCapabilities": object{}},
	}})
	if err != nil {
		return nil, 0, err
	}
	b, err := send(ctx, client, http.MethodPost, t.MCPURL, token, sent, map[string]string{
		"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": modern, "Mcp-Method": "tools/call", "Mcp-Name": name,
	})
	if err != nil {
		return nil, 0, err
	}
	size = len(b)
	if !bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) { // server-sent events, the last of them the answer
		all := strings.Split(strings.TrimSpace(string(b)), "data: ")
		last, _, _ := strings.Cut(all[len(all)-1], "\n")
		b = []byte(last)
	}
	var m struct {
		Result struct {
			IsError           bool            `json:"isError"`
			StructuredContent json.RawMessage `json:"structuredContent"`
		}
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, size, fmt.Errorf("%w in %.300s", err, b)
	}
	if m.Result.IsError || len(m.Result.StructuredContent) == 0 {
		return nil, size, fmt.Errorf("refused: %.600s", b)
	}
	return m.Result.StructuredContent, size, nil
}

func send(ctx context.Context, client *http.Client, method, target, token string, body []byte, header map[string]string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d: %.300s", resp.StatusCode, b)
	}
	return b, nil
}

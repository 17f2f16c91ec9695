package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/bench/internal/rig"
)

// The protocol's two eras.
const (
	modern = "2026-07-28"
	legacy = "2025-11-25"
)

// question is one kind of call. In arguments {node} stands for a node's name.
type question struct {
	name, version   string
	tool, arguments string // no tool: tools/list
}

var questions = []question{
	{name: "tools/list, " + modern, version: modern},
	{name: "list_nodes, " + modern, version: modern, tool: "list_nodes", arguments: `{"limit":20}`},
	{name: "fleet_overview, " + modern, version: modern, tool: "fleet_overview", arguments: `{}`},
	{name: "get_node, " + modern, version: modern, tool: "get_node", arguments: `{"node":"{node}"}`},
	{name: "metrics_summary, " + modern, version: modern, tool: "metrics_summary", arguments: `{"module":"network","node":"{node}"}`},
	{name: "list_events, " + modern, version: modern, tool: "list_events", arguments: `{"limit":20}`},
	{name: "tools/list, " + legacy, version: legacy},
	{name: "list_nodes, " + legacy, version: legacy, tool: "list_nodes", arguments: `{"limit":20}`},
	{name: "get_node, " + legacy, version: legacy, tool: "get_node", arguments: `{"node":"{node}"}`},
}

func (q question) body(node string) []byte {
	params := map[string]any{}
	method := "tools/list"
	if q.tool != "" {
		method = "tools/call"
		params["name"], params["arguments"] = q.tool, json.RawMessage(strings.ReplaceAll(q.arguments, "{node}", node))
	}
	if q.version == modern {
		params["_meta"] = map[string]any{"io.modelcontextprotocol/protocolVersion": modern, "io.modelcontextprotocol/clientCapabilities": map[string]any{}}
	}
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		panic(err) // plain values always encode
	}
	return b
}

// asker is one caller: a tenant, a token, and a node to ask about.
type asker struct {
	tenant rig.Tenant
	token  string
	bodies map[string][]byte // by the question's name
}

// scopeSets are the tokens of each tenant that ask: each sees other tools.
var scopeSets = []string{"read", "diagnose", "maintain", "admin"}

// meet makes the askers and finds a node of each tenant.
func meet(ctx context.Context, s *rig.Stack) (list []*asker, err error) {
	for _, t := range s.Tenants {
		doc, _, err := t.Tool(ctx, http.DefaultClient, t.Tokens["read"], "list_nodes", json.RawMessage(`{}`))
		if err != nil {
			return nil, err
		}
		var page struct {
			Nodes []struct {
				Name string `json:"name"`
			} `json:"nodes"`
		}
		if err := json.Unmarshal(doc, &page); err != nil {
			return nil, err
		}
		if len(page.Nodes) == 0 {
			return nil, fmt.Errorf("tenant %s has no nodes: %.300s", t.Slug, doc)
		}
		for _, set := range scopeSets {
			a := &asker{tenant: t, token: t.Tokens[set], bodies: map[string][]byte{}}
			if a.token == "" {
				return nil, fmt.Errorf("the stack has no token for %s", set)
			}
			for _, q := range questions {
				a.bodies[q.name] = q.body(page.Nodes[0].Name)
			}
			list = append(list, a)
		}
	}
	return list, nil
}

// connection is one of an asker's, kept alive. Its own load is small: answers
// are read whole and looked at, not decoded.
type connection struct {
	*asker
	client *http.Client
	buf    bytes.Buffer
}

func (a *asker) connect() *connection {
	return &connection{asker: a, client: &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}}
}

func (c *connection) close() { c.client.CloseIdleConnections() }

// ask asks one question and returns the size of its answer.
func (c *connection) ask(ctx context.Context, q question) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.tenant.MCPURL, bytes.NewReader(c.bodies[q.name]))
	if err != nil {
		return 0, err
	}
	h := req.Header
	h.Set("Authorization", "Bearer "+c.token)
	h.Set("Content-Type", "application/json")
	h.Set("Accept", "application/json, text/event-stream")
	h.Set("MCP-Protocol-Version", q.version)
	if q.version == modern {
		method := "tools/list"
		if q.tool != "" {
			method = "tools/call"
			h.Set("Mcp-Name", q.tool)
		}
		h.Set("Mcp-Method", method)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", q.name, err)
	}
	c.buf.Reset()
	_, err = io.Copy(&c.buf, resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return 0, err
	}
	b := c.buf.Bytes()
	want := []byte(`"tools":[`)
	if q.tool != "" {
		want = []byte(`"structuredContent":`)
	}
	if resp.StatusCode != http.StatusOK || !bytes.Contains(b, want) || bytes.Contains(b, []byte(`"isError":true`)) {
		return 0, fmt.Errorf("%s: status %d: %.400s", q.name, resp.StatusCode, b)
	}
	return len(b), nil
}

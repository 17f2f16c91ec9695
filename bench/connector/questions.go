package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/bench/internal/rig"
)

// The protocol's two eras.
const (
	modern = "2026-07-28"
	legacy = "2025-11-25"
)

// question is one kind of call. In arguments {node} stands for a node's name and
// {limit} for a number of rows. Connections ask about different nodes with
// different limits, so that the server finds few equal questions under way, which
// it would read once.
type question struct {
	name, version   string
	tool, arguments string // no tool: tools/list
}

var questions = []question{
	{name: "tools/list, " + modern, version: modern},
	{name: "list_nodes, " + modern, version: modern, tool: "list_nodes", arguments: `{"limit":{limit}}`},
	{name: "fleet_overview, " + modern, version: modern, tool: "fleet_overview", arguments: `{}`},
	{name: "get_node, " + modern, version: modern, tool: "get_node", arguments: `{"node":"{node}"}`},
	{name: "metrics_summary, " + modern, version: modern, tool: "metrics_summary", arguments: `{"module":"network","node":"{node}"}`},
	{name: "list_events, " + modern, version: modern, tool: "list_events", arguments: `{"limit":{limit}}`},
	{name: "tools/list, " + legacy, version: legacy},
	{name: "list_nodes, " + legacy, version: legacy, tool: "list_nodes", arguments: `{"limit":{limit}}`},
	{name: "get_node, " + legacy, version: legacy, tool: "get_node", arguments: `{"node":"{node}"}`},
}

func (q question) body(node string, limit int) []byte {
	params := map[string]any{}
	method := "tools/list"
	if q.tool != "" {
		method = "tools/call"
		params["name"], params["arguments"] = q.tool, json.RawMessage(strings.NewReplacer("{node}", node, "{limit}", strconv.Itoa(limit)).Replace(q.arguments))
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

// asker is one caller: a tenant's token and the nodes to ask about.
type asker struct {
	url, token string
	nodes      []string // names
}

// scopeSets are the tokens of each tenant that ask: each sees other tools.
var scopeSets = []string{"read", "diagnose", "maintain", "admin"}

// meet makes the askers and finds the nodes of each tenant.
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
		var names []string
		for _, n := range page.Nodes {
			names = append(names, n.Name)
		}
		for _, set := range scopeSets {
			if t.Tokens[set] == "" {
				return nil, fmt.Errorf("the stack has no token for %s", set)
			}
			list = append(list, &asker{t.MCPURL, t.Tokens[set], names})
		}
	}
	return list, nil
}

// request is a question as net/http's client would send it, with every header
// that a client of the protocol sends, and the authority it goes to.
func (q question) request(url, token, node string, limit int) (raw []byte, addr string, err error) {
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(q.body(node, limit)))
	if err != nil {
		return nil, "", err
	}
	h := req.Header
	h.Set("Authorization", "Bearer "+token)
	h.Set("Content-Type", "application/json")
	h.Set("Accept", "application/json, text/event-stream")
	h.Set("Accept-Encoding", "identity") // a compressed answer would not be read
	h.Set("User-Agent", "telltale-bench")
	h.Set("MCP-Protocol-Version", q.version)
	if q.version == modern {
		method := "tools/list"
		if q.tool != "" {
			method = "tools/call"
			h.Set("Mcp-Name", q.tool)
		}
		h.Set("Mcp-Method", method)
	}
	var b bytes.Buffer
	err = req.Write(&b)
	return b.Bytes(), req.URL.Host, err
}

// connection is one of an asker's, kept alive. Its own load is small: requests
// are made beforehand, answers are read whole and looked at, not decoded.
type connection struct {
	*rig.Wire
	requests [][]byte // whole ones, as they go over the wire; of the questions in their order
}

// connect makes an asker's i-th connection.
func (a *asker) connect(ctx context.Context, i int) (*connection, error) {
	c := &connection{}
	var addr string
	for _, q := range questions {
		raw, to, err := q.request(a.url, a.token, a.nodes[i%len(a.nodes)], 20+i)
		if err != nil {
			return nil, err
		}
		addr, c.requests = to, append(c.requests, raw)
	}
	var err error
	c.Wire, err = rig.Dial(ctx, addr)
	return c, err
}

var (
	listed  = []byte(`"tools":[`)
	told    = []byte(`"structuredContent":`)
	isError = []byte(`"isError":true`)
)

// ask asks the i-th question and returns the size of its answer. An answer
// without what was asked for, or that says it is an error, is one.
func (c *connection) ask(i int) (int, error) {
	q := &questions[i]
	status, b, err := c.Wire.Ask(c.requests[i])
	if err != nil {
		return 0, fmt.Errorf("%s: %w", q.name, err)
	}
	want := told
	if q.tool == "" {
		want = listed
	}
	if status != http.StatusOK || !bytes.Contains(b, want) || bytes.Contains(b, isError) {
		return 0, fmt.Errorf("%s: status %d: %.400s", q.name, status, b)
	}
	return len(b), nil
}

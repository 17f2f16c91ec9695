package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/bench/internal/rig"
)

// question is one kind of call. In path and arguments {node} stands for the
// node's name.
type question struct {
	name      string
	tool      string // of MCP; empty: REST
	arguments string // of the tool, as JSON
	path      string // of REST, below the tenant
	whole     bool   // the answer covers all nodes and says so
	limit     time.Duration
	cpuLimit  time.Duration // of telltaled, a call
}

// readLimit holds for what a person or model waits for: overview, a page of
// nodes, one node, top N.
const readLimit = 20 * time.Millisecond

var questions = []question{
	{name: "MCP metrics_summary, one node", tool: "metrics_summary", arguments: `{"module":"network","node":"{node}"}`, limit: readLimit, cpuLimit: time.Millisecond},
	{name: "MCP metrics_summary, whole fleet", tool: "metrics_summary", arguments: `{"module":"network"}`, whole: true},
	{name: "MCP fleet_overview", tool: "fleet_overview", arguments: `{}`, limit: readLimit},
	{name: "MCP list_nodes", tool: "list_nodes", arguments: `{"limit":50}`, limit: readLimit},
	{name: "MCP get_node", tool: "get_node", arguments: `{"node":"{node}"}`, limit: readLimit},
	{name: "MCP query_metrics, one node", tool: "query_metrics", arguments: `{"metrics":["network.rx_bytes"],"node":"{node}"}`, limit: readLimit},
	{name: "MCP query_metrics, top 20 of the fleet now", tool: "query_metrics", arguments: `{"metrics":["network.rx_bytes"],"top":20,"by":"last"}`, limit: readLimit},
	{name: "REST overview", path: "/overview", limit: readLimit},
	{name: "REST nodes, a page of 50", path: "/nodes?limit=50", limit: readLimit},
	{name: "REST metrics/summary, one node", path: "/metrics/summary?module=network&node={node}", limit: readLimit},
	{name: "REST metrics/summary, whole fleet", path: "/metrics/summary?module=network", whole: true},
}

// young is asked before the planner knows that the fleet has grown.
var young = question{name: "MCP fleet_overview in a fleet's first minute", tool: "fleet_overview", arguments: `{}`, limit: readLimit}

// caller asks as an operator with a read token, over one kept connection.
type caller struct {
	tenant rig.Tenant
	nodes  int
	node   string
}

// once asks, checks that the answer is a good one and returns its size.
func (c *caller) once(ctx context.Context, q question) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if q.tool == "" {
		doc, err := c.tenant.REST(ctx, http.DefaultClient, http.MethodGet, strings.ReplaceAll(q.path, "{node}", url.QueryEscape(c.node)), c.tenant.Tokens["read"], nil)
		if err != nil {
			return 0, err
		}
		return len(doc), c.judge(q, doc)
	}
	doc, size, err := c.tenant.Tool(ctx, http.DefaultClient, c.tenant.Tokens["read"], q.tool, json.RawMessage(strings.ReplaceAll(q.arguments, "{node}", c.node)))
	if err != nil {
		return 0, err
	}
	return size, c.judge(q, doc)
}

// judge holds an answer about the whole fleet against the number of nodes.
func (c *caller) judge(q question, doc []byte) error {
	var answer struct {
		Coverage struct{ Asked, Answered int } `json:"coverage"`
	}
	if err := json.Unmarshal(doc, &answer); err != nil {
		return err
	}
	if least := c.nodes; q.whole && answer.Coverage.Answered < least {
		return fmt.Errorf("%d of %d nodes answered, want %d or more", answer.Coverage.Answered, answer.Coverage.Asked, least)
	}
	return nil
}

package mcp

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

// TestErrorsNameTheArgumentAsSent: whatever a service calls a field, the error
// names the argument that the caller sent. The services are real; each of
// these is refused before the database is asked.
func TestErrorsNameTheArgumentAsSent(t *testing.T) {
	reg := registry()
	log := slog.New(slog.DiscardHandler)
	w := start(t, stub{}, func(c *Config) {
		c.Services.Registry = reg
		c.Services.Fleet = fleet.New(nil, reg, fleet.Config{}, log)
		c.Services.Metrics = metrics.New(nil, reg, metrics.Config{Now: func() time.Time { return noon }}, log)
	})
	s := connect(t, w.URL+"/t/acme/mcp", "read", "")
	long := strings.Repeat("x", 300)
	labels := `{"` + long + `":"x"}`
	query := func(more string) string { return `{"metrics":["network.events"]` + more + `}` }
	for _, tc := range []struct{ tool, args, argument string }{
		{"query_metrics", `{"metrics":[]}`, "metrics"},
		{"query_metrics", `{"metrics":["nonsense"]}`, "metrics"},
		{"query_metrics", query(`,"step_s":10,"from":"6h"`), "step_s"},
		{"query_metrics", query(`,"step_s":15`), "step_s"},
		{"query_metrics", query(`,"step_s":5`), "step_s"},
		{"query_metrics", query(`,"labels":` + labels), "labels"},
		{"query_metrics", query(`,"node_labels":` + labels), "node_labels"},
		{"query_metrics", query(`,"node":"` + long + `"`), "node"},
		{"query_metrics", query(`,"group":"` + long + `"`), "group"},
		{"query_metrics", query(`,"from":"7h"`), "from"},
		{"query_metrics", query(`,"from":"5s"`), "from"},
		{"query_metrics", query(`,"to":"2999-01-01T00:00:00Z"`), "to"},
		{"query_metrics", query(`,"by":"max"`), "by"},
		{"query_metrics", query(`,"top":5,"group":"env"`), "top"},
		{"query_metrics", query(`,"top":101`), "top"},
		{"query_metrics", query(`,"cursor":"x"`), "cursor"},
		{"metrics_summary", `{"module":"gpu"}`, "module"},
		{"metrics_summary", `{"module":"network","labels":` + labels + `}`, "labels"},
		{"metrics_summary", `{"module":"network","node":"` + long + `"}`, "node"},
		{"metrics_summary", `{"module":"network","from":"7h"}`, "from"},
		{"metrics_summary", `{"module":"network","to":"2999-01-01T00:00:00Z"}`, "to"},
		{"list_nodes", `{"status":["sleepy"]}`, "status"},
		{"list_nodes", `{"labels":` + labels + `}`, "labels"},
		{"list_nodes", `{"search":"` + long + `"}`, "search"},
		{"list_nodes", `{"cursor":"x"}`, "cursor"},
		{"get_node", `{"node":"` + long + `"}`, "node"},
	} {
		res := call(t, s, tc.tool, tc.args)
		if got := argumentOf(t, res); !res.IsError || got != tc.argument || !strings.Contains(tc.args, `"`+got+`"`) {
			t.Errorf("%s %.80s: names %q, want %q: %s", tc.tool, tc.args, got, tc.argument, textOf(t, res))
		}
	}
}

func argumentOf(t *testing.T, res *sdk.CallToolResult) string {
	t.Helper()
	raw, err := json.Marshal(res.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	var body struct{ Argument string }
	if err := json.Unmarshal(raw, &body); err != nil {
		t.Fatal(err)
	}
	return body.Argument
}

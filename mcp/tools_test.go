package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"golang.org/x/tools/txtar"

	"github.com/telltale-dev/telltale/tenants"
)

// scopesOfSet says which scope each tool set needs.
var scopesOfSet = map[string]tenants.Scopes{observeSet: tenants.Read, diagnoseSet: tenants.Diagnose, adminSet: tenants.Admin}

// internalWords must not reach a client: names of tables, packages and parts.
var internalWords = regexp.MustCompile(`(?i)\b(postgres|sql|pgx|tenantdb|goroutine|panic|row.level|win_\w+|node_head|microdcs|deepsight|cronstable)\b`)

// allTools is the table with everything that is optional.
func allTools() []Tool {
	b := newBackend()
	return toolTable(Services{Registry: b.reg, Tasks: fakeTasks{b}, Events: fakeEvents{b}, Explain: fakeExplain{b}, Tokens: fakeAdmin{}, Audit: fakeAdmin{}, Usage: fakeAdmin{}})
}

func TestEveryTool(t *testing.T) {
	seen := map[string]bool{}
	for _, tool := range allTools() {
		t.Run(tool.Name, func(t *testing.T) {
			if !regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`).MatchString(tool.Name) || len(tool.Name) > 25 {
				t.Error("a name is verb_noun of at most 25 characters")
			}
			if seen[tool.Name] {
				t.Error("the name occurs twice")
			}
			seen[tool.Name] = true
			if want, ok := scopesOfSet[tool.Set]; !ok || tool.Scope != want {
				t.Errorf("set %q and scope %s do not fit", tool.Set, tool.Scope)
			}
			if tool.Title == "" || len(tool.Description) < 80 || len(tool.Description) > 700 || !strings.Contains(tool.Description, "Use ") && !strings.Contains(tool.Description, "Start here") {
				t.Errorf("title %q, description of %d bytes: say what it answers, when to use it, what next", tool.Title, len(tool.Description))
			}
			if !strings.Contains(instructions, tool.Name) {
				t.Error("the instructions do not say which question starts with it")
			}
			hints := tool.hints()
			if hints.OpenWorldHint == nil || *hints.OpenWorldHint || hints.ReadOnlyHint == tool.Writes || tool.Writes != (hints.DestructiveHint != nil) || tool.Writes && *hints.DestructiveHint != tool.Destructive {
				t.Errorf("hints %+v", hints)
			}
			if tool.Output == nil || tool.Run == nil {
				t.Error("a tool has an output shape and a function")
			}
			raw, err := json.Marshal(tool.word(true))
			if err != nil {
				t.Fatal(err)
			}
			if m := internalWords.Find(raw); m != nil {
				t.Errorf("internal word %q", m)
			}
			checkSchema(t, schema(tool.Args), tool.Args)
			checkPortable(t, outputSchema(tool.Output))
			if _, task := fullRegistry().Task(tool.Name); task != tool.Gated || task && tool.Deadline <= shortTask {
				t.Error("a tool that starts work on nodes counts against the gate and may take longer than its longest wait")
			}
			for _, a := range tool.Args {
				if a.Name == "limit" && a.Max != 0 {
					t.Error("limit has no maximum in the schema: it is clamped")
				}
				if a.Kind == argInt && a.Name != "limit" && a.Max == 0 && a.Name != "step_s" {
					t.Errorf("%s has no upper bound", a.Name)
				}
			}
		})
	}
}

func checkSchema(t *testing.T, raw []byte, args []Arg) {
	t.Helper()
	checkPortable(t, raw)
	var s struct {
		Type       string                     `json:"type"`
		Extra      *bool                      `json:"additionalProperties"`
		Required   []string                   `json:"required"`
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	if s.Type != "object" || s.Extra == nil || *s.Extra || len(s.Properties) != len(args) || s.Properties == nil {
		t.Errorf("schema %s", raw)
	}
	for _, a := range args {
		if slices.Contains(s.Required, a.Name) != a.Required || a.Required && a.Default != nil {
			t.Errorf("%s: required and default do not fit", a.Name)
		}
	}
}

// checkPortable refuses what some clients cannot read: unions, references,
// types that are lists.
func checkPortable(t *testing.T, raw []byte) {
	t.Helper()
	for _, w := range []string{`"oneOf"`, `"anyOf"`, `"allOf"`, `"$ref"`, `"$defs"`, `"type":[`, `"null"`, `:null`} {
		if bytes.Contains(raw, []byte(w)) {
			t.Errorf("the schema holds %s: %s", w, raw)
		}
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Errorf("not a schema: %v", err)
		return
	}
	if _, err := s.Resolve(nil); err != nil {
		t.Errorf("the schema does not resolve: %v", err)
	}
}

// toolList is the result of tools/list as it travels.
func toolList(t *testing.T, w *world, bearer, query string) json.RawMessage {
	t.Helper()
	r := w.post(t, bearer, query, listCall)
	var m struct {
		Result json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal([]byte(r.rpc()), &m); err != nil || m.Result == nil {
		t.Fatalf("tools/list: %d %s", r.status, r.body)
	}
	return m.Result
}

func TestDefaultListIsSmall(t *testing.T) {
	w := start(t, stub{}, withBackend(newBackend()))
	if n := len(toolList(t, w, "read,diagnose", "")) / 4; n > 4000 {
		t.Errorf("the default list costs %d tokens, at most 4000 are allowed", n)
	} else {
		t.Logf("the default list costs %d tokens", n)
	}
	all := start(t, stub{}, withEverything(newBackend()))
	if n := len(toolList(t, all, everyScope, "")) / 4; n > 12000 {
		t.Errorf("all sets cost %d tokens, at most 12000 are allowed", n)
	} else {
		t.Logf("all sets cost %d tokens", n)
	}
	if n := len(strings.Fields(instructions)); n > 500 {
		t.Errorf("the instructions have %d words, at most 500 are allowed", n)
	}
	if m := internalWords.FindString(instructions); m != "" {
		t.Errorf("internal word %q in the instructions", m)
	}
}

// TestToolSnapshots keeps every word that a client sees of the tools: a change
// must be accepted in the golden file.
func TestToolSnapshots(t *testing.T) {
	standard, everything := start(t, stub{}, withBackend(newBackend())), start(t, stub{}, withEverything(newBackend()))
	ar := &txtar.Archive{Comment: []byte("tools/list by scopes of the caller and query of the URL; go test ./mcp -update accepts a change\n")}
	for _, c := range []struct {
		w             *world
		name          string
		bearer, query string
	}{
		{standard, "", "read", ""}, {standard, "", "read,diagnose", ""}, {standard, "", "payloads", ""}, {standard, "", "admin", ""},
		{standard, "", "read,diagnose", "?readonly=1"}, {standard, "", "read,diagnose", "?toolsets=observe"},
		{standard, "", "read,diagnose", "?exclude=observe,promote_evidence,trace_slow_io"}, {standard, "", "read,diagnose", "?toolsets=diagnose&readonly=1&exclude=trace_slow_io"},
		{everything, "all sets, ", everyScope, ""}, {everything, "all sets, ", everyScope, "?toolsets=admin"}, {everything, "all sets, ", "read,diagnose", ""},
	} {
		ar.Files = append(ar.Files, txtar.File{Name: c.name + c.bearer + c.query, Data: pretty(t, toolList(t, c.w, c.bearer, c.query))})
	}
	// The same list needs no second copy.
	for i := 1; i < len(ar.Files); i++ {
		if j := slices.IndexFunc(ar.Files[:i], func(f txtar.File) bool { return bytes.Equal(f.Data, ar.Files[i].Data) }); j >= 0 {
			ar.Files[i].Data = fmt.Appendf(nil, "the same as %s\n", ar.Files[j].Name)
		}
	}
	golden(t, "tools.txtar", txtar.Format(ar))
}

func TestOutputSchemaSnapshots(t *testing.T) {
	ar := &txtar.Archive{Comment: []byte("shape of the structured answers\n")}
	for _, tool := range allTools() {
		ar.Files = append(ar.Files, txtar.File{Name: tool.Name, Data: pretty(t, outputSchema(tool.Output))})
	}
	for i := 1; i < len(ar.Files); i++ {
		if j := slices.IndexFunc(ar.Files[:i], func(f txtar.File) bool { return bytes.Equal(f.Data, ar.Files[i].Data) }); j >= 0 {
			ar.Files[i].Data = fmt.Appendf(nil, "the same as %s\n", ar.Files[j].Name)
		}
	}
	golden(t, "outputs.txtar", txtar.Format(ar))
}

func pretty(t *testing.T, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", " "); err != nil {
		t.Fatal(err)
	}
	return append(b.Bytes(), '\n')
}

// TestConversations keeps what a model reads of each tool.
func TestConversations(t *testing.T) {
	w := start(t, stub{nodes: stubNodes(12)}, nil)
	s := connect(t, w.URL+"/t/acme/mcp", "read", "")
	ar := &txtar.Archive{Comment: []byte("text and structured content of answers\n")}
	tools := toolTable(Services{Registry: registry()})
	for _, c := range []struct{ tool, args string }{
		{"fleet_overview", "{}"},
		{"list_nodes", `{"limit":3}`},
		{"list_nodes", `{"limit":1000000000,"status":["online"]}`},
		{"get_node", `{"node":"node-001"}`},
		{"get_node", `{"node":"nobody"}`},
		{"get_node", `{}`},
		{"metrics_summary", `{"module":"network"}`},
		{"metrics_summary", `{"module":"gpu"}`},
		{"metrics_summary", `{"module":"network","from":"5m","to":"10m"}`},
		{"query_metrics", `{"metrics":["network.retransmit_segments"],"format":"detailed"}`},
		{"query_metrics", `{"metrics":["network.retransmit_segments"],"step_s":15}`},
		{"list_nodes", `{"limit":"x"}`},
		{"list_nodes", `{"colour":"red"}`},
		{"list_nodes", `{"limit":0}`},
		{"list_nodes", `{"status":["sleepy"]}`},
		{"list_nodes", `{"labels":{"a":1}}`},
		{"list_nodes", `{"cursor":"x"}`},
	} {
		res := call(t, s, c.tool, c.args)
		raw, err := json.Marshal(res.StructuredContent)
		if err != nil {
			t.Fatal(err)
		}
		if !res.IsError {
			i := slices.IndexFunc(tools, func(x Tool) bool { return x.Name == c.tool })
			conforms(t, c.tool, outputSchema(tools[i].Output), raw)
		}
		body := fmt.Sprintf("isError: %t\n%s\n--\n%s", res.IsError, textOf(t, res), pretty(t, raw))
		ar.Files = append(ar.Files, txtar.File{Name: c.tool + " " + c.args, Data: []byte(body)})
	}
	golden(t, "answers.txtar", txtar.Format(ar))
}

func conforms(t *testing.T, name string, schema, doc []byte) {
	t.Helper()
	var s jsonschema.Schema
	if err := json.Unmarshal(schema, &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(doc, &v); err != nil {
		t.Fatal(err)
	}
	if err := r.Validate(v); err != nil {
		t.Errorf("%s: the answer does not fit its output schema: %v\n%s", name, err, doc)
	}
	callable(t, name, doc)
}

package mcp

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// TestMetricNamesExist: whoever copies a metric's name from a description, an
// instruction, a manual or a help text gets an answer.
func TestMetricNamesExist(t *testing.T) {
	reg := fullRegistry()
	var modules []string
	for _, c := range reg.Components() {
		modules = append(modules, c.Name)
	}
	name := regexp.MustCompile(`(?:^|[^\w/.-])((?:` + strings.Join(modules, "|") + `)\.[a-z][a-z0-9_]*)`)
	found := 0
	check := func(where, text string) {
		for _, m := range name.FindAllStringSubmatch(text, -1) {
			found++
			if _, ok := reg.Metric(m[1]); !ok {
				t.Errorf("%s names %s, which is no metric", where, m[1])
			}
		}
	}
	check("the instructions", instructions)
	for _, tool := range allTools() {
		raw, err := json.Marshal(tool.word(true))
		if err != nil {
			t.Fatal(err)
		}
		check(tool.Name, string(raw))
	}
	w := start(t, stub{}, withBackend(newBackend()))
	s := connect(t, w.URL+"/t/acme/mcp", "read", "")
	for r, err := range s.Resources(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		check(r.URI, r.Description)
	}
	if found == 0 {
		t.Error("no tool gives an example")
	}
	for _, root := range []string{"../README.md", "../CHANGELOG.md", "../docs", "../api/rest/openapi.yaml", "../cmd/telltale", "."} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			ext := filepath.Ext(path)
			if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") || ext != ".md" && ext != ".yaml" && ext != ".yml" && ext != ".go" {
				return err
			}
			raw, err := os.ReadFile(path)
			check(path, string(raw))
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestNamesInWordsExist reads the prompts and the instructions as a model
// does: every word that looks like a name must be one.
func TestNamesInWordsExist(t *testing.T) {
	reg := fullRegistry()
	known := map[string]bool{}
	for _, tool := range allTools() {
		known[tool.Name] = true
		for _, a := range tool.Args {
			known[a.Name] = true
			for _, e := range a.Enum {
				known[e] = true
			}
		}
	}
	for _, c := range reg.Components() {
		known[c.Name] = true
		for _, k := range c.Events {
			known[k.Name] = true
		}
	}
	for _, p := range prompts() {
		known[p.name] = true
	}
	for name := range fieldsOf(allTools()) {
		known[name] = true
	}
	for _, word := range []string{inspector.ReasonPidGone, "no_data"} { // reasons of a refusal and of a gap
		known[word] = true
	}
	w := start(t, stub{nodes: stubNodes(1)}, withBackend(newBackend()))
	s := connect(t, w.URL+"/t/acme/mcp", "read,diagnose", "")
	uris := map[string]bool{"telltale://metrics/{module}": true}
	for r, err := range s.Resources(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		uris[r.URI] = true
	}
	for r, err := range s.ResourceTemplates(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		uris[r.URITemplate] = true
	}
	texts := map[string]string{"the instructions": instructions}
	for _, p := range prompts() {
		for _, node := range []string{"", "db1"} {
			text, err := p.write(node)
			if err != nil {
				t.Fatal(err)
			}
			texts[p.name+" "+node] = p.title + " " + p.words + " " + text
		}
	}
	uri := regexp.MustCompile(`telltale://[a-z_/{}]+`)
	metric := regexp.MustCompile(`\b(?:network|storage|process|host)\.[a-z][a-z0-9_]*`)
	word := regexp.MustCompile(`\b[a-z]+(?:_[a-z0-9]+)+\b`)
	upper := regexp.MustCompile(`\b[A-Z]+_[A-Z_]+\b`)
	found := 0
	for where, text := range texts {
		for _, u := range uri.FindAllString(text, -1) {
			found++
			if !uris[u] {
				t.Errorf("%s names the resource %s, which does not exist", where, u)
			}
		}
		text = uri.ReplaceAllString(text, "")
		for _, m := range metric.FindAllString(text, -1) {
			found++
			if _, ok := reg.Metric(m); !ok {
				t.Errorf("%s names the metric %s, which does not exist", where, m)
			}
		}
		text = metric.ReplaceAllString(text, "")
		for _, name := range word.FindAllString(text, -1) {
			found++
			if !known[name] {
				t.Errorf("%s names %s, which is no tool, argument, value, event, prompt or field", where, name)
			}
		}
		for _, name := range upper.FindAllString(text, -1) {
			if !slices.ContainsFunc(fault.Kinds(), func(k fault.Kind) bool { return k.String() == name }) {
				t.Errorf("%s names %s, which is no kind of error", where, name)
			}
		}
		if m := internalWords.FindString(text); m != "" {
			t.Errorf("internal word %q in %s", m, where)
		}
	}
	if found < 60 {
		t.Errorf("only %d names were found: the check sees nothing", found)
	}
}

// fieldsOf collects the names of all fields of all answers.
func fieldsOf(tools []Tool) map[string]bool {
	out := map[string]bool{}
	var walkSchema func(v any)
	walkSchema = func(v any) {
		m, ok := v.(map[string]any)
		if !ok {
			return
		}
		if props, ok := m["properties"].(map[string]any); ok {
			for name, p := range props {
				out[name] = true
				walkSchema(p)
			}
		}
		walkSchema(m["items"])
		walkSchema(m["additionalProperties"])
	}
	for _, t := range tools {
		var v any
		if json.Unmarshal(outputSchema(t.Output), &v) == nil {
			walkSchema(v)
		}
	}
	return out
}

package mcp

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
)

// TestMetricNamesExist: whoever copies a metric's name from a description, an
// instruction, a manual or a help text gets an answer.
func TestMetricNamesExist(t *testing.T) {
	var reg inspector.Registry
	all.Register(&reg)
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
	for _, tool := range toolTable(Services{Registry: &reg}) {
		raw, err := json.Marshal(tool.word(true))
		if err != nil {
			t.Fatal(err)
		}
		check(tool.Name, string(raw))
	}
	w := start(t, stub{}, func(c *Config) { c.Services.Registry = &reg })
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

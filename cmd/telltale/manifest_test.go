package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// manifest is server.json as the registry's schema of 2025-12-11 has it, as far
// as a server uses it that is only reached remotely. Unknown members fail.
type manifest struct {
	Schema      string `json:"$schema"`
	Name        string `json:"name"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Version     string `json:"version"`
	Website     string `json:"websiteUrl"`
	Repository  struct {
		URL    string `json:"url"`
		Source string `json:"source"`
	} `json:"repository"`
	Remotes []struct {
		Type      string           `json:"type"`
		URL       string           `json:"url"`
		Variables map[string]input `json:"variables"`
	} `json:"remotes"`
}

type input struct {
	Description string   `json:"description"`
	Format      string   `json:"format"`
	Required    bool     `json:"isRequired"`
	Secret      bool     `json:"isSecret"`
	Default     string   `json:"default"`
	Placeholder string   `json:"placeholder"`
	Value       string   `json:"value"`
	Choices     []string `json:"choices"`
}

var (
	namePattern    = regexp.MustCompile(`^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$`)
	urlPattern     = regexp.MustCompile(`^https?://\S+$`)
	variable       = regexp.MustCompile(`\{([^{}]+)\}`)
	versionPattern = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`) // ranges and "latest" are refused
)

func decodeStrictly(t *testing.T, file string, into any) []byte {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return raw
}

// TestServerManifest holds server.json to the rules of the registry: its schema
// and what it refuses beyond that.
func TestServerManifest(t *testing.T) {
	var m manifest
	decodeStrictly(t, "../../server.json", &m)
	if m.Schema != "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json" {
		t.Errorf("schema %s: read what changed in it before naming another", m.Schema)
	}
	namespace, _, _ := strings.Cut(m.Name, "/")
	if !namePattern.MatchString(m.Name) || len(m.Name) > 200 || !strings.HasPrefix(m.Repository.URL+"/", "https://github.com/"+strings.TrimPrefix(namespace, "io.github.")+"/") || m.Repository.Source != "github" {
		t.Errorf("name %s, repository %+v: the registry proves the name by the repository's owner", m.Name, m.Repository)
	}
	for what, s := range map[string]string{"title": m.Title, "description": m.Description} {
		if n := utf8.RuneCountInString(s); n < 1 || n > 100 {
			t.Errorf("%s has %d characters, at most 100 are allowed", what, n)
		}
	}
	if !versionPattern.MatchString(m.Version) {
		t.Errorf("version %s", m.Version)
	}
	if u, err := url.Parse(m.Website); err != nil || u.Scheme != "https" {
		t.Errorf("website %s", m.Website)
	}
	if len(m.Remotes) != 1 {
		t.Fatalf("%d remotes", len(m.Remotes))
	}
	r := m.Remotes[0]
	if r.Type != "streamable-http" || !urlPattern.MatchString(r.URL) {
		t.Errorf("%s %s", r.Type, r.URL)
	}
	filled, used := r.URL, []string{}
	for _, v := range variable.FindAllStringSubmatch(r.URL, -1) {
		in, ok := r.Variables[v[1]]
		if !ok || !in.Required || in.Secret || in.Description == "" || in.Format != "string" || in.Value != "" || in.Placeholder == "" {
			t.Errorf("variable %s: %+v", v[1], in)
		}
		used = append(used, v[1])
		filled = strings.ReplaceAll(filled, v[0], in.Placeholder)
	}
	slices.Sort(used)
	if want := slices.Sorted(maps.Keys(r.Variables)); !slices.Equal(used, want) {
		t.Errorf("the URL uses %v of %v", used, want)
	}
	if msg := checkURL(filled); msg != "" || filled != "https://telltale.example.com/t/acme/mcp" {
		t.Errorf("%s: %s", filled, msg)
	}
}

// TestProjectConfiguration holds .mcp.json to what the program takes: it works
// with a stored login, and with a token in the environment.
func TestProjectConfiguration(t *testing.T) {
	var conf struct {
		Servers map[string]struct {
			Command string            `json:"command"`
			Args    []string          `json:"args"`
			Env     map[string]string `json:"env"`
		} `json:"mcpServers"`
	}
	decodeStrictly(t, "../../.mcp.json", &conf)
	s := conf.Servers["telltale"]
	if len(conf.Servers) != 1 || s.Command != "bin/telltale" || !slices.Equal(s.Args, []string{"mcp"}) {
		t.Errorf("%+v", conf)
	}
	// A variable without a default keeps clients from reading the file at all.
	fallback := regexp.MustCompile(`^\$\{([A-Z_]+):-(.*)\}$`)
	for name, v := range s.Env {
		m := fallback.FindStringSubmatch(v)
		if m == nil || m[1] != name {
			t.Fatalf("%s: %s", name, v)
		}
		if name == "TELLTALE_URL" && checkURL(m[2]) != "" || name == "TELLTALE_TOKEN" && m[2] != "" {
			t.Errorf("%s defaults to %q", name, m[2])
		}
	}
}

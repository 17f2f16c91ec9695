// Package cmd_test holds the import graph as a table and checks it, and that
// the root documents name what exists.
package cmd_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/telltale-dev/telltale/"

// rule says what the packages that match Who may import beyond the standard
// library: packages of this module, and other modules by prefix. A pattern's
// * stands for one folder; a trailing /... for all below, the folder included.
type rule struct {
	who  string
	may  []string
	mods []string
	why  string
}

var rules = []rule{
	// leaves
	{"tenants/fault", nil, nil, "error kinds and nothing else, so that everything may use them"},
	{"agent/inspector", nil, nil, "the words both sides share: standard library only, so that an application could read them"},
	{"api/telltalev1", nil, []string{"google.golang.org/grpc", "google.golang.org/protobuf"}, "generated"},
	{"web", nil, nil, "embedded files and how to serve them"},
	{"migrations", nil, []string{"github.com/jackc/pgx/v5"}, "SQL files and the one way to apply them"},

	// domain
	{"tenants", []string{"tenants/fault"}, []string{"github.com/google/uuid"}, "ids, scopes, bounds"},
	{"tenants/tenantdb", []string{"tenants", "tenants/fault"}, []string{"github.com/jackc/pgx/v5", "github.com/jackc/puddle/v2"}, "the only way to the database"},
	{"tenants/tenantdb/localpg", nil, []string{"github.com/jackc/pgx/v5"}, "supervises PostgreSQL, knows no tenant"},
	{"tenants/tenantdb/dbtest", []string{"tenants/tenantdb", "tenants/tenantdb/localpg", "migrations"}, []string{"github.com/jackc/pgx/v5"}, "a migrated database per test"},

	// slices: never a sibling
	{"tenants/*", []string{"tenants", "tenants/fault", "tenants/tenantdb", "agent/inspector"}, []string{"github.com/jackc/pgx/v5", "github.com/google/uuid"}, "a slice declares a small interface for what it needs of another; cmd wires it"},
	{"auth", []string{"tenants", "tenants/fault"}, []string{"github.com/google/uuid", "github.com/coreos/go-oidc/v3", "github.com/go-jose/go-jose/v4"}, "its stores are small interfaces that slices satisfy"},
	{"auth/authtest", nil, []string{"github.com/go-jose/go-jose/v4"}, "identity providers for tests; no binary links it"},

	// adapters: none imports another
	{"api/rest", []string{"tenants", "tenants/access", "tenants/audit", "tenants/directory", "tenants/events", "tenants/fault", "tenants/fleet", "tenants/metrics", "tenants/tasks", "auth", "agent/inspector"}, []string{"github.com/go-chi/chi/v5", "github.com/prometheus/client_golang"}, "a thin adapter over the services"},
	{"api/ingest", []string{"tenants", "tenants/fault", "tenants/directory", "tenants/fleet", "tenants/metrics", "tenants/tasks", "auth", "agent/inspector", "api/telltalev1"}, []string{"google.golang.org/grpc", "github.com/prometheus/client_golang", "golang.org/x"}, "gRPC for agents"},
	{"mcp/...", []string{"tenants", "tenants/audit", "tenants/events", "tenants/explain", "tenants/fault", "tenants/fleet", "tenants/metrics", "tenants/tasks", "auth", "agent/inspector"}, []string{"github.com/modelcontextprotocol/go-sdk"}, "a thin adapter over the services; never through REST"},

	// node
	{"agent/bpfload", []string{"agent/inspector"}, []string{"github.com/cilium/ebpf", "golang.org/x/sys"}, "loads programs one by one and classifies what fails"},
	{"agent/cgroups", []string{"agent/inspector"}, nil, "finds control groups by path, id and container, on v1, v2 and both"},
	{"agent/symbols", []string{"agent/inspector"}, []string{"golang.org/x/sys"}, "names code addresses of the kernel and of processes; knows no program"},
	{"agent/inspector/all", []string{"agent/inspector", "agent/inspector/*"}, nil, "the one list of components"},
	{"agent/inspector/*", []string{"agent/inspector"}, nil, "words of one component"},
	{"agent/inspector/*/probe", []string{"agent/inspector", "agent/inspector/*", "agent/bpfload", "agent/cgroups", "agent/symbols"}, []string{"github.com/cilium/ebpf", "golang.org/x/sys"}, "agent side of a probe module"},
	{"agent/inspector/*/collect", []string{"agent/inspector", "agent/inspector/*"}, []string{"golang.org/x/sys"}, "agent side of an inspector, with its one client library"},
	{"agent/collectors", []string{"agent/runner", "agent/bpfload", "agent/inspector", "agent/inspector/*", "agent/inspector/*/probe", "agent/inspector/*/collect"}, nil, "the list of what an agent runs"},
	{"agent/runner", []string{"agent/inspector"}, nil, "ticks and deadlines; knows no component"},
	{"agent/uplink", []string{"agent/inspector", "api/telltalev1"}, []string{"google.golang.org/grpc"}, "streams and replay"},

	// mains
	{"cmd/telltaled", []string{"api/rest", "api/ingest", "mcp", "tenants", "tenants/...", "auth", "migrations", "web", "agent/inspector", "agent/inspector/all"}, []string{"github.com/go-chi/chi/v5", "github.com/prometheus/client_golang", "gopkg.in/yaml.v3", "github.com/jackc/pgx/v5", "github.com/google/uuid"}, "builds the server; links no collector or probe"},
	{"cmd/telltale-agent", []string{"agent/..."}, []string{"gopkg.in/yaml.v3", "golang.org/x", "google.golang.org/grpc"}, "builds the agent; links no server package"},
	{"cmd/telltale", []string{"cmd/telltale/login"}, []string{"github.com/modelcontextprotocol/go-sdk"}, "a client like any other: links no server or agent package"},
	{"cmd/telltale/login", nil, []string{"github.com/modelcontextprotocol/go-sdk"}, "signs in and keeps what it got, as any OAuth client would"},
}

// forbidden names edges that a table of what is allowed could let slip when a
// pattern grows. Each fails too when one of its ends no longer exists, so that
// a rename cannot hollow it out.
var forbidden = []struct{ from, to, why string }{
	{"mcp", "api/rest", "MCP and REST share services, not each other"},
	{"api/rest", "mcp", "MCP and REST share services, not each other"},
	{"api/ingest", "api/rest", "adapters do not know each other"},
	{"cmd/telltaled", "agent/collectors", "the server links no collector"},
	{"cmd/telltaled", "agent/uplink", "the server links no agent code"},
	{"cmd/telltale-agent", "tenants/tenantdb", "the agent never sees a database"},
	{"auth", "tenants/access", "auth's stores are interfaces"},
	{"cmd/telltaled", "auth/authtest", "identity providers of tests stay out of the server"},
	{"tenants/audit", "tenants/access", "slices are siblings"},
	{"tenants/metrics", "tenants/fleet", "slices are siblings"},
	{"tenants/fleet", "tenants/directory", "slices are siblings"},
	{"tenants/events", "tenants/tasks", "slices are siblings"},
	{"tenants/explain", "tenants/events", "explain asks the slices through its own small interfaces"},
	{"tenants/tasks", "api/ingest", "a slice knows no wire: ingest hands it an outbox"},
	{"agent/runner", "agent/uplink", "who runs tasks knows no wire"},
}

func TestImportGraph(t *testing.T) {
	pkgs := imports(t)
	used := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(pkgs)) {
		r, ok := ruleFor(name)
		if !ok {
			if strings.HasPrefix(name, "bench/") || name == "bench" {
				continue // measures everything, is imported by nothing
			}
			t.Errorf("%s has no row in the import table: add one with its reason", name)
			continue
		}
		used[r.who] = true
		for imp := range pkgs[name] {
			entry, ok := allowed(r, imp)
			if !ok {
				t.Errorf("%s imports %s, which its row does not allow (%s: %s)", name, imp, r.who, r.why)
			}
			used[r.who+" → "+entry] = true
		}
	}
	for _, r := range rules {
		if !used[r.who] {
			t.Errorf("the row %q matches no package any more: remove or mend it", r.who)
		}
		for _, entry := range slices.Concat(r.may, r.mods) {
			if !used[r.who+" → "+entry] {
				t.Errorf("the row %q allows %s, which nobody there imports: remove it", r.who, entry)
			}
		}
	}
	for _, f := range forbidden {
		if pkgs[f.from] == nil || pkgs[f.to] == nil {
			t.Errorf("forbidden edge %s → %s names a package that is gone: mend the row", f.from, f.to)
			continue
		}
		if reaches(pkgs, f.from, f.to, map[string]bool{}) {
			t.Errorf("%s reaches %s: %s", f.from, f.to, f.why)
		}
	}
}

// TestDocumentsNameWhatIs holds the paths in the root documents to the tree.
func TestDocumentsNameWhatIs(t *testing.T) {
	path := regexp.MustCompile("`((?:agent|api|auth|bench|cmd|deploy|docs|mcp|migrations|tenants|web)/[a-z0-9_./-]*[a-z0-9_])`")
	for _, doc := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs/decisions.md", "bench/README.md"} {
		text, err := os.ReadFile(filepath.Join("..", doc))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range path.FindAllSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join("..", string(m[1]))); err != nil {
				t.Errorf("%s names %s, which does not exist", doc, m[1])
			}
		}
	}
}

// imports maps each package folder to what its non-test files import beyond
// the standard library.
func imports(t *testing.T) map[string]map[string]bool {
	t.Helper()
	out := map[string]map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == "testdata" || (strings.HasPrefix(d.Name(), ".") && d.Name() != "..")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel("..", filepath.Dir(path))
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		if out[rel] == nil {
			out[rel] = map[string]bool{}
		}
		for _, s := range f.Imports {
			p, err := strconv.Unquote(s.Path.Value)
			if err != nil {
				return err
			}
			if strings.Contains(strings.SplitN(p, "/", 2)[0], ".") {
				out[rel][p] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// ruleFor returns the most particular row: the first exact match, else the
// first pattern.
func ruleFor(name string) (rule, bool) {
	for _, r := range rules {
		if r.who == name {
			return r, true
		}
	}
	for _, r := range rules {
		if matches(r.who, name) {
			return r, true
		}
	}
	return rule{}, false
}

// allowed finds the entry of a row that lets an import in; within a pattern
// for a whole tree its packages may import each other.
func allowed(r rule, imp string) (entry string, ok bool) {
	if rel, ours := strings.CutPrefix(imp, module); ours {
		if strings.HasSuffix(r.who, "/...") && matches(r.who, rel) {
			return "", true
		}
		for _, p := range r.may {
			if matches(p, rel) {
				return p, true
			}
		}
		return "", false
	}
	for _, m := range r.mods {
		if imp == m || strings.HasPrefix(imp, m+"/") {
			return m, true
		}
	}
	return "", false
}

func matches(pattern, name string) bool {
	if p, ok := strings.CutSuffix(pattern, "/..."); ok {
		return name == p || strings.HasPrefix(name, p+"/")
	}
	ok, err := filepath.Match(pattern, name)
	return err == nil && ok
}

func reaches(pkgs map[string]map[string]bool, from, to string, seen map[string]bool) bool {
	if seen[from] {
		return false
	}
	seen[from] = true
	for imp := range pkgs[from] {
		rel, ok := strings.CutPrefix(imp, module)
		if ok && (rel == to || reaches(pkgs, rel, to, seen)) {
			return true
		}
	}
	return false
}

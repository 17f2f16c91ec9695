package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

var update = flag.Bool("update", false, "write the golden files anew")

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func TestEveryKindHasAStatus(t *testing.T) {
	for _, k := range fault.Kinds() {
		if status := statusOf(&fault.Error{Kind: k}); status < 400 || http.StatusText(status) == "" {
			t.Errorf("%s has the status %d", k, status)
		}
	}
	for reason, status := range reasonStatus {
		if p := problemOf(&fault.Error{Reason: reason}, ""); p.Status != status || status < 400 || p.Title == "" {
			t.Errorf("the reason %s has the status %d and the title %q", reason, p.Status, p.Title)
		}
	}
}

func ask(err error) reply {
	s := New(Config{Log: quiet()})
	rec := httptest.NewRecorder()
	rec.Header().Set(auth.ReferenceHeader, "7q2n6c4xkd5mb3wa2hvt")
	s.fail(rec, httptest.NewRequest("GET", "/", nil), err)
	res := rec.Result()
	b, _ := io.ReadAll(res.Body) // from memory
	return reply{res, b}
}

func TestProblemDocuments(t *testing.T) {
	secret := errors.New("pq: relation \"win\" does not exist, password=hunter2")
	for name, err := range map[string]error{
		"invalid":      fault.Bad("limit", "want a whole number from 1"),
		"denied":       tenants.Scope{Tenant: tenants.NewTenantID(), Granted: tenants.Read}.Require(tenants.Admin),
		"not_found":    fault.New(fault.NotFound, "unknown_node", `no node "web-7"`).Do("list the nodes to see their ids and names"),
		"conflict":     fault.New(fault.Conflict, "changed", "the object changed"),
		"exhausted":    fault.New(fault.Exhausted, "rate", "too many requests"),
		"too_large":    errTooLarge,
		"unavailable":  fault.New(fault.Unavailable, "database", "the database is away").Because(secret),
		"deadline":     fmt.Errorf("query: %w", fault.New(fault.Deadline, "deadline", "the query took too long").Because(secret)),
		"precondition": fault.New(fault.Precondition, "mcp_off", "the feature is off"),
		"internal":     fmt.Errorf("read nodes of tenant 7: %w", secret),
		"bare":         &fault.Error{Kind: fault.Internal},
		"hostile":      fault.Bad("a\u202eb\x00", "the value \xff\u200b is not text"),
	} {
		t.Run(name, func(t *testing.T) {
			r := ask(err)
			if strings.Contains(string(r.body), "hunter2") || strings.Contains(string(r.body), "relation") || strings.Contains(string(r.body), "tenant 7") {
				t.Fatalf("internal text is shown: %s", r.body)
			}
			p := r.problem(t)
			if p.Status != r.StatusCode || p.Title == "" || p.Next == nil || p.ReferenceID != r.Header.Get(auth.ReferenceHeader) {
				t.Errorf("%d %+v", r.StatusCode, p)
			}
			var pretty bytes.Buffer
			if err := json.Indent(&pretty, r.body, "", "  "); err != nil {
				t.Fatal(err)
			}
			golden(t, "problem_"+name+".json", pretty.Bytes())
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s: run with -update if this is meant\n%s", name, d)
	}
}

// TestValueThatCannotBeShown must not leave half an answer behind.
func TestValueThatCannotBeShown(t *testing.T) {
	s := New(Config{Log: quiet()})
	rec := httptest.NewRecorder()
	s.write(rec, httptest.NewRequest("GET", "/", nil), http.StatusOK, map[string]any{"f": func() {}})
	if rec.Code != 500 || strings.Contains(rec.Body.String(), "func") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

func TestReadiness(t *testing.T) {
	asked, now := 0, time.Now()
	s := New(Config{Log: quiet(), Now: func() time.Time { return now }, Ready: []Check{
		{"database", func(context.Context) error {
			asked++
			return fault.New(fault.Unavailable, "database", "the database is away").Because(errors.New("dial /run/x: hunter2"))
		}},
		{"migrations", func(context.Context) error { return nil }},
		{"other", func(context.Context) error { return errors.New("secret detail") }},
	}})
	for range 5 {
		r := doOn(s, "GET", "/readyz", "", "")
		if r.StatusCode != 503 || r.Header.Get(auth.ReferenceHeader) == "" || strings.Contains(string(r.body), "hunter2") || strings.Contains(string(r.body), "secret detail") {
			t.Errorf("%d %v %s", r.StatusCode, r.Header, r.body)
		}
		want := `{"status":"not_ready","checks":[{"name":"database","ok":false,"detail":"the database is away"},{"name":"migrations","ok":true},{"name":"other","ok":false,"detail":"the server failed to answer"}]}`
		if got := strings.TrimSpace(string(r.body)); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if asked != 1 {
		t.Errorf("the database was asked %d times for five callers at once", asked)
	}
	now = now.Add(readyFor)
	doOn(s, "GET", "/readyz", "", "")
	if asked != 2 {
		t.Errorf("the database was asked %d times, want again after a moment", asked)
	}
}

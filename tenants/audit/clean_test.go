package audit

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

func TestScrub(t *testing.T) {
	operator, _ := tenants.MintSecret(tenants.OperatorSecret)
	enrol, _ := tenants.MintSecret(tenants.EnrolSecret)
	session, _ := tenants.MintSecret(tenants.SessionSecret)
	jwt := "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl-_x"
	for _, secret := range []string{operator, enrol, session, jwt, operator[:20], jwt[:18]} {
		for _, form := range []string{"%s", "node=%s", `{"token":"%s"}`, "x %s y", "Bearer %s", "bearer%20%s", "%s,%s", "\\u0022%s\\u0022"} {
			text := strings.ReplaceAll(form, "%s", secret)
			got := Scrub(text)
			if strings.Contains(got, secret[4:]) || !strings.Contains(got, "[redacted]") {
				t.Errorf("%q → %q", text, got)
			}
		}
	}
	for _, opaque := range []string{"url=https://user:hunter2@idp.example/x", "https://hunter2@idp.example", `"https://a:hunter2@b"`, "Authorization: Bearer hunter2-opaque", "BEARER  hunter2-opaque", `{"auth":"Basic aHVudGVyMi1vcGFxdWU="}`} {
		if got := Scrub(opaque); strings.Contains(got, "hunter2") || strings.Contains(got, "aHVud") {
			t.Errorf("%q → %q", opaque, got)
		}
	}
	for _, plain := range []string{"", "{}", `{node="db-1" duration_s=5}`, "attached bottle", "tt", "the basics", "POST tokens", "eyJ", "https://idp.example/a@b?c=d@e", "//"} {
		if got := Scrub(plain); got != plain {
			t.Errorf("%q → %q", plain, got)
		}
	}
}

// Whatever is around a secret, and wherever the text is cut, no row shows it.
func FuzzClean(f *testing.F) {
	for _, s := range []string{"", "node=", "\x00", "é\xff", strings.Repeat("x", 995), strings.Repeat("é", 700)} {
		f.Add(s, s, uint64(1))
	}
	s := &Service{now: func() time.Time { return start }, life: "r"}
	f.Fuzz(func(t *testing.T, before, after string, seed uint64) {
		secret, _ := tenants.MintSecret([]tenants.SecretKind{tenants.OperatorSecret, tenants.EnrolSecret, tenants.SessionSecret}[seed%3])
		text := before + " " + secret + " " + after
		r := s.rowOf(Entry{Action: text, Arguments: text, Reason: text, Surface: text, Reference: text, Principal: tenants.Principal{Name: text, Client: text}})
		for _, got := range []string{r.action, r.arguments, r.reason, r.surface, r.reference, r.name, r.client} {
			if i := strings.Index(secret, "_"); strings.Contains(got, secret[i+1:i+12]) {
				t.Errorf("%q shows %q", got, secret)
			}
			if len(got) > maxArguments || !utf8.ValidString(got) || inspector.CleanText(got) != got {
				t.Errorf("not clean: %q", got)
			}
		}
	})
}

// Two different rows never have the same digest because of how their texts are
// put together.
func TestDigestTellsRowsApart(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	seen := map[digest]string{}
	for range 5000 {
		word := func() string { return strings.Repeat("a", rnd.IntN(3)) }
		r := row{kind: word(), principal: word(), name: word(), action: word(), arguments: word(), reason: word(), bytes: int64(rnd.IntN(2)), seq: int64(rnd.IntN(2))}
		text := fmt.Sprintf("%+v", r)
		if was, ok := seen[r.digest()]; ok && was != text {
			t.Fatalf("%s\n%s", was, text)
		}
		seen[r.digest()] = text
	}
}

// Every statement fits the schema.
func TestStatements(t *testing.T) {
	conn := dbtest.Connect(t, dbtest.DSN(t))
	file, err := parser.ParseFile(token.NewFileSet(), "store.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	var value func(ast.Expr) string
	value = func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			s, err := strconv.Unquote(e.Value)
			if err != nil {
				t.Fatal(err)
			}
			return s
		case *ast.BinaryExpr:
			return value(e.X) + value(e.Y)
		case *ast.Ident:
			return texts[e.Name]
		}
		t.Fatalf("%T", e)
		return ""
	}
	n := 0
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, name := range spec.Names {
			texts[name.Name] = value(spec.Values[i])
			sql := texts[name.Name]
			switch name.Name {
			case "sqlColumns", "sqlAttemptColumns", "sqlList", "sqlListPrincipal", "sqlListKind", "sqlListAction", "sqlListOutcome", "sqlListReference":
				continue
			case "sqlListEnd":
				sql = sqlList + sqlListPrincipal + "$6" + sqlListKind + "$7" + sqlListAction + "$8" + sqlListOutcome + "$9" + sqlListReference + "$10" + sqlListEnd
			}
			n++
			if _, err := conn.Prepare(t.Context(), name.Name, sql); err != nil {
				t.Errorf("%s: %v", name.Name, err)
			}
		}
		return true
	})
	if n < 20 {
		t.Errorf("only %d statements", n)
	}
}

// Whatever the forms of credentials match is looked at.
func FuzzScrub(f *testing.F) {
	for _, s := range []string{"a tt_abcdefghij", "eyJabcdefghijk", "BEARER x", "bA\u017fic x", "https://u:p@h", "none", "Basic  x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, want := Scrub(s), secrets.ReplaceAllString(s, "[redacted]"); got != want {
			t.Errorf("%q became %q, want %q", s, got, want)
		}
	})
}

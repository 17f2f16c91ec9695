package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/auth/authtest"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// replicas are two servers on one database, which trust one issuer's TLS.
type replicas struct {
	t      *testing.T
	a, b   *server
	signer *authtest.Signer
}

// TestTwoServers puts two servers on one database: nothing of another tenant is
// seen, bad input is refused without a trace in memory, and what an
// administrator takes away at one of them is gone at both.
func TestTwoServers(t *testing.T) {
	t.Parallel()
	signer, cert := authtest.NewTLSSigner(t)
	a := newServer(t, dbtest.DSN(t))
	a.env = []string{"SSL_CERT_FILE=" + cert}
	a.args = append(a.args, "--issuer-networks", "127.0.0.0/8", "--toolsets", strings.Join([]string{"observe", "diagnose", "jobs", "apps", "act", "maintain", "admin"}, ","))
	a.start()
	b := a.twin()
	b.start()
	r := &replicas{t, a, b, signer}
	t.Run("nothing of another tenant", func(t *testing.T) { nothingOfOthers(t, r) })
	t.Run("bad input", func(t *testing.T) { t.Parallel(); badRequests(t, a) })
	t.Run("withdrawals", func(t *testing.T) { t.Parallel(); withdrawals(t, r) })
}

// tenant is server.tenant with an administrator and the issuer, whose tokens
// name this tenant's canonical resource at each replica.
func (r *replicas) tenant(t *testing.T, slug string) tenant {
	t.Helper()
	x := r.a.tenant(slug, "team="+slug)
	x.Tokens["admin"] = r.a.admin("token", "create", "--tenant", slug, "--name", "admin", "--scopes", "read,admin")
	return x
}

// jwt is an access token that is good at either replica.
func (r *replicas) jwt(t *testing.T, x tenant, subject string, groups ...string) string {
	t.Helper()
	return r.signer.Access(t, x.MCPURL, subject, "telltale:read telltale:diagnose telltale:admin", groups, func(d *authtest.Draft) {
		d.Claims["aud"] = []string{r.a.at(x).MCPURL, r.b.at(x).MCPURL}
	})
}

// both waits until a token is answered so by both servers, at REST and at MCP
// (0: not asked), and fails when that takes longer than is promised.
func (r *replicas) both(t *testing.T, what string, x tenant, token string, rest, mcp int) {
	t.Helper()
	began := time.Now()
	for _, s := range []*server{r.a, r.b} {
		var got, gotMCP int
		for deadline := began.Add(tenants.RevocationDelay); ; {
			got, gotMCP = knock(t, s.at(x).RESTURL+"/overview", token).status, mcp
			if mcp != 0 {
				gotMCP = knock(t, s.at(x).MCPURL, token).status
			}
			if got == rest && gotMCP == mcp || time.Now().After(deadline) {
				break
			}
			<-time.After(25 * time.Millisecond)
		}
		if got != rest || gotMCP != mcp {
			t.Errorf("%s at %s: REST %d and MCP %d after %s, want %d and %d", what, s.http, got, gotMCP, time.Since(began).Round(time.Millisecond), rest, mcp)
		}
	}
	t.Logf("%s: both servers after %s", what, time.Since(began).Round(10*time.Millisecond))
}

// do is a request of the tenant's administrator that must succeed.
func (r *replicas) do(t *testing.T, s *server, x tenant, method, path, body string) answer {
	t.Helper()
	a := call(t, method, s.at(x).RESTURL+path, x.Tokens["admin"], body, "Content-Type", "application/json")
	if a.status/100 != 2 {
		t.Fatalf("%s %s: %d %s", method, path, a.status, a.body)
	}
	return a
}

var idPattern = regexp.MustCompile(`"id":"([^"]+)"`)

// withdrawals takes one thing after the other away, mostly at the one server,
// and looks at both; the other tenant goes on all the while.
func withdrawals(t *testing.T, r *replicas) {
	x, other := r.tenant(t, "wane"), r.tenant(t, "stay")
	issuer := trustSigner(t, x, r.signer, nil)
	trustSigner(t, other, r.signer, nil)
	otherSRE := r.jwt(t, other, "o", "stay-sre")
	sre, mia := r.jwt(t, x, "u", "wane-sre"), r.jwt(t, x, "mia")
	r.both(t, "the issuer's people", x, sre, 200, 200)
	r.both(t, "the other tenant's people", other, otherSRE, 200, 200)
	r.both(t, "a stranger", x, mia, 403, 403)

	member := idPattern.FindStringSubmatch(r.do(t, r.a, x, "POST", "/members", fmt.Sprintf(`{"issuer_id":%q,"subject":"mia","scopes":["telltale:read"]}`, issuer)).body)[1]
	r.both(t, "a new member", x, mia, 200, 200)
	r.do(t, r.b, x, "DELETE", "/members/"+member, "")
	r.both(t, "a removed member", x, mia, 403, 403)

	made := r.do(t, r.a, x, "POST", "/tokens", `{"name":"short lived","scopes":["telltale:read"]}`).body
	secret := regexp.MustCompile(`"secret":"([^"]+)"`).FindStringSubmatch(made)[1]
	r.both(t, "a new token", x, secret, 200, 200)
	r.do(t, r.b, x, "DELETE", "/tokens/"+idPattern.FindStringSubmatch(made)[1], "")
	r.both(t, "a revoked token", x, secret, 401, 401)

	r.do(t, r.a, x, "PUT", "/issuers/"+issuer+"?force=true", fmt.Sprintf(`{"client_id":%q,"opaque":true,"roles":[{"claim":"groups","value":"wane-viewers","scopes":["telltale:read"]}]}`, authtest.IntrospectID))
	r.both(t, "a role taken away", x, sre, 403, 403)
	r.do(t, r.b, x, "PUT", "/issuers/"+issuer+"?force=true", fmt.Sprintf(`{"client_id":%q,"opaque":true,"roles":[{"claim":"groups","value":"wane-sre","scopes":["telltale:read"]}]}`, authtest.IntrospectID))
	r.both(t, "a role given back", x, sre, 200, 200)

	r.a.admin("tenant", "mcp", "wane", "off")
	r.both(t, "MCP off", x, sre, 200, 403)
	r.a.admin("tenant", "mcp", "wane", "on")
	r.both(t, "MCP on", x, sre, 200, 200)

	r.do(t, r.a, x, "PUT", "/tenant", `{"suspended":true}`)
	r.both(t, "suspended by its administrator", x, sre, 403, 403)
	r.both(t, "suspended, an operator token", x, x.Tokens["read"], 403, 403)
	r.do(t, r.b, x, "PUT", "/tenant", `{"suspended":false}`)
	r.both(t, "resumed by its administrator", x, sre, 200, 200)
	r.a.admin("tenant", "suspend", "wane")
	r.both(t, "suspended from the command line", x, sre, 403, 403)
	if a := call(t, http.MethodPut, r.b.at(x).RESTURL+"/tenant", x.Tokens["admin"], `{"suspended":false}`, "Content-Type", "application/json"); a.status != http.StatusForbidden {
		t.Errorf("an administrator ends the operator's suspension: %d %s", a.status, a.body)
	}
	r.a.admin("tenant", "suspend", "--resume", "wane")
	r.both(t, "resumed from the command line", x, sre, 200, 200)

	r.do(t, r.b, x, "DELETE", "/issuers/"+issuer, "")
	r.both(t, "an issuer removed", x, sre, 401, 401)

	// The record of all this, made by two servers and a command line, is whole.
	sealed := regexp.MustCompile(`(?m)^wane +([1-9]\d*) +(\d+) .* 0 +OK$`)
	poll(t, 30*time.Second, "sealed audit of everything", func() bool { return sealed.MatchString(r.a.admin("audit", "verify")) })
	verdict := r.a.admin("audit", "verify")
	t.Logf("audit verify:\n%s", verdict)
	if strings.Contains(verdict, "BROKEN") || !strings.Contains(verdict, "wane: head: seal ") {
		t.Errorf("the audit:\n%s", verdict)
	}
	for _, action := range []string{"PUT tenant", "DELETE issuers/{issuer}", "tenant suspend", "DELETE members/{member}"} {
		if a := r.do(t, r.a, x, "GET", "/audit?limit=200", ""); !strings.Contains(a.body, `"`+action+`"`) {
			t.Errorf("the audit has no %q", action)
		}
	}

	export := r.do(t, r.b, x, "GET", "/tenant/export", "").body
	if lines := strings.Split(strings.TrimSpace(export), "\n"); len(lines) < 10 || !strings.Contains(lines[len(lines)-1], "sha256") || strings.Contains(export, "stay-sre") {
		t.Errorf("the export has %d lines and ends with %s", len(lines), lines[len(lines)-1])
	}
	if a := call(t, http.MethodDelete, r.a.at(x).RESTURL+"/tenant?confirm=stay", x.Tokens["admin"], ""); a.status != http.StatusBadRequest {
		t.Errorf("delete with another name: %d %s", a.status, a.body)
	}
	r.do(t, r.a, x, "DELETE", "/tenant?confirm=wane", "")
	r.both(t, "deleted", x, x.Tokens["admin"], 401, 401)
	r.both(t, "the other tenant, after all", other, otherSRE, 200, 200)
	if out := r.a.admin("audit", "verify"); strings.Contains(out, "BROKEN") {
		t.Errorf("the audit after the end:\n%s", out)
	}
}

// rss is what a server's process holds in memory, in bytes.
func rss(t *testing.T, s *server) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(s.cmd.Process.Pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	var kib int64
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// simulateAt lets agents of a tenant run until the test ends.
func simulateAt(t *testing.T, s *server, x tenant, prefix string) {
	t.Helper()
	start(t, exec.Command(filepath.Join(bin, "telltale-agent"), "simulate", "--n", "2", "--prefix", prefix, "--events-per-min", "300",
		"--server", s.grpc, "--ca", s.ca, "--token", x.EnrolToken, "--dir", filepath.Join(t.TempDir(), "nodes")))
}

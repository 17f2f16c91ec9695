package main

import (
	"os"
	"os/user"
	"strings"
	"testing"

	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// The commands that change a tenant leave their own entries; verify walks the
// chain of each tenant and fails for the one that somebody has changed.
func TestAuditCommands(t *testing.T) {
	s := shell{t, dbtest.DSN(t)}
	s.run(exitOK, "tenant", "create", "acme")
	s.run(exitOK, "tenant", "create", "globex")
	s.run(exitOK, "token", "create", "--tenant", "acme", "--name", "x", "--scopes", "read")
	s.run(exitOK, "token", "list", "--tenant", "acme")
	s.run(exitFailed, "token", "revoke", "--tenant", "globex", "nosuchtoken")
	acme, _ := s.run(exitOK, "audit", "list", "--tenant", "acme")
	for _, want := range []string{"operator " + osUser(os.LookupEnv), "name=x scopes=read tenant=acme", "command", "token create", "started", "ok"} {
		if !strings.Contains(acme, want) {
			t.Errorf("the list of acme lacks %q:\n%s", want, acme)
		}
	}
	if strings.Contains(acme, "token list") || strings.Contains(acme, "revoke") || strings.Contains(acme, "tt_") {
		t.Errorf("the list of acme:\n%s", acme)
	}
	failed, _ := s.run(exitOK, "audit", "list", "--tenant", "globex", "--outcome", "failed")
	if !strings.Contains(failed, "token revoke") || !strings.Contains(failed, "command_failed") {
		t.Errorf("the failures of globex:\n%s", failed)
	}
	out, _ := s.run(exitOK, "audit", "verify")
	for _, want := range []string{"acme    0      0", "2         OK"} {
		if !strings.Contains(out, want) {
			t.Errorf("nothing is sealed yet, and verify lacks %q:\n%s", want, out)
		}
	}
	conn := dbtest.Connect(t, s.dsn)
	if _, err := conn.Exec(t.Context(), `set session_replication_role = replica;
		update audit set seal_no = 1, seal_pos = 1 where action = 'token revoke'`); err != nil {
		t.Fatal(err)
	}
	out, problem := s.run(exitFailed, "audit", "verify")
	if !strings.Contains(out, "BROKEN") || !strings.Contains(problem, "the audit of globex is not as it was sealed: added row") {
		t.Errorf("%s\n%s", out, problem)
	}
	s.run(exitOK, "audit", "verify", "--tenant", "acme")
	s.run(exitOK, "audit", "verify", "acme")
	s.run(exitFailed, "audit", "verify", "globex")
	s.run(exitUsage, "audit", "verify", "--tenant", "acme", "globex")
	s.run(exitUsage, "audit", "list")
	if out, _ := s.run(exitOK, "audit", "list", "acme", "--since", "2026-01-02T05:00:00Z"); !strings.Contains(out, "token create") || strings.Contains(out, "globex") {
		t.Errorf("the list since a time:\n%s", out)
	}
	if out, _ := s.run(exitOK, "audit", "list", "--tenant", "acme", "--since", "1h"); !strings.Contains(out, "token create") {
		t.Errorf("the list of an hour:\n%s", out)
	}
	if _, problem := s.run(exitUsage, "audit", "list", "acme", "--since", "yesterday"); !strings.Contains(problem, "RFC 3339") || !strings.Contains(problem, "1h") {
		t.Errorf("a wrong time: %s", problem)
	}
	s.run(exitFailed, "audit", "verify", "--tenant", "globex")
	s.run(exitFailed, "audit", "verify", "--tenant", "initech")
}

// Root by sudo is the person who called sudo; nobody else can claim to be one.
func TestOSUser(t *testing.T) {
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	want := pick(u.Uid == "0", "alice as "+u.Username, u.Username)
	if got := osUser(func(k string) (string, bool) { return "alice", k == "SUDO_USER" }); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := osUser(func(string) (string, bool) { return "", false }); got != u.Username {
		t.Errorf("%q without sudo", got)
	}
}

// What changes trust and quotas tells what it was told, and no secret.
func TestAuditTellsArguments(t *testing.T) {
	s := shell{t, dbtest.DSN(t)}
	s.run(exitOK, "tenant", "create", "acme")
	_, problem := s.run(exitFailed, "issuer", "add", "acme", "http://127.0.0.1:9/", "--role", "groups=sre:read")
	if !strings.Contains(problem, "URL: ") || !strings.Contains(problem, "--allow-http-loopback") || strings.Contains(problem, "--url") {
		t.Errorf("issuer add on loopback: %s", problem)
	}
	s.run(exitOK, "issuer", "add", "acme", "http://127.0.0.1:9", "--role", "groups=sre:read", "--allow-http-loopback", "--force")
	out, _ := s.run(exitFailed, "issuer", "test", "acme", "http://127.0.0.1:9")
	if !strings.Contains(out, "--allow-http-loopback") || !strings.Contains(out, "1 rule\n") {
		t.Errorf("issuer test on loopback: %s", out)
	}
	s.run(exitOK, "member", "add", "acme", "http://127.0.0.1:9", "mia", "--scopes", "read")
	s.run(exitOK, "tenant", "quotas", "acme", "--principal-rate", "7")
	s.run(exitOK, "tenant", "suspend", "acme")
	s.run(exitOK, "tenant", "suspend", "acme", "--resume")
	out, _ = s.run(exitOK, "audit", "list", "acme")
	for _, want := range []string{"role=groups=sre:read", "acme http://127.0.0.1:9 mia scopes=read", "acme principal-rate=7", "acme resume=true"} {
		if !strings.Contains(out, want) {
			t.Errorf("the list lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, s.dsn) {
		t.Errorf("the list shows the database:\n%s", out)
	}
}

// A machine with a development stack alone has no settings for doctor.
func TestDoctorSaysWhatItLooksAt(t *testing.T) {
	var stdout, stderr strings.Builder
	none := func(string) (string, bool) { return "", false }
	if got := realMain(t.Context(), env{&stdout, &stderr, none}, []string{"doctor"}); got != exitFailed {
		t.Errorf("%d", got)
	}
	for _, want := range []string{"--config", "'telltaled dev' needs none"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %q in\n%s", want, stdout.String())
		}
	}
}

package main

import (
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
	for _, want := range []string{"operator " + osUser(), "name=x scopes=read tenant=acme", "command", "token create", "started", "ok"} {
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
	s.run(exitFailed, "audit", "verify", "--tenant", "globex")
	s.run(exitFailed, "audit", "verify", "--tenant", "initech")
}

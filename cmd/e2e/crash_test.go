package e2e_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// TestExactlyOnceOverKilledServer kills the real server between a commit and
// its acknowledgement while real streams of two tenants are in full flow. The
// database is made to hold back the answer to a commit that it has carried out
// (it waits for a standby that does not exist), so that each kill hits exactly
// there; the agents learn on their return that what they hold is stored.
// Nothing may be stored twice and nothing may be missing.
func TestExactlyOnceOverKilledServer(t *testing.T) {
	const perTenant, interval, kills = 15, 200 * time.Millisecond, 3 // an agent's queue holds 25 s of that
	pg := dbtest.NewServer(t, map[string]string{"synchronous_commit": "on", "wal_level": "replica", "max_wal_senders": "2"})
	dsn := pg.Database()
	s := newServer(t, dsn)
	conn := dbtest.Connect(t, dsn)
	s.start()
	var fleets []*exec.Cmd
	outputs := map[string]*lockedBuffer{}
	for _, slug := range []string{"acme", "globex"} {
		s.admin("tenant", "create", slug)
		token := s.admin("enrol-token", "create", "--tenant", slug, "--uses", strconv.Itoa(perTenant))
		out := &lockedBuffer{}
		outputs[slug] = out
		cmd := exec.Command(filepath.Join(bin, "telltale-agent"), "simulate", "--n", strconv.Itoa(perTenant), "--interval", interval.String(),
			"--server", s.grpc, "--ca", s.ca, "--token", token, "--dir", t.TempDir())
		cmd.Stdout, cmd.Stderr = out, out
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		fleets = append(fleets, cmd)
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		s.within(30*time.Second, "all of "+slug+" connected", func() bool {
			return strings.Contains(out.String(), fmt.Sprintf("%d agents connected", perTenant))
		})
	}

	flow := func(what string) {
		t.Helper()
		start := s.metric("telltale_windows_written_total")
		s.within(60*time.Second, what, func() bool { return s.metric("telltale_windows_written_total") > start+400 })
	}
	hold := func(standby string) {
		t.Helper()
		for _, sql := range []string{"alter system set synchronous_standby_names = '" + standby + "'", "select pg_reload_conf()"} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range kills {
		flow("full flow")
		hold("nobody")
		written, same := 0.0, 0
		s.within(20*time.Second, "a commit that is done and not answered", func() bool {
			// Both writers hang: what they commit is not answered any more.
			if now := s.metric("telltale_windows_written_total"); now != written {
				written, same = now, 0
				return false
			}
			if same++; same < 25 {
				return false
			}
			var n int
			err := conn.QueryRow(t.Context(), `select count(*) from pg_stat_activity where usename = 'telltale_ingest' and wait_event = 'SyncRep'`).Scan(&n)
			if err != nil {
				t.Fatal(err)
			}
			return n > 0
		})
		s.kill()
		hold("")
		s.start()
		flow("flow after the kill")
		unacknowledged := s.metric(`telltale_ingest_total{kind="report_settled_late"}`)
		if unacknowledged == 0 {
			t.Error("the kill left no report committed and not acknowledged")
		}
		t.Logf("%.0f reports were committed and not acknowledged", unacknowledged)
	}

	s.within(60*time.Second, "all streams back", func() bool { return s.metric("telltale_ingest_streams") == 2*perTenant })
	for range 3 { // time for everyone to send what piled up
		flow("flow of all streams")
	}

	// The agents take leave; what they still hold at that moment is not sent.
	for _, cmd := range fleets {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("simulate: %v", err)
		}
	}
	var rows, distinct int
	if err := conn.QueryRow(t.Context(), `select count(*), count(distinct (tenant_id, node_id, ts, component)) from win`).Scan(&rows, &distinct); err != nil {
		t.Fatal(err)
	}
	if rows != distinct {
		t.Errorf("%d windows are stored twice", rows-distinct)
	}
	pushed := 0
	final := regexp.MustCompile(`stopped; \d+ connected, (\d+) windows pushed, \d+ reports acknowledged, (\d+) dropped, (\d+) kept out`)
	for slug, out := range outputs {
		m := final.FindStringSubmatch(out.String())
		if m == nil {
			t.Fatalf("%s: no closing line:\n%s", slug, out)
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		pushed += n
		if m[2] != "0" || m[3] != "0" {
			var why string
			if err := conn.QueryRow(t.Context(), `select coalesce(string_agg(distinct reason || ': ' || example, '; '), 'no row says why') from
				(select reason, example from win_quarantine union all select reason, example from quarantine) q`).Scan(&why); err != nil {
				t.Fatal(err)
			}
			t.Errorf("%s: %s dropped and %s kept out, want none (%s)", slug, m[2], m[3], why)
		}
	}
	// At the end each agent may hold a few windows of its four components.
	if tail := pushed - rows; tail < 0 || tail > 2*perTenant*4*3 {
		t.Errorf("%d windows pushed, %d stored", pushed, rows)
	}
	// No hole: the windows of one component of one node follow one another.
	var holes int
	if err := conn.QueryRow(t.Context(), `
		select count(*) from (
			select seq, lag(seq) over w as before, ts, lag(ts) over w as earlier
			from win window w as (partition by tenant_id, node_id, component order by ts)) x
		where seq <= before or ts - earlier < interval '0.18 s'`).Scan(&holes); err != nil {
		t.Fatal(err)
	}
	if holes > 0 {
		t.Errorf("%d windows are out of order", holes)
	}
	for _, slug := range []string{"acme", "globex"} {
		token := s.admin("token", "create", "--tenant", slug, "--name", "check", "--scopes", "read")
		x := tenant{Slug: slug, RESTURL: "http://" + s.http + "/t/" + slug + "/api/v1", Tokens: map[string]string{"read": token}}
		for _, n := range nodes(t, x) {
			a := call(t, "GET", x.RESTURL+"/nodes/"+n.Node, token, "")
			if !strings.Contains(a.body, `"missing_seq":0`) {
				t.Errorf("node %s of %s: %s", n.Name, slug, a.body)
			}
		}
	}
}

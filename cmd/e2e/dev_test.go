package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDev walks the first ten minutes of a newcomer: everything comes up, this
// machine's traffic shows, and stopping leaves nothing behind.
func TestDev(t *testing.T) {
	s := startDev(t, newDataDir(t), nil, "--idp-dir", idpDir)
	acme, globex := s.tenant(t, "acme"), s.tenant(t, "globex")

	t.Run("real traffic within 30 s", func(t *testing.T) {
		s.await(30*time.Second, "network metrics of this machine", func() bool {
			text, code := telltale(t, acme, "read", "call", "metrics_summary", `{"module":"network"}`)
			return code == 0 && strings.Contains(text, "interface=lo")
		})
	})
	t.Run("every probe signal from bpf", func(t *testing.T) { everySignalFromBPF(t, s, acme) })
	t.Run("tenants never meet", func(t *testing.T) { tenantsNeverMeet(t, s, acme, globex) })
	t.Run("stops whole", func(t *testing.T) {
		s.interrupt()
		if left := s.leftovers(); len(left) > 0 {
			t.Errorf("left running: %v", left)
		}
		mounts, err := os.ReadFile("/proc/mounts")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(mounts), s.dir) {
			t.Error("left a mount")
		}
		if sockets, _ := filepath.Glob(filepath.Join(s.dir, "postgres", "*", ".s.PGSQL*")); len(sockets) > 0 {
			t.Errorf("left sockets: %v", sockets)
		}
	})
}

func everySignalFromBPF(t *testing.T, s *stack, acme tenant) {
	if os.Geteuid() != 0 {
		t.Skip("not root: the kernel refuses BPF programs, and the degraded signals are tested elsewhere")
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		t.Skip("this kernel has no BTF: " + err.Error())
	}
	host := nodes(t, acme)[0]
	s.await(20*time.Second, "all modules opened", func() bool {
		return !slices.ContainsFunc(capabilities(t, acme, host), func(c capability) bool { return c.Reason == "not opened yet" })
	})
	seen := map[string]int{}
	for _, c := range capabilities(t, acme, host) {
		if c.Component != "network" && c.Component != "storage" && c.Component != "process" {
			continue
		}
		seen[c.Component]++
		if c.Level != "full" || c.Source != "bpf" {
			t.Errorf("%s %s is %s from %q: %s", c.Component, c.Signal, c.Level, c.Source, c.Reason)
		}
	}
	// The same through the tool that a model would ask.
	text, code := telltale(t, acme, "read", "call", "get_node", fmt.Sprintf(`{"node":%q}`, host.Node))
	for _, module := range []string{"network", "storage", "process"} {
		rows := regexp.MustCompile(`(?m)^`+module+`/\S+ +full +bpf`).FindAllString(text, -1)
		if code != 0 || len(rows) != seen[module] {
			t.Errorf("get_node shows %d signals of %s from bpf, REST %d:\n%s", len(rows), module, seen[module], text)
		}
	}
	if len(seen) != 3 {
		t.Errorf("signals by module: %v, want all three modules", seen)
	}
}

type capability struct{ Component, Signal, Level, Source, Reason string }

func capabilities(t *testing.T, x tenant, n node) []capability {
	t.Helper()
	a := call(t, "GET", x.RESTURL+"/nodes/"+n.Node+"/capabilities", x.Tokens["read"], "")
	var got struct{ Capabilities []capability }
	if err := json.Unmarshal([]byte(a.body), &got); err != nil {
		t.Fatalf("%d %v: %s", a.status, err, a.body)
	}
	return got.Capabilities
}

// TestKilledServer kills the server without warning: the database must end
// cleanly all the same, the agents must go, and the next start must work on
// the same data.
func TestKilledServer(t *testing.T) {
	dir := newDataDir(t)
	s := startDev(t, dir, nil, "--agents", "4")
	before := nodes(t, s.tenant(t, "acme"))
	token := s.tenant(t, "acme").Tokens["read"]
	s.kill()

	data := filepath.Join(dir, "postgres", "data")
	deadline := time.Now().Add(20 * time.Second)
	for len(s.leftovers()) > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("still running after the server was killed: %v", s.leftovers())
		}
		<-time.After(50 * time.Millisecond)
	}
	if state := clusterState(t, data); state != "shut down" {
		t.Errorf("the database's cluster is %q, want a clean shut down", state)
	}

	again := startDev(t, dir, nil, "--agents", "4")
	after := nodes(t, again.tenant(t, "acme"))
	if len(before) != len(after) || before[0].Node != after[0].Node {
		t.Errorf("nodes before %v and after %v: identities must last", before, after)
	}
	if a := call(t, "GET", again.tenant(t, "acme").RESTURL+"/nodes", token, ""); a.status != 401 {
		t.Errorf("a token of the former run answers %d, want 401", a.status)
	}
}

// clusterState reads what PostgreSQL itself says of a stopped cluster.
func clusterState(t *testing.T, data string) string {
	t.Helper()
	tools, err := filepath.Glob("/usr/lib/postgresql/*/bin/pg_controldata")
	if err != nil || len(tools) == 0 {
		t.Fatal("pg_controldata is not installed")
	}
	cmd := exec.Command(tools[len(tools)-1], data)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(line, "Database cluster state:"); ok {
			return strings.TrimSpace(v)
		}
	}
	t.Fatalf("no cluster state in:\n%s", out)
	return ""
}

// TestDevAsOrdinaryUser starts everything without privileges: the probe falls
// back to /proc, says so per signal, and dev prints the one line that helps.
func TestDevAsOrdinaryUser(t *testing.T) {
	dir := newDataDir(t)
	adjust := func(*exec.Cmd) {}
	if os.Geteuid() == 0 {
		const nobody = 65534
		if err := os.Chown(filepath.Dir(dir), nobody, nobody); err != nil {
			t.Fatal(err)
		}
		adjust = func(c *exec.Cmd) {
			c.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
			c.Dir = filepath.Dir(dir)
			c.Env = append(os.Environ(), "HOME="+filepath.Dir(dir), "TMPDIR="+filepath.Dir(dir))
		}
	}
	s := startDev(t, dir, adjust)
	acme := s.tenant(t, "acme")
	s.await(30*time.Second, "traffic read from /proc", func() bool {
		text, code := telltale(t, acme, "read", "call", "metrics_summary", `{"module":"network"}`)
		return code == 0 && strings.Contains(text, "interface=lo")
	})
	levels := map[string]int{}
	for _, c := range capabilities(t, acme, nodes(t, acme)[0]) {
		if c.Source == "bpf" {
			t.Errorf("%s %s claims bpf without privileges", c.Component, c.Signal)
		}
		if c.Level != "full" && c.Reason == "" {
			t.Errorf("%s %s is %s without a reason", c.Component, c.Signal, c.Level)
		}
		levels[c.Level]++
	}
	if levels["degraded"] == 0 || levels["off"] == 0 {
		t.Errorf("levels %v, want some degraded to /proc and some off", levels)
	}
	s.interrupt() // its output is complete now
	if out := s.output.String(); !strings.Contains(out, "setcap cap_bpf,cap_perfmon") {
		t.Errorf("no line that gives the probe its capabilities:\n%s", out)
	}
}

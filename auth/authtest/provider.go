// Package authtest lets tests sign in at a real, independent identity
// provider: the one of deploy/devidp, in a process of its own. It is for tests
// alone; no binary links it.
package authtest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The accounts, by the groups that their tokens carry.
const (
	Alice = "alice" // acme-sre
	Bob   = "bob"   // acme-viewers
	Carol = "carol" // globex-sre
	Dana  = "dana"  // acme-admins, globex-admins
	Erin  = "erin"  // none
)

// The clients that the provider knows beforehand.
const (
	CLI       = "telltale-cli"       // public, native
	Dashboard = "telltale-dashboard" // public, redirects to the tenant's session/callback
	Server    = "telltale-server"    // introspects, with ServerSecret
	Robot     = "telltale-robot"     // client credentials, with RobotSecret
)

// The secrets of the confidential clients of a provider that StartProvider started.
const (
	ServerSecret = "the server's secret"
	RobotSecret  = "the robot's secret"
)

// Config says what provider to start.
type Config struct {
	BaseURL string // origin of Telltale; the resources are BaseURL/t/{acme,globex}/mcp
	// Formats of access tokens by tenant, "jwt" or "opaque"; default: acme's
	// are JWTs and globex's opaque.
	Formats     map[string]string
	TokenTTL    time.Duration // of access tokens, whole seconds; 0: an hour
	RobotGroups []string      // nil: acme-viewers and globex-viewers
}

// Provider is a running identity provider.
type Provider struct {
	issuer, baseURL string
	redirects       map[string]string // of registered clients

	file   string // its configuration
	config map[string]any
	cmd    *exec.Cmd
	stderr *tail
	lines  chan string   // of its standard output
	ended  chan struct{} // closed when the process is gone
}

// deadline bounds every wait for the provider.
const deadline = 20 * time.Second

// StartProvider starts a provider on a free port; it ends with the test.
func StartProvider(t testing.TB, cfg Config) *Provider {
	t.Helper()
	dir := t.TempDir()
	p := &Provider{baseURL: strings.TrimRight(cfg.BaseURL, "/"), redirects: map[string]string{}, file: filepath.Join(dir, "config.json")}
	p.config = map[string]any{
		"base_url": p.baseURL, "data_dir": filepath.Join(dir, "data"), "port": 0,
		"server_secret": ServerSecret, "robot_secret": RobotSecret,
	}
	if cfg.Formats != nil {
		p.config["formats"] = cfg.Formats
	}
	if cfg.TokenTTL > 0 {
		p.config["access_token_ttl"] = int(cfg.TokenTTL / time.Second)
	}
	if cfg.RobotGroups != nil {
		p.config["robot_groups"] = cfg.RobotGroups
	}
	t.Cleanup(func() { p.Stop(t) })
	p.start(t)
	return p
}

// At is a provider that something else runs, such as `telltaled dev`.
func At(issuer, baseURL string) *Provider {
	return &Provider{issuer: issuer, baseURL: strings.TrimRight(baseURL, "/"), redirects: map[string]string{}}
}

// Issuer is the `iss` of its tokens.
func (p *Provider) Issuer() string { return p.issuer }

// MCP is the resource of a tenant.
func (p *Provider) MCP(slug string) string { return p.baseURL + "/t/" + slug + "/mcp" }

// Stop ends the process, if it runs. What it remembers stays for Restart.
func (p *Provider) Stop(t testing.TB) {
	t.Helper()
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(deadline):
		_ = p.cmd.Process.Kill()
		<-p.ended
		t.Error("the identity provider did not stop on SIGTERM")
	}
	p.cmd = nil
}

// Restart starts it again after Stop, or stops it first: the same issuer, keys,
// registrations and tokens.
func (p *Provider) Restart(t testing.TB) {
	t.Helper()
	p.Stop(t)
	p.start(t)
}

// RotateKeys makes a new signing key and returns its kid. The former ones stay
// published.
func (p *Provider) RotateKeys(t testing.TB) string {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	return p.line(t, "rotated")
}

func (p *Provider) start(t testing.TB) {
	t.Helper()
	dir, node, err := find()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(p.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	// It ends with its parent by itself: a death signal would come from the
	// thread that started it, which a test does not keep.
	cmd := exec.Command(node, filepath.Join(dir, "server.mjs"), "--config", p.file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.stderr = &tail{}
	cmd.Stderr = p.stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.cmd, p.lines, p.ended = cmd, make(chan string, 16), make(chan struct{})
	go func() {
		defer close(p.ended)
		for s := bufio.NewScanner(out); s.Scan(); {
			select {
			case p.lines <- s.Text():
			default: // nobody waits for so many
			}
		}
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	}()
	p.issuer = p.line(t, "ready")
	u, err := url.Parse(p.issuer)
	if err != nil {
		t.Fatal(err)
	}
	if p.config["port"], err = strconv.Atoi(u.Port()); err != nil {
		t.Fatal(err)
	}
}

// line waits for a line of its output that begins with word.
func (p *Provider) line(t testing.TB, word string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	for {
		select {
		case l := <-p.lines:
			if rest, ok := strings.CutPrefix(l, word+" "); ok {
				return rest
			}
		case <-p.ended:
			t.Fatalf("the identity provider ended: %s", p.stderr)
		case <-ctx.Done():
			t.Fatalf("the identity provider did not say %q: %s", word, p.stderr)
		}
	}
}

// find looks upwards for the provider's folder, and for a Node to run it.
func find() (dir, node string, err error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", "", err
	}
	for at := wd; ; at = filepath.Dir(at) {
		dir = filepath.Join(at, "deploy", "devidp")
		if _, err := os.Stat(filepath.Join(dir, "server.mjs")); err == nil {
			break
		}
		if at == filepath.Dir(at) {
			return "", "", fmt.Errorf("no deploy/devidp above %s", wd)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "oidc-provider")); err != nil {
		return "", "", fmt.Errorf("the identity provider's packages are missing: run 'make deps' (%w)", err)
	}
	node = filepath.Join(dir, "..", "node", "bin", "node")
	if _, err := os.Stat(node); err == nil {
		return dir, node, nil
	}
	node, err = exec.LookPath("node")
	return dir, node, err
}

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func testEnv(vars map[string]string) (env, *bytes.Buffer) {
	var out bytes.Buffer
	return env{&out, &out, func(k string) (string, bool) { v, ok := vars[k]; return v, ok }}, &out
}

func serveFlags(cfg *config) *flag.FlagSet {
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	cfg.flags(fs)
	return fs
}

func TestPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("http: 127.0.0.1:1\ngrpc: 127.0.0.1:2\nmgmt: 127.0.0.1:3\nallowed-hosts: [a, b]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e, _ := testEnv(map[string]string{"TELLTALE_HTTP": "127.0.0.1:10", "TELLTALE_GRPC": "127.0.0.1:20"})
	var cfg config
	if err := load(serveFlags(&cfg), e, []string{"--config", file, "--http", "127.0.0.1:100"}); err != nil {
		t.Fatal(err)
	}
	got := strings.Join([]string{cfg.http, cfg.grpc, cfg.mgmt, cfg.trustDomain, cfg.hosts.String()}, " ")
	if want := "127.0.0.1:100 127.0.0.1:20 127.0.0.1:3 telltale a,b"; got != want {
		t.Errorf("got %s, want flag, environment, file, default, list: %s", got, want)
	}
}

func TestMistakesAreReportedTogether(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("httpp: x\nno-mcp: perhaps\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e, _ := testEnv(map[string]string{"TELLTALE_MIGRATE": "maybe"})
	var cfg config
	err := load(serveFlags(&cfg), e, []string{"--nonsense", "--config", file})
	if !errors.Is(err, errUsage) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"nonsense", `no setting "httpp"`, "no-mcp", "perhaps", "TELLTALE_MIGRATE"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in: %v", want, err)
		}
	}
}

func TestOneFileServesAllCommands(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("database: host=x\nhttp: 127.0.0.1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e, _ := testEnv(nil)
	var d database
	fs := flag.NewFlagSet("token list", flag.ContinueOnError)
	d.flags(fs)
	if err := load(fs, e, []string{"--config", file}); err != nil || d.dsn != "host=x" {
		t.Errorf("serve's file: %v, database %q", err, string(d.dsn))
	}
}

func TestUnsafeCombinationsRefuse(t *testing.T) {
	good := func() *config {
		return &config{
			db: database{dsn: "host=x"}, http: "127.0.0.1:1", grpc: "0.0.0.0:2", mgmt: "127.0.0.1:3",
			grpcCert: "c", grpcKey: "k", keyFile: "key", logLevel: "info", logForm: "text",
		}
	}
	if err := good().check(); err != nil {
		t.Fatalf("a safe configuration is refused: %v", err)
	}
	for want, spoil := range map[string]func(*config){
		"has no TLS":            func(c *config) { c.http, c.publicURL = "0.0.0.0:1", "https://x.example" },
		"--public-url is miss":  func(c *config) { c.http, c.tlsCert, c.tlsKey = "10.0.0.1:1", "c", "k" },
		"front of the unix":     func(c *config) { c.http = "unix:/run/x" },
		"it asks for no cred":   func(c *config) { c.mgmt = ":9" },
		"agents speak TLS only": func(c *config) { c.grpcCert = "" },
		"go together":           func(c *config) { c.tlsCert = "c" },
		"--key-file is missing": func(c *config) { c.keyFile = "" },
		"--database is missing": func(c *config) { c.db.dsn = "" },
		"no prefix such as":     func(c *config) { c.proxies = words{"10.0.0.1"} },
		"--log-level":           func(c *config) { c.logLevel = "loud" },
		"--log-format":          func(c *config) { c.logForm = "xml" },
		"no host:port":          func(c *config) { c.grpc = "8401" },
	} {
		c := good()
		spoil(c)
		if err := c.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want a refusal with %q, got %v", want, err)
		}
	}
	safe := good()
	safe.http, safe.publicURL, safe.proxies = "0.0.0.0:1", "https://x.example", words{"10.0.0.0/8"}
	if err := safe.check(); err != nil {
		t.Errorf("a declared proxy is refused: %v", err)
	}
}

func TestSecretsAreRedacted(t *testing.T) {
	e, _ := testEnv(map[string]string{"TELLTALE_DATABASE": "postgres://u:hunter2@h/d"})
	var cfg config
	fs := serveFlags(&cfg)
	if err := load(fs, e, nil); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	logEffective(slog.New(slog.NewTextHandler(&out, nil)), fs)
	if s := out.String(); strings.Contains(s, "hunter2") || !strings.Contains(s, "database=(redacted)") {
		t.Errorf("settings in the log: %s", s)
	}
}

func TestEveryCommandHasHelp(t *testing.T) {
	for _, c := range commands() {
		e, out := testEnv(nil)
		if code := realMain(context.Background(), e, append(strings.Fields(c.words), "--help")); code != exitOK {
			t.Errorf("%s --help exits %d: %s", c.words, code, out)
		}
		if c.words != "version" && !strings.Contains(out.String(), "usage: telltaled "+c.words) {
			t.Errorf("%s --help says: %s", c.words, out)
		}
	}
	e, out := testEnv(nil)
	if code := realMain(context.Background(), e, []string{"tennant", "list"}); code != exitUsage || !strings.Contains(out.String(), "no such command") {
		t.Errorf("an unknown command exits %d: %s", code, out)
	}
}

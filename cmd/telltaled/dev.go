package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/mcp"
	"github.com/telltale-dev/telltale/migrations"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb/localpg"
)

// devOptions are the flags of dev.
type devOptions struct {
	dataDir, readyFile string
	http, grpc, mgmt   string
	idp, idpDir        string
	firstScopes        words
	agents             int
	noAgent, noIDP     bool
	postgresBin        string
	logLevel, logForm  string
}

func (o *devOptions) flags(fs *flag.FlagSet) {
	fs.StringVar(&o.dataDir, "data-dir", ".telltale", "`DIR` for the database, keys and identities; kept over runs")
	fs.StringVar(&o.http, "http", "127.0.0.1:8400", "loopback `ADDRESS` for REST, MCP and the dashboard")
	fs.StringVar(&o.grpc, "grpc", "127.0.0.1:8401", "loopback `ADDRESS` for agents")
	fs.StringVar(&o.mgmt, "mgmt", "127.0.0.1:0", "loopback `ADDRESS` for this server's own metrics and profiles; port 0 picks a free one")
	fs.StringVar(&o.readyFile, "ready-file", "", "`FILE` to write, as JSON, once everything answers; default: ready.json in --data-dir")
	fs.IntVar(&o.agents, "agents", 2, "`N` agents: a real one in acme and N-1 simulated ones over both tenants")
	fs.BoolVar(&o.noAgent, "no-agent", false, "simulated agents only, no probe on this machine")
	fs.StringVar(&o.idp, "idp", "", "loopback `ADDRESS` of the demo identity provider; default: a free port, kept over runs")
	fs.StringVar(&o.idpDir, "idp-dir", "", "`DIR` of the demo identity provider; default: ../deploy/devidp beside the folder of this binary")
	fs.BoolVar(&o.noIDP, "no-idp", false, "start no demo identity provider: sign in with an operator token")
	fs.Var(&o.firstScopes, "first-scopes", "`SCOPES` that a client is told to ask for when it first connects, such as read,diagnose; unless given, what the tenants have, at first read alone")
	fs.StringVar(&o.postgresBin, "postgres-bin", "", "`DIR` of the PostgreSQL binaries; default: the newest installed")
	logFlags(fs, &o.logLevel, &o.logForm)
}

const maxDevAgents = 10_000

func (o *devOptions) check() error {
	var bad []error
	for _, a := range []struct{ flag, addr string }{{"--http", o.http}, {"--grpc", o.grpc}, {"--mgmt", o.mgmt}, {"--idp", o.idp}} {
		if a.addr == "" && a.flag == "--idp" {
			continue
		}
		if out, err := routable(a.addr); err != nil {
			bad = append(bad, fmt.Errorf("%s: %w", a.flag, err))
		} else if out {
			bad = append(bad, fmt.Errorf("%s %s can be reached from outside: dev is for this machine alone, use 127.0.0.1 or 'telltaled serve'", a.flag, a.addr))
		}
	}
	if o.agents < 1 || o.agents > maxDevAgents {
		bad = append(bad, fmt.Errorf("--agents %d: want 1 to %d", o.agents, maxDevAgents))
	}
	if _, err := o.first(); err != nil {
		bad = append(bad, err)
	}
	if err := checkLog(o.logLevel, o.logForm); err != nil {
		bad = append(bad, err)
	}
	if len(bad) > 0 {
		return fmt.Errorf("%w: %w", errUsage, errors.Join(bad...))
	}
	return nil
}

// first is --first-scopes; nothing when it is not given.
func (o *devOptions) first() (tenants.Scopes, error) {
	full := make([]string, len(o.firstScopes))
	for i, s := range o.firstScopes {
		full[i] = "telltale:" + strings.TrimPrefix(s, "telltale:")
	}
	first, unknown := tenants.ParseScopes(full)
	if len(unknown) > 0 {
		return 0, fmt.Errorf("--first-scopes %s: want some of read, payloads, diagnose, act, approve, maintain, admin", o.firstScopes.String())
	}
	return first, nil
}

// dev runs everything on this machine until interrupted.
func dev(ctx context.Context, e env, args []string) error {
	var o devOptions
	fs := flag.NewFlagSet("dev", flag.ContinueOnError)
	o.flags(fs)
	if err := load(fs, e, args); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	dir, err := filepath.Abs(o.dataDir)
	if err != nil {
		return err
	}
	// The database's user must be able to pass, whatever the umask; what is
	// secret inside has its own mode.
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
			return err
		}
	}
	if o.readyFile == "" {
		o.readyFile = filepath.Join(dir, "ready.json")
	}
	for _, l := range []struct{ flag, addr string }{{"--http", o.http}, {"--grpc", o.grpc}, {"--idp", o.idp}} { // better now than after the database
		if l.addr == "" || (l.flag == "--idp" && o.noIDP) {
			continue
		}
		probe, err := listen(ctx, l.flag, l.addr)
		if err != nil {
			return err
		}
		probe.Close()
	}
	// A file of an earlier run must not be taken for ours.
	if err := os.Remove(o.readyFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	logFile, err := os.OpenFile(filepath.Join(dir, "telltaled.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()
	log := newLogger(logFile, o.logLevel, o.logForm)
	out := &progress{w: e.stdout, start: time.Now()}

	out.step("database")
	pg, err := localpg.Start(ctx, localpg.Config{Dir: filepath.Join(dir, "postgres"), BinDir: o.postgresBin, Log: log})
	if err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
		defer cancel()
		if err := pg.Stop(stop); err != nil {
			fmt.Fprintln(e.stderr, "stop the database:", err)
		}
	}()
	if err := pg.CreateDatabase(ctx, "telltale"); err != nil {
		return err
	}
	dsn := pg.DSN("telltale")
	out.step("schema")
	if err := migrations.Apply(ctx, dsn, log); err != nil {
		return err
	}
	out.step("server")
	cfg, caFile, err := devConfig(&o, dir, dsn)
	if err != nil {
		return err
	}
	a, err := build(ctx, cfg, log)
	if err != nil {
		return err
	}
	return a.runDev(ctx, &devRun{o: &o, dir: dir, dsn: dsn, caFile: caFile, out: out, log: log, logFile: logFile, database: pg})
}

func devConfig(o *devOptions, dir, dsn string) (cfg *config, caFile string, err error) {
	host, _, err := net.SplitHostPort(o.grpc)
	if err != nil {
		return nil, "", err
	}
	tls, err := auth.EnsureLocalTLS(filepath.Join(dir, "tls"), []string{"localhost", "127.0.0.1", host})
	if err != nil {
		return nil, "", err
	}
	return &config{
		db: database{dsn: secret(dsn)}, http: o.http, grpc: o.grpc, mgmt: o.mgmt,
		grpcCert: tls.CertFile, grpcKey: tls.KeyFile, keyFile: filepath.Join(dir, "sealing.key"), trustDomain: "telltale",
		toolSets: mcp.ToolSets(), issuerLoopback: true, // the demo issuer is plain http
	}, tls.CAFile, nil
}

// devRun is what one run of dev carries around.
type devRun struct {
	o                *devOptions
	dir, dsn, caFile string
	out              *progress
	log              *slog.Logger
	logFile          *os.File
	database         *localpg.Server
}

// runDev runs the server and, beside it, the two tenants and their agents.
func (a *app) runDev(ctx context.Context, d *devRun) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	parts := append(a.parts, part{"demo", 10 * time.Second, func(ctx context.Context) error {
		err := a.demo(ctx, d)
		if err != nil && ctx.Err() == nil {
			cancel(err)
		}
		return err
	}}, part{"database watch", time.Second, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-d.database.Done():
			return fmt.Errorf("%w; its log is %s", d.database.Err(), filepath.Join(d.dir, "postgres", "postgres.log"))
		}
	}})
	err := runParts(ctx, d.log, parts)
	d.out.done()
	return err
}

// progress prints one line a step, so that a long first start is no silence.
type progress struct {
	w     io.Writer
	start time.Time
}

func (p *progress) step(what string) {
	fmt.Fprintf(p.w, "%5.1fs  %s …\n", time.Since(p.start).Seconds(), what)
}

// note says something that is no step.
func (p *progress) note(what string) { fmt.Fprintln(p.w, "        "+what) }

func (p *progress) done() { fmt.Fprintln(p.w, "stopped") }

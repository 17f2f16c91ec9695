package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
	"github.com/telltale-dev/telltale/api/ingest"
	"github.com/telltale-dev/telltale/api/rest"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/mcp"
	"github.com/telltale-dev/telltale/tenants/audit"
	causes "github.com/telltale-dev/telltale/tenants/explain"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
	"github.com/telltale-dev/telltale/web"
)

// app is the whole server, built and bound, not yet running.
type app struct {
	*admin
	site  *auth.Site
	parts []part

	httpAddr, grpcAddr, mgmtAddr net.Addr
	fleet                        *fleet.Service
	tools                        *mcp.Handler
	handler                      http.Handler // of --http
}

// build opens the database, binds the listeners and wires every part. On an
// error it leaves nothing open.
func build(ctx context.Context, cfg *config, log *slog.Logger) (a *app, err error) {
	var undo []func()
	defer func() {
		if err != nil {
			for i := len(undo) - 1; i >= 0; i-- {
				undo[i]()
			}
		}
	}()
	sealer, err := cfg.sealer()
	if err != nil {
		return nil, err
	}
	cfg.db.trust = cfg.trust(sealer)
	adm, err := cfg.db.open(ctx, log)
	if err != nil {
		return nil, err
	}
	undo = append(undo, adm.db.Close)
	if err = adm.schemaCurrent(ctx); err != nil {
		return nil, err
	}
	a = &app{admin: adm}

	var listeners [3]net.Listener
	for i, l := range []struct{ flag, addr string }{{"--http", cfg.http}, {"--grpc", cfg.grpc}, {"--mgmt", cfg.mgmt}} {
		if listeners[i], err = listen(ctx, l.flag, l.addr); err != nil {
			return nil, err
		}
		undo = append(undo, func() { listeners[i].Close() })
	}
	a.httpAddr, a.grpcAddr, a.mgmtAddr = listeners[0].Addr(), listeners[1].Addr(), listeners[2].Addr()
	if a.site, err = cfg.site(a.httpAddr); err != nil {
		return nil, err
	}
	var httpCert *auth.ServerCert
	if cfg.tlsCert != "" {
		if httpCert, err = auth.NewServerCert(cfg.tlsCert, cfg.tlsKey, log); err != nil {
			return nil, err
		}
	}
	grpcCert, err := auth.NewServerCert(cfg.grpcCert, cfg.grpcKey, log)
	if err != nil {
		return nil, err
	}

	own := prometheus.NewRegistry()
	own.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reg := &inspector.Registry{}
	all.Register(reg)
	replica := replicaName()
	a.fleet = fleet.New(a.db, reg, fleet.Config{Replica: replica}, log)
	windows := metrics.New(a.db, reg, metrics.Config{}, log)

	found := a.evidenceSide(cfg, reg, a.fleet, windows, replica, log)

	record := audit.New(a.db, audit.Config{Replica: replica}, log)
	agents, err := a.agentSide(cfg, sealer, windows, found, own, log)
	if err != nil {
		return nil, err
	}
	uses := auth.NewUses(a.access, log)
	d, err := a.newDoor(cfg, sealer, record, uses, own, log)
	if err != nil {
		return nil, err
	}
	if a.handler, err = a.callerSide(cfg, d, reg, windows, found, record, own, log); err != nil {
		return nil, err
	}
	registerOwn(own, a, windows, uses, grpcCert)
	found.register(own)
	registerAudit(own, record)

	a.parts = slices.Concat([]part{
		{"database", 5 * time.Second, func(ctx context.Context) error {
			<-ctx.Done()
			a.db.Close()
			return nil
		}},
		{"partitions", 5 * time.Second, windows.Run},
		{"sessions", 5 * time.Second, a.access.Run},
		{"deleted tenants", 5 * time.Second, a.directory.Run},
		{"audit", 5 * time.Second, record.Run},
		{"token uses", 5 * time.Second, uses.Run},
		{"sightings", 5 * time.Second, a.fleet.Run},
		{"collector", time.Second, func(ctx context.Context) error {
			return paceCollector(ctx, gogcGiven(os.LookupEnv), debug.SetGCPercent)
		}},
	}, found.parts(), []part{
		httpPart("management", listeners[2], loopbackHosts(rest.Management(own)), nil, log),
		{"agents", 10 * time.Second, func(ctx context.Context) error { return agents.Run(ctx, listeners[1], grpcCert.GetCertificate) }},
		httpPart("http", listeners[0], a.handler, httpCert, log, a.tools.Close),
	})
	log.Info("built", "replica", replica, "http", a.httpAddr.String(), "grpc", a.grpcAddr.String(), "mgmt", a.mgmtAddr.String(), "public", a.site.Origin())
	return a, nil
}

// agentSide is what agents speak to.
func (a *app) agentSide(cfg *config, sealer *auth.Sealer, windows *metrics.Service, found evidence, own prometheus.Registerer, log *slog.Logger) (*ingest.Server, error) {
	ca, err := auth.NewNodeCA(a.directory, a.directory, sealer, log, auth.NodeCAConfig{TrustDomain: cfg.trustDomain})
	if err != nil {
		return nil, err
	}
	s := ingest.New(ingest.Config{}, ingest.Deps{Authority: ca, Enroller: a.directory, Nodes: a.directory, Sessions: a.fleet, Windows: windows, Events: found.events, Tasks: ingest.TasksOf(found.tasks.ChannelOpened)}, log)
	own.MustRegister(s, doorCaches(map[string]func() auth.CacheStats{
		"authorities": func() auth.CacheStats { authorities, _ := ca.Stats(); return authorities },
		"nodes":       func() auth.CacheStats { _, nodes := ca.Stats(); return nodes },
	}))
	return s, nil
}

// callerSide is what people, scripts and models speak to.
func (a *app) callerSide(cfg *config, d door, reg *inspector.Registry, windows *metrics.Service, found evidence, record *audit.Service, own prometheus.Registerer, log *slog.Logger) (http.Handler, error) {
	used := a.usage(found, record)
	api := rest.New(rest.Config{
		Log: log, Guards: rest.Guards{Gate: d.gate, Fence: d.fence, Sessions: d.sessions, Challenger: d.challenger, Limiter: d.limiter, SignIn: d.signIn},
		Nodes: a.fleet, Fleet: a.fleet, Metrics: windows, Events: found.events, Tasks: found.tasks, Registry: reg, Ready: a.checks(), Version: buildVersion(), Dashboard: web.Handler(), Own: own,
		Audit: record, Door: record, Tenants: a.directory, Lifecycle: a.directory, Trusts: d.oauth, Site: a.site, Meaning: causes.Meaning,
		Tokens: a.access, EnrolTokens: a.directory, Issuers: a.access, IssuerTest: d.oauth, Members: a.access, Policies: a.access, Usage: used,
	})
	tools := mcp.Config{
		Challenger: d.challenger, Tenants: a.directory, Services: mcp.Services{Fleet: a.fleet, Metrics: windows, Tasks: found.tasks, Events: found.events, Explain: found.explain, Running: fleet.NewRunning(a.db, reg), Registry: reg,
			Tokens: a.access, Audit: record, Usage: a.toolUsage(used, log)},
		ToolSets: cfg.toolSets, ReadOnly: cfg.readOnly, Exclude: cfg.exclude,
		Limits: d.limiter, Again: d.gate.Peek, Auditor: record, ClientAddr: a.site.ClientAddr, Recorder: record,
		Dashboard: func(slug string) string { return a.site.Origin() + "/t/" + slug + "/ui" },
		Log:       log, Version: version, Disabled: cfg.noMCP, StrictEras: cfg.strictEras,
	}
	if err := tools.Check(); err != nil {
		return nil, fmt.Errorf("%w: --toolsets or --exclude-tools: %w", errUsage, err)
	}
	a.tools = mcp.New(tools)
	return d.routes(a.tools, api), nil
}

// checks is what readiness asks.
func (a *app) checks() []rest.Check {
	return []rest.Check{
		{Name: "database", Ask: a.db.Ping},
		{Name: "schema", Ask: a.schemaCurrent},
	}
}

func replicaName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "replica"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

func buildVersion() rest.Version {
	v := rest.Version{Version: version, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Commit = s.Value
			}
		}
	}
	return v
}

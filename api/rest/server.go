// Package rest is the REST adapter: it turns requests under
// /t/{tenant}/api/v1 into calls of the services and their answers and faults
// into JSON. It also serves health, readiness, version and the management
// endpoints of this process.
//
// It owns no table, decides nothing about data and verifies no credential:
// package auth does, through the Gate it is handed. It must not know MCP, the
// dashboard's build, or any SQL. openapi.yaml is the contract; tests hold the
// routes and the real answers against it. Start reading at routes, then
// answer in answer.go.
package rest

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

// Nodes reads the fleet.
type Nodes interface {
	List(ctx context.Context, scope tenants.Scope, q fleet.ListQuery) (fleet.Page, error)
	Get(ctx context.Context, scope tenants.Scope, ref string) (fleet.NodeDetail, error)
	Capabilities(ctx context.Context, scope tenants.Scope, ref string) (fleet.NodeCapabilities, error)
}

// Fleet sums up the fleet and switches modules off.
type Fleet interface {
	Overview(ctx context.Context, scope tenants.Scope) (fleet.Overview, error)
	SetModules(ctx context.Context, scope tenants.Scope, ref string, off []string) ([]fleet.ModuleOff, error)
}

// Metrics reads numbers.
type Metrics interface {
	Summary(ctx context.Context, scope tenants.Scope, q metrics.SummaryQuery) (metrics.Summary, error)
	Query(ctx context.Context, scope tenants.Scope, q metrics.Query) (metrics.Result, error)
}

// Guards are the parts of package auth that stand in front of the routes.
type Guards struct {
	Gate       *auth.Gate
	Fence      *auth.Fence
	Sessions   *auth.Sessions
	Challenger *auth.Challenger
	Limiter    *auth.Limiter // optional: calls a minute
	SignIn     *auth.SignIn  // optional: people sign in at an identity provider
}

// Config builds a Server. All but the fields marked optional must be set.
type Config struct {
	Log     *slog.Logger
	Guards  Guards
	Nodes   Nodes
	Fleet   Fleet
	Metrics Metrics
	Events  Events
	Tasks   Tasks
	Audit   Audit
	Door    Door
	Tenants Tenants
	// Lifecycle is the caller's own tenant.
	Lifecycle Lifecycle
	Trusts    Trusts // optional: then no tenant has an issuer
	// Meaning says what the reason of a fault means and what to do; optional:
	// then the connector self-test names it alone.
	Meaning func(reason string) (means, next string, known bool)
	Site    *auth.Site
	// What administrates a tenant.
	Tokens      Tokens
	EnrolTokens EnrolTokens
	Issuers     Issuers
	IssuerTest  IssuerTester
	Members     Members
	Policies    Policies
	Usage       UsageSources
	// Registry is complete; it says which kinds of task REST may start.
	Registry *inspector.Registry
	Ready    []Check // what /readyz asks, in this order
	Version  Version

	Dashboard http.Handler          // optional: serves / , /assets/* and /t/{tenant}/ui/*
	Own       prometheus.Registerer // optional: where the server's own request metrics are registered
	Now       func() time.Time      // optional: time.Now
	Timeout   time.Duration         // optional: longest time for one answer, 10 s
	// BodyTimeout is the longest time that a body may take to arrive; optional, 5 s.
	BodyTimeout time.Duration
	StreamLife  time.Duration // optional: how long a stream lasts before its reader has to connect again, 10 min
}

// Server answers HTTP. It is safe for concurrent use and starts nothing.
type Server struct {
	cfg   Config
	mux   *chi.Mux
	own   *ownMetrics
	ready *readiness
	live  *streams
}

// New builds a Server.
func New(cfg Config) *Server {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.BodyTimeout <= 0 {
		cfg.BodyTimeout = 5 * time.Second
	}
	if cfg.StreamLife <= 0 {
		cfg.StreamLife = 10 * time.Minute
	}
	s := &Server{cfg: cfg, own: newOwnMetrics(cfg.Own), ready: newReadiness(cfg.Ready, cfg.Now), live: newStreams()}
	s.mux = s.routes()
	return s
}

// ServeHTTP answers one request. A router in front of it leaves no trace: the
// routes here start from the whole path.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if chi.RouteContext(r.Context()) != nil {
		r = r.WithContext(context.WithValue(r.Context(), chi.RouteCtxKey, nil))
	}
	s.mux.ServeHTTP(w, r)
}

// base is where a tenant's API lives.
const base = "/t/{tenant}/api/v1"

func (s *Server) routes() *chi.Mux {
	all := chi.NewRouter()
	all.Use(s.observe, s.bound, middleware.GetHead)
	all.NotFound(within(s.cfg.Timeout)(http.HandlerFunc(s.notFound)).ServeHTTP)
	all.MethodNotAllowed(within(s.cfg.Timeout)(http.HandlerFunc(s.notAllowed)).ServeHTTP)
	r := all.With(within(s.cfg.Timeout))

	r.Get("/healthz", s.plain(s.health))
	r.Get("/readyz", s.readyz)
	r.Get("/version", s.plain(s.version))
	r.Get("/api/v1/openapi.yaml", s.document)

	g := s.cfg.Guards
	door := chi.Chain(g.Fence.Hosts, g.Fence.Origins, s.sealed)
	known := chi.Chain(g.Gate.BearerOrSession, s.noted, s.watched)
	if g.Limiter != nil {
		known = append(known, g.Limiter.REST)
	}
	api := r.With(door...)
	api.With(s.signedIn).Post(base+"/session", s.signIn)
	api.Get(base+"/session", s.whoAmI)
	api.With(s.signedIn).Delete(base+"/session", s.signOut)
	api.Get(base+"/session/providers", s.signInProviders)
	api.Get(base+"/session/login", s.signInBegin)
	api.With(s.signedIn).Get(base+"/session/callback", s.signInCallback)

	read := api.With(known...).With(g.Gate.Require(tenants.Read))
	read.Get(base+"/overview", s.answer(s.overview))
	read.Get(base+"/nodes", s.answer(s.listNodes))
	read.Get(base+"/nodes/{node}", s.answer(s.getNode))
	read.Get(base+"/nodes/{node}/capabilities", s.tagged(s.capabilities))
	read.Get(base+"/metrics/summary", s.answer(s.summary))
	read.Get(base+"/metrics/query", s.answer(s.query))

	read.Get(base+"/events", s.answer(s.listEvents))
	read.Get(base+"/events/{event}", s.answer(s.getEvent))
	read.Get(base+"/tasks", s.answer(s.listTasks))
	read.Get(base+"/tasks/{ticket}", s.answer(s.getTask))

	diagnose := g.Gate.Require(tenants.Diagnose)
	api.With(known...).With(diagnose, s.recorded(false)).Delete(base+"/tasks/{ticket}", s.answer(s.cancelTask))
	all.With(within(taskTimeout)).With(door...).With(known...).With(diagnose, s.recorded(false)).Post(base+"/tasks", s.startTask)

	live := all.With(door...).With(known...).With(g.Gate.Require(tenants.Read)) // without an end of their own
	live.Get(base+"/events/stream", s.stream(s.eventStream))
	live.Get(base+"/tasks/{ticket}/stream", s.stream(s.taskStream))

	admin := api.With(known...).With(g.Gate.Require(tenants.Admin), s.recorded(true))
	admin.Put(base+"/nodes/{node}/modules", s.answer(s.setModules))

	admin.Get(base+"/tokens", s.answer(s.listTokens))
	admin.Post(base+"/tokens", s.created(s.createToken))
	admin.Delete(base+"/tokens/{token}", s.removed(s.revokeToken))
	admin.Get(base+"/enrol-tokens", s.answer(s.listEnrolTokens))
	admin.Post(base+"/enrol-tokens", s.created(s.createEnrolToken))
	admin.Delete(base+"/enrol-tokens/{enrol_token}", s.removed(s.revokeEnrolToken))
	admin.Get(base+"/issuers", s.answer(s.listIssuers))
	admin.Get(base+"/issuers/{issuer}", s.answer(s.getIssuer))
	admin.Delete(base+"/issuers/{issuer}", s.removed(s.deleteIssuer))
	asking := all.With(within(issuerTestTimeout)).With(door...).With(known...).With(g.Gate.Require(tenants.Admin), s.recorded(true))
	asking.Post(base+"/issuers", s.created(s.createIssuer))
	asking.Put(base+"/issuers/{issuer}", s.answer(s.updateIssuer))
	asking.Post(base+"/issuers/{issuer}/test", s.testIssuer)
	admin.Get(base+"/members", s.answer(s.listMembers))
	admin.Post(base+"/members", s.created(s.createMember))
	admin.Get(base+"/members/{member}", s.answer(s.getMember))
	admin.Put(base+"/members/{member}", s.answer(s.updateMember))
	admin.Delete(base+"/members/{member}", s.removed(s.deleteMember))
	admin.Get(base+"/quotas", s.answer(s.getQuotas))
	admin.Put(base+"/quotas", s.answer(s.setQuotas))
	admin.Get(base+"/usage", s.answer(s.usage))
	admin.Get(base+"/audit", s.answer(s.listAudit))

	// What ends a suspension answers during one, too.
	awake := chi.Chain(append(chi.Middlewares{auth.EvenSuspended}, known...)...)
	own := api.With(awake...).With(g.Gate.Require(tenants.Admin), s.recorded(true))
	own.Get(base+"/tenant", s.answer(s.getTenant))
	own.Put(base+"/tenant", s.answer(s.setTenant))
	admin.Delete(base+"/tenant", s.answer(s.deleteTenant))
	all.With(within(exportTimeout)).With(door...).With(auth.LikeWrite).With(known...).With(g.Gate.Require(tenants.Admin), s.recordedAlways(true)).Get(base+"/tenant/export", s.exportTenant)

	r.With(door...).Get("/t/{tenant}/connect", s.connectPage)
	r.With(door...).Get("/t/{tenant}/connect.json", s.connect)

	if d := s.cfg.Dashboard; d != nil {
		pages := r.With(g.Fence.Hosts)
		for _, p := range []string{"/", "/assets/*", "/t/{tenant}/ui", "/t/{tenant}/ui/*"} {
			pages.Method(http.MethodGet, p, d)
		}
	}
	return all
}

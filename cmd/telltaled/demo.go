package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
	"github.com/telltale-dev/telltale/tenants/directory"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/fleet"
)

// demo makes the two tenants with fresh tokens, runs the identity provider that
// they trust and their agents, writes the ready file and prints how to go on. It
// returns when ctx ends or the identity provider does.
func (a *app) demo(ctx context.Context, d *devRun) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	doc := readyDoc{
		BaseURL: a.site.Origin(), MgmtURL: "http://" + a.mgmtAddr.String(), GRPCAddr: a.grpcAddr.String(),
		CAFile: d.caFile, DashboardURL: a.site.Origin() + "/", PostgresDSN: d.dsn,
	}
	d.out.step("tenants acme and globex, with fresh tokens")
	state := loadDevState(d.dir)
	next := devState{EnrolTokens: map[string][]string{}, IDPPort: state.IDPPort}
	for _, slug := range []string{"acme", "globex"} {
		t, enrolIDs, err := a.devTenant(ctx, slug, state.EnrolTokens[slug])
		if err != nil {
			return fmt.Errorf("tenant %s: %w", slug, err)
		}
		doc.Tenants = append(doc.Tenants, t)
		next.EnrolTokens[slug] = enrolIDs
	}
	idp, err := a.devIDP(ctx, d, state.IDPPort)
	if err != nil {
		return err
	}
	var idpGone <-chan struct{} // nil: none runs
	if idp != nil {
		defer func() { cancel(); <-idp.done }()
		doc.Issuer, next.IDPPort, idpGone = &idp.issuer, idp.port, idp.done
	}
	first, err := d.o.first()
	if err != nil {
		return err
	}
	for _, t := range doc.Tenants {
		if err := a.trustIDP(ctx, t.Slug, idp, first); err != nil {
			return fmt.Errorf("tenant %s: trust the identity provider: %w", t.Slug, err)
		}
	}
	if err := next.save(d.dir); err != nil {
		return err
	}

	agents := devAgents(d, doc)
	d.out.step(fmt.Sprintf("agents: %s", agents.summary()))
	running, err := agents.start(ctx)
	if err != nil {
		return err
	}
	defer func() { cancel(); running.wait() }()
	doc.AgentPIDs = running.pids()
	if err := a.awaitNodes(ctx, agents); err != nil {
		return fmt.Errorf("%w; the agents' output is in %s", err, filepath.Join(d.dir, "agents.log"))
	}
	if err := writeJSON(d.o.readyFile, doc); err != nil {
		return err
	}
	defer os.Remove(d.o.readyFile) // what it names is over; a file that stays would mislead
	printWelcome(d, doc, agents.privileges(ctx))
	select {
	case <-ctx.Done():
		return nil
	case <-idpGone:
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("the identity provider ended: %w; its log is %s", idp.err, shown(idp.log))
	}
}

// devTenant makes sure a tenant is there and replaces its tokens: two for
// enrolment, and for each scope an operator token that holds it and read.
func (a *app) devTenant(ctx context.Context, slug string, oldEnrol []string) (t readyTenant, enrolIDs []string, err error) {
	ten, err := a.directory.TenantBySlug(ctx, slug)
	if fault.Is(err, fault.NotFound) {
		ten, err = a.directory.CreateTenant(ctx, slug, slug)
	}
	if err != nil {
		return t, nil, err
	}
	sc := auth.Local(ten, "telltaled dev", tenants.Admin)
	if err := a.devPolicy(ctx, sc); err != nil {
		return t, nil, err
	}
	t = readyTenant{Slug: slug, MCPURL: a.site.MCP(slug), RESTURL: a.site.REST(slug), OperatorTokens: map[string]string{}}
	for _, scope := range tenants.AllScopes() {
		kind := strings.TrimPrefix(scope.String(), "telltale:")
		name := "dev " + kind
		if _, err := a.access.RevokeByName(ctx, sc, name); err != nil {
			return t, nil, err
		}
		if t.OperatorTokens[kind], _, err = a.access.CreateToken(ctx, sc, access.TokenSpec{Name: name, Scopes: tenants.Read | scope}); err != nil {
			return t, nil, err
		}
	}
	for _, id := range oldEnrol {
		if err := a.directory.RevokeEnrolToken(ctx, sc, id); err != nil && !fault.Is(err, fault.NotFound) {
			return t, nil, err
		}
	}
	for _, tok := range []struct {
		secret *string
		uses   int
	}{{&t.EnrolToken, devEnrolUses}, {&t.agentToken, maxDevAgents}} {
		secret, made, err := a.directory.CreateEnrolToken(ctx, sc, directory.EnrolTokenSpec{
			Uses: tok.uses, TTL: 24 * time.Hour, Labels: map[string]string{"environment": "dev"},
		})
		if err != nil {
			return t, nil, err
		}
		*tok.secret, enrolIDs = secret, append(enrolIDs, made.ID)
	}
	return t, enrolIDs, nil
}

// devPolicy gives a demo tenant, once, room for scripts and load tests that a
// real one has no use for.
func (a *app) devPolicy(ctx context.Context, sc tenants.Scope) error {
	now, err := a.access.Policy(ctx, sc)
	if err != nil || !now.UpdatedAt.IsZero() {
		return err
	}
	_, err = a.access.SetPolicy(ctx, sc, tenants.Policy{PrincipalRate: 60_000, TenantRate: 600_000}, nil)
	return err
}

// devEnrolUses is how many nodes the ready file's enrolment token is good for.
const devEnrolUses = 100

// awaitNodes returns once every expected agent is online.
func (a *app) awaitNodes(ctx context.Context, g *agentGroup) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute+time.Duration(g.total())*20*time.Millisecond, errors.New("the agents did not come online in time"))
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for _, want := range g.perTenant() {
		ten, err := a.directory.TenantBySlug(ctx, want.slug)
		if err != nil {
			return err
		}
		sc := auth.Local(ten, "telltaled dev", tenants.Read)
		for {
			o, err := a.fleet.Overview(ctx, sc)
			if err == nil && o.ByStatus[fleet.Online] >= want.n {
				break
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case err := <-g.failed:
				return err
			case <-tick.C:
			}
		}
	}
	return nil
}

// devState remembers, between runs, what the next one must withdraw.
type devState struct {
	EnrolTokens map[string][]string `json:"enrol_tokens"` // slug → ids
	IDPPort     int                 `json:"idp_port,omitempty"`
}

func loadDevState(dir string) (s devState) {
	b, err := os.ReadFile(filepath.Join(dir, "dev.json"))
	if err != nil || json.Unmarshal(b, &s) != nil {
		return devState{} // nothing to withdraw but tokens that expire by themselves
	}
	return s
}

func (s devState) save(dir string) error { return writeJSON(filepath.Join(dir, "dev.json"), s) }

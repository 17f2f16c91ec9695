// Package directory owns who exists: tenants, their nodes and labels, the
// certificate authorities that name the nodes, and the tokens that enrol them.
//
// It alone writes the tables tenant, tenant_ca, node, node_label and
// enrol_token. It knows no certificate format (package auth makes and seals
// what it stores), no transport, and nothing of what a node measures.
//
// Start reading at Service; enrol.go holds the one path by which a node comes
// to be.
package directory

import (
	"log/slog"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Tenant is one owner of nodes, people, tokens and data.
type Tenant = tenants.Tenant

// Identity is what a node's certificate is checked against.
type Identity = tenants.NodeIdentity

// Config tunes a Service. The zero value is ready for production.
type Config struct {
	// TenantTTL bounds how long a tenant's row may be answered from memory, and
	// so how late a suspension bites on another replica. Zero means 3 s; more
	// than tenants.RevocationDelay is cut to it.
	TenantTTL time.Duration
	// Now is the clock. Nil means time.Now.
	Now func() time.Time
	// Quotas bounds nodes and enrolment tokens. Nil means the server's defaults.
	Quotas Quotas
}

// Service answers for tenants and nodes. It is safe for concurrent use; only
// Run works by itself.
type Service struct {
	db     *tenantdb.DB
	log    *slog.Logger
	now    func() time.Time
	slugs  *slugCache
	quotas Quotas

	exports   chan struct{} // holds one of each export under way
	exporting sync.Map      // tenants.TenantID of each
}

// New makes a Service on a migrated database.
func New(db *tenantdb.DB, log *slog.Logger, cfg Config) *Service {
	if cfg.TenantTTL <= 0 {
		cfg.TenantTTL = 3 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{db: db, log: log, now: cfg.Now, quotas: cfg.Quotas, slugs: newSlugCache(min(cfg.TenantTTL, tenants.RevocationDelay), maxCachedSlugs), exports: make(chan struct{}, maxExports)}
}

func noNode(ref string) *fault.Error {
	return fault.Newf(fault.NotFound, "unknown_node", "no node %.80q", ref).Do("list the nodes to see their ids and names")
}

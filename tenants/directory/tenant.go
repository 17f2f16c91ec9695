package directory

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// maxName bounds a name for people, in bytes.
const maxName = 200

// CreateTenant makes a tenant. It belongs to the server's own commands and is
// offered to no principal. A slug that was ever used is a Conflict; an empty
// name becomes the slug.
func (s *Service) CreateTenant(ctx context.Context, slug, name string) (Tenant, error) {
	if err := tenants.CheckSlug(slug); err != nil {
		return Tenant{}, err
	}
	if name == "" {
		name = slug
	}
	if err := checkName("name", name); err != nil {
		return Tenant{}, err
	}
	t := Tenant{ID: tenants.NewTenantID(), Slug: slug, Name: name, CreatedAt: s.now().UTC()}
	err := s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, insertTenant, t.ID, t.Slug, t.Name, t.CreatedAt)
		return err
	})
	if tenantdb.Violated(err, "credential_pkey") {
		return Tenant{}, fault.Newf(fault.Conflict, "slug_taken", "the slug %s is or was in use", slug).Do("choose another slug: slugs are never reused")
	}
	if err != nil {
		return Tenant{}, fmt.Errorf("create tenant %s: %w", slug, err)
	}
	s.slugs.drop(slug)
	return t, nil
}

// TenantBySlug finds a tenant; NotFound when there is none or it was deleted. The answer may be
// as old as Config.TenantTTL.
func (s *Service) TenantBySlug(ctx context.Context, slug string) (Tenant, error) {
	t, found, fresh := s.slugs.get(slug)
	if !fresh {
		if tenants.CheckSlug(slug) != nil {
			return Tenant{}, noTenant()
		}
		asked := s.slugs.asked()
		var err error
		if t, found, err = s.readTenant(ctx, slug); err != nil {
			return Tenant{}, fmt.Errorf("find tenant %s: %w", slug, err)
		}
		s.slugs.put(slug, t, found, asked)
	}
	if !found {
		return Tenant{}, noTenant()
	}
	return t, nil
}

func (s *Service) readTenant(ctx context.Context, slug string) (t Tenant, found bool, err error) {
	id, found, err := s.db.CredentialTenant(ctx, "tenant", "tenant/"+slug)
	if err != nil || !found {
		return Tenant{}, false, err
	}
	t, found, err = tenantdb.QueryOne(ctx, s.db, id, selectTenant, []any{id}, scanTenant)
	if t.DeletedAt != nil { // its slug stays taken, and that is all
		return Tenant{}, false, err
	}
	return t, found, err
}

// ListTenants lists every tenant by slug. It belongs to the server's own
// commands and is offered to no principal.
func (s *Service) ListTenants(ctx context.Context) ([]Tenant, error) {
	var out []Tenant
	err := s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, selectTenants)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, scanTenant)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list tenants: %w", err)
	}
	return out, nil
}

// SetSuspended stops or resumes a tenant: while suspended, none of its
// credentials is accepted. Other replicas follow within tenants.RevocationDelay.
func (s *Service) SetSuspended(ctx context.Context, slug string, suspended bool) error {
	return s.setFlag(ctx, slug, updateSuspended, suspended)
}

// SetMCP switches the MCP endpoint of a tenant on or off.
func (s *Service) SetMCP(ctx context.Context, slug string, enabled bool) error {
	return s.setFlag(ctx, slug, updateMCPDisabled, !enabled)
}

func (s *Service) setFlag(ctx context.Context, slug, sql string, value bool) error {
	err := s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, slug, value)
		if err == nil && tag.RowsAffected() == 0 {
			return noTenant()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("change tenant %s: %w", slug, err)
	}
	s.slugs.drop(slug)
	return nil
}

func noTenant() *fault.Error {
	return fault.New(fault.NotFound, "unknown_tenant", "no such tenant").Do("check the tenant in the URL")
}

func checkName(field, name string) error {
	switch {
	case strings.TrimSpace(name) == "" || len(name) > maxName:
		return fault.Bad(field, "want 1 to %d bytes of text", maxName)
	case inspector.CleanText(name) != name:
		return fault.Bad(field, "want plain text without control or invisible characters")
	}
	return nil
}

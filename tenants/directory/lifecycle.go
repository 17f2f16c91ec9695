package directory

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

const (
	// ExportCovers is how long after an export a tenant may be deleted.
	ExportCovers = 24 * time.Hour
	// eraseEvery is how often deleted tenants are looked for.
	eraseEvery = 30 * time.Second
	// maxExports bounds the exports that this replica makes at once, of which a
	// tenant has one: each holds a connection of the database.
	maxExports = 2
)

// Who suspended a tenant. What the operator of the server suspended, no
// administrator of the tenant resumes.
const (
	ByOperator = "operator"
	ByAdmin    = "admin"
)

// kept are the tables that outlive their tenant: its own row and the way from
// its slug to it, so that the slug is never reused (the rest of credential goes
// with what it leads to), and the audit, which ages out by itself.
var kept = []string{"tenant", "credential", "audit", "audit_seal"}

// Tenant returns the caller's own tenant. The caller needs admin.
func (s *Service) Tenant(ctx context.Context, sc tenants.Scope) (Tenant, error) {
	if err := sc.Require(tenants.Admin); err != nil {
		return Tenant{}, err
	}
	t, found, err := tenantdb.QueryOne(ctx, s.db, sc.Tenant, selectTenant, []any{sc.Tenant}, scanTenant)
	if err == nil && !found {
		err = noTenant()
	}
	return t, err
}

// Suspend stops or resumes the caller's own tenant: while suspended, its
// credentials are good for resuming it and for nothing else. Other replicas
// follow within tenants.RevocationDelay. The caller needs admin and reaches all
// nodes. What the server's operator suspended stays suspended.
func (s *Service) Suspend(ctx context.Context, sc tenants.Scope, suspended bool) (Tenant, error) {
	if err := ownsTenant(sc); err != nil {
		return Tenant{}, err
	}
	t, err := s.changeOwn(ctx, sc, suspendOwn, sc.Tenant, suspended)
	if err == nil && t.Suspended != suspended {
		return Tenant{}, fault.New(fault.Denied, "suspended_by_operator", "the operator of this server suspended the tenant").Do("ask the operator of this server")
	}
	return t, err
}

func ownsTenant(sc tenants.Scope) error {
	if err := sc.Require(tenants.Admin); err != nil {
		return err
	}
	if !sc.Nodes.All() {
		return fault.New(fault.Denied, "outside_selector", "this concerns nodes that you may not see").Do("use a credential that is limited to no nodes")
	}
	return nil
}

// changeOwn runs a change of one tenant's row, which no role of a tenant may
// make, and returns the row.
func (s *Service) changeOwn(ctx context.Context, sc tenants.Scope, sql string, args ...any) (t Tenant, err error) {
	err = s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sql, args...); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, selectTenant, sc.Tenant)
		if err != nil {
			return err
		}
		t, err = pgx.CollectExactlyOneRow(rows, scanTenant)
		return err
	})
	if err != nil {
		return Tenant{}, fmt.Errorf("change tenant %s: %w", sc.Slug, err)
	}
	s.slugs.drop(t.Slug)
	return t, nil
}

// ExportEnd is the last line of an export.
type ExportEnd struct {
	Rows   int64  `json:"rows"`
	SHA256 string `json:"sha256"` // hex, of all bytes before this line
}

// exportLine is one row of an export.
type exportLine struct {
	Table string          `json:"table"`
	Row   json.RawMessage `json:"row"`
}

// Export writes all rows of the caller's tenant from one snapshot, one JSON
// object a line, and a last line {"end":{"rows":N,"sha256":"…"}} that only a
// whole export has. Secrets, their hashes and sessions are left out; packed
// values are hexadecimal. For ExportCovers the tenant can then be deleted. The
// caller needs admin and reaches all nodes.
func (s *Service) Export(ctx context.Context, sc tenants.Scope, w io.Writer) (ExportEnd, error) {
	if err := ownsTenant(sc); err != nil {
		return ExportEnd{}, err
	}
	if _, busy := s.exporting.LoadOrStore(sc.Tenant, true); busy {
		return ExportEnd{}, fault.New(fault.Exhausted, "too_many_exports", "this tenant is being exported already").Do("wait until that export has ended")
	}
	defer s.exporting.Delete(sc.Tenant)
	select {
	case s.exports <- struct{}{}:
		defer func() { <-s.exports }()
	default:
		return ExportEnd{}, fault.Newf(fault.Exhausted, "too_many_exports", "this server makes %d exports already", maxExports).Do("try again in some minutes")
	}
	var end ExportEnd
	sum := sha256.New()
	enc := json.NewEncoder(io.MultiWriter(w, sum))
	err := s.db.Export(ctx, sc.Tenant, exportBytes, []string{"browser_session", "tenant_ca"}, func(table string, row []byte) error {
		end.Rows++
		return enc.Encode(exportLine{table, row})
	})
	if err != nil {
		return end, fmt.Errorf("export tenant %s: %w", sc.Slug, err)
	}
	end.SHA256 = hex.EncodeToString(sum.Sum(nil))
	if err := json.NewEncoder(w).Encode(map[string]ExportEnd{"end": end}); err != nil {
		return end, fmt.Errorf("export tenant %s: %w", sc.Slug, err)
	}
	_, err = s.changeOwn(ctx, sc, markExported, sc.Tenant, s.now().UTC())
	return end, err
}

// exportBytes are the columns of bytes that hold data and no secret.
var exportBytes = []string{"win.vals", "layout.hash", "layout.encoded", "event.fingerprint", "task_result.body", "audit_seal.prev_hash", "audit_seal.hash", "audit_seal.digests"}

// Delete ends the caller's own tenant for good: from now on none of its
// credentials is known anywhere, its agents are cut, and Run erases its rows.
// confirm must be the tenant's slug. Unless without is set, an export must have
// been completed within ExportCovers. The audit stays until it ages out. The
// caller needs admin and reaches all nodes.
func (s *Service) Delete(ctx context.Context, sc tenants.Scope, confirm string, without bool) error {
	if err := ownsTenant(sc); err != nil {
		return err
	}
	if confirm != sc.Slug {
		return fault.Bad("confirm", "want the tenant's slug, %s", sc.Slug).Do("send confirm=" + sc.Slug + " if you mean to delete this tenant for good")
	}
	t, err := s.Tenant(ctx, sc)
	if err != nil {
		return err
	}
	now := s.now().UTC()
	if !without && (t.ExportedAt == nil || now.Sub(*t.ExportedAt) > ExportCovers) {
		return fault.Newf(fault.Precondition, "not_exported", "no export of this tenant was completed within %s", ExportCovers).
			Do("fetch tenant/export first, or send without_export=true")
	}
	if _, err := s.changeOwn(ctx, sc, markDeleted, sc.Tenant, now); err != nil {
		return err
	}
	s.log.Warn("tenant deleted", "tenant", sc.Tenant, "slug", sc.Slug, "by", string(sc.Principal.Kind)+":"+sc.Principal.ID)
	return nil
}

// Run erases the rows of deleted tenants until ctx ends. Any number of replicas
// may run it.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(eraseEvery)
	defer tick.Stop()
	for {
		if err := s.EraseDeleted(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("deleted tenants not erased yet", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// EraseDeleted erases the rows of tenants that were deleted longer than
// tenants.RevocationDelay ago, when no replica takes anything for them any more.
func (s *Service) EraseDeleted(ctx context.Context) error {
	var ids []tenants.TenantID
	err := s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		ids, err = collect[tenants.TenantID](ctx, tx, selectDeleted, s.now().UTC().Add(-2*tenants.RevocationDelay))
		return err
	})
	if err != nil {
		return fmt.Errorf("list deleted tenants: %w", err)
	}
	for _, id := range ids {
		rows, err := s.db.Erase(ctx, id, kept...)
		if err != nil {
			return fmt.Errorf("erase tenant %s: %w", id, err)
		}
		err = s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, markErased, id, s.now().UTC())
			return err
		})
		if err != nil {
			return fmt.Errorf("erase tenant %s: %w", id, err)
		}
		s.log.Info("deleted tenant erased", "tenant", id, "rows", rows)
	}
	return nil
}

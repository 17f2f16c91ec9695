package access

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Session is one dashboard session without its secret.
type Session = tenants.BrowserSession

// sweepEvery is how often Run deletes sessions that are over.
const sweepEvery = time.Hour

// PutSession stores a session and, in the same transaction, ends the one it
// replaces (an id, or empty).
func (s *Service) PutSession(ctx context.Context, ses Session, replaces string) error {
	err := s.db.InTenant(ctx, ses.Tenant, func(ctx context.Context, tx pgx.Tx) error {
		if replaces != "" {
			if _, err := tx.Exec(ctx, deleteSession, ses.Tenant, replaces); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, insertSession, ses.Tenant, ses.ID, ses.Hash[:], ses.TokenID, ses.Facts, ses.CreatedAt, ses.LastSeenAt, ses.ExpiresAt)
		return err
	})
	if err != nil {
		return fmt.Errorf("store session: %w", err)
	}
	return nil
}

// SessionByID finds a session of one tenant by its public id; NotFound when
// there is none. Whether it is still good is for the verifier to say.
func (s *Service) SessionByID(ctx context.Context, tenant tenants.TenantID, id string) (Session, error) {
	ses, found, err := tenantdb.QueryOne(ctx, s.db, tenant, selectSession, []any{tenant, id}, scanSession)
	if err != nil {
		return Session{}, fmt.Errorf("find session: %w", err)
	}
	if !found {
		return Session{}, fault.New(fault.NotFound, "unknown_session", "no such session").Do("sign in again")
	}
	return ses, nil
}

// EndSession forgets a session; ending an unknown one is fine.
func (s *Service) EndSession(ctx context.Context, tenant tenants.TenantID, id string) error {
	err := s.db.InTenant(ctx, tenant, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, deleteSession, tenant, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("end session: %w", err)
	}
	return nil
}

// TouchSessions notes when sessions were last used, as TouchTokens does.
func (s *Service) TouchSessions(ctx context.Context, tenant tenants.TenantID, uses map[string]time.Time) error {
	return s.touch(ctx, tenant, touchSessions, uses)
}

// Run deletes sessions that are over, once an hour, until ctx ends. Several
// replicas may run it.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if n, err := s.Sweep(ctx); err != nil {
				s.log.Warn("old sessions not deleted", "err", err)
			} else if n > 0 {
				s.log.Debug("old sessions deleted", "sessions", n)
			}
		}
	}
}

// Sweep deletes the sessions whose absolute end is past and returns how many.
func (s *Service) Sweep(ctx context.Context) (n int, err error) {
	err = s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sweepSessions, s.now().UTC())
		n = int(tag.RowsAffected())
		return err
	})
	return n, err
}

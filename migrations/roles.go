package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The roles of the database cluster. They are shared by all databases of it.
const (
	OwnerRole  = "telltale_owner"  // owns every object, never logs in
	IngestRole = "telltale_ingest" // writes what nodes report, for a list of tenants
	AppRole    = "telltale_app"    // answers callers, for one tenant
	JobsRole   = "telltale_jobs"   // maintenance and administration, sees all tenants
)

// prepare makes the roles and the rights on the database that the migrations
// need. It changes nothing that is right already, so that an administrator
// with few rights may run it again.
func prepare(ctx context.Context, conn *pgx.Conn) error {
	for _, role := range []string{OwnerRole, IngestRole, AppRole, JobsRole} {
		if err := makeRole(ctx, conn, role); err != nil {
			return err
		}
	}
	steps := []struct{ needed, do string }{
		{lacksSetRole(OwnerRole), `grant ` + OwnerRole + ` to current_user`},
		{lacksSetRole(JobsRole), `grant ` + JobsRole + ` to current_user`}, // for migrations of rows
		{`select has_schema_privilege('public', 'public', 'create')`,
			`revoke create on schema public from public`},
		{`select not has_schema_privilege('` + OwnerRole + `', 'public', 'create')`,
			`grant create, usage on schema public to ` + OwnerRole},
		{`select has_database_privilege('public', current_database(), 'temporary')`,
			`do $$ begin execute format('revoke temporary on database %I from public', current_database()); end $$`},
	}
	for _, s := range steps {
		var needed bool
		if err := conn.QueryRow(ctx, s.needed).Scan(&needed); err != nil {
			return fmt.Errorf("look at the rights of this database: %w", err)
		}
		if !needed {
			continue
		}
		if _, err := conn.Exec(ctx, s.do); err != nil {
			return fmt.Errorf("prepare the database (%s; run it as its owner): %w", s.do, err)
		}
	}
	return nil
}

// lacksSetRole asks whether the right to SET ROLE is missing. From PostgreSQL 16
// on, who creates a role is a member of it without that right.
func lacksSetRole(role string) string {
	return `select not pg_has_role(current_user, '` + role + `',
		case when current_setting('server_version_num')::int >= 160000 then 'set' else 'member' end)`
}

// makeRole creates a role, or checks that an existing one cannot bypass row
// policies. Other databases of the cluster may do the same at the same time.
func makeRole(ctx context.Context, conn *pgx.Conn, role string) error {
	var mighty bool
	err := conn.QueryRow(ctx, `select rolsuper or rolbypassrls from pg_roles where rolname = $1`, role).Scan(&mighty)
	switch {
	case err == nil && mighty:
		return fmt.Errorf("role %s is a superuser or bypasses row-level security: run ALTER ROLE %s NOSUPERUSER NOBYPASSRLS", role, role)
	case err == nil:
		return nil
	case !errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("look up role %s: %w", role, err)
	}
	login := "login"
	if role == OwnerRole {
		login = "nologin"
	}
	_, err = conn.Exec(ctx, `create role `+role+` `+login+` nosuperuser nocreatedb nocreaterole noreplication nobypassrls`)
	var pe *pgconn.PgError
	if errors.As(err, &pe) && slices.Contains([]string{"42710", "23505"}, pe.Code) {
		return nil // somebody else was quicker
	}
	if err != nil {
		return fmt.Errorf("create role %s (the migrating user needs CREATEROLE): %w", role, err)
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os/user"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/migrations"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/directory"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// database is how a command reaches PostgreSQL.
type database struct {
	dsn, app, ingest, jobs, listen, owner secret
	pooler                                bool
	trust                                 access.Config // what a command that keeps issuers sets before it opens
}

func (d *database) flags(fs *flag.FlagSet) {
	fs.Var(&d.dsn, "database", "connection string `DSN` of the database; its user and password are replaced by those of the three roles telltale_app, telltale_ingest and telltale_jobs (a password file or a trusted socket lets them in)")
	fs.Var(&d.app, "database-app", "`DSN` for the application role, where it differs")
	fs.Var(&d.ingest, "database-ingest", "`DSN` for the ingest role, where it differs")
	fs.Var(&d.jobs, "database-jobs", "`DSN` for the jobs role, where it differs")
	fs.Var(&d.listen, "database-listen", "`DSN` for the two connections that carry hints between servers; needed behind a transaction pooler, which cannot")
	fs.BoolVar(&d.pooler, "database-pooler", false, "a transaction pooler stands between: no prepared statements")
}

func (d *database) ownerFlag(fs *flag.FlagSet) {
	fs.Var(&d.owner, "database-owner", "`DSN` of a user who may create roles and owns the database; default: --database")
}

func (d *database) ownerDSN() string {
	if d.owner != "" {
		return string(d.owner)
	}
	return string(d.dsn)
}

func (d *database) check() error {
	if d.dsn == "" && (d.app == "" || d.ingest == "" || d.jobs == "") {
		return errors.New("--database is missing (or TELLTALE_DATABASE): name the PostgreSQL database, for example 'host=/run/postgresql dbname=telltale'")
	}
	return nil
}

func (d *database) config() tenantdb.Config {
	return tenantdb.Config{DSN: string(d.dsn), AppDSN: string(d.app), IngestDSN: string(d.ingest), JobsDSN: string(d.jobs), ListenDSN: string(d.listen), Pooler: d.pooler}
}

// open connects and makes the two services that administration needs.
func (d *database) open(ctx context.Context, log *slog.Logger) (*admin, error) {
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	db, err := tenantdb.Open(ctx, d.config(), log)
	if err != nil {
		return nil, err
	}
	people := access.New(db, log, d.trust)
	return &admin{db: db, access: people, directory: directory.New(db, log, directory.Config{Quotas: people})}, nil
}

// admin is what the administrative commands use.
type admin struct {
	db        *tenantdb.DB
	directory *directory.Service
	access    *access.Service

	person    string       // who is at the shell; empty in the server
	command   string       // its words; empty in the server
	arguments string       // what it was told, without secrets
	acting    *audit.Entry // what it is about to do, see begun
}

// scope is the operator of this machine, administering one tenant.
func (a *admin) scope(ctx context.Context, slug string) (tenants.Scope, error) {
	if slug == "" {
		return tenants.Scope{}, fmt.Errorf("%w: --tenant is missing: name a tenant's slug ('telltaled tenant list' shows them)", errUsage)
	}
	t, err := a.directory.TenantBySlug(ctx, slug)
	if fault.Is(err, fault.NotFound) {
		return tenants.Scope{}, fmt.Errorf("there is no tenant %q: 'telltaled tenant list' shows them", slug)
	}
	if err != nil {
		return tenants.Scope{}, err
	}
	sc := auth.Local(t, "telltaled", tenants.Admin)
	if a.person != "" {
		sc.Principal.Name = a.person
	}
	return sc, a.begun(ctx, sc)
}

var errSchema = fault.New(fault.Unavailable, "schema_behind", "the database's schema is not the one this program needs").Do("run 'telltaled migrate'")

// schemaCurrent fails unless every migration of this program is applied.
func (a *admin) schemaCurrent(ctx context.Context) error {
	want, err := migrations.Latest()
	if err != nil {
		return err
	}
	var have int
	err = a.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var any bool // a database that was never migrated has no such table
		if err := tx.QueryRow(ctx, `select to_regclass('public.schema_migration') is not null`).Scan(&any); err != nil || !any {
			return err
		}
		return tx.QueryRow(ctx, `select coalesce(max(version), 0) from public.schema_migration`).Scan(&have)
	})
	if err != nil {
		return err
	}
	if have < want {
		return errSchema
	}
	return nil
}

// osUser names the person at the shell, as far as the system knows. What sudo
// says is believed of root alone: everybody else can set it.
func osUser(getenv func(string) (string, bool)) string {
	u, err := user.Current()
	if err != nil {
		return "telltaled"
	}
	if by, ok := getenv("SUDO_USER"); ok && u.Uid == "0" && by != "" && by != u.Username {
		return inspector.CleanText(by) + " as " + u.Username
	}
	return u.Username
}

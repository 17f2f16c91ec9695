package access

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Sealer encrypts a secret for one use, so that the database cannot read it.
type Sealer interface {
	Seal(plain []byte, use string) []byte
}

// CreateIssuer makes the tenant trust an identity provider. The caller needs
// admin and must reach all nodes: whoever chooses the keys of an issuer chooses
// who everybody is. A URL that the tenant trusts already is a Conflict. So is,
// with reason issuer_shared or issuer_taken, what would let one tenant's
// people into another: a rule for everybody at an issuer of two tenants, without
// a claim that ties tokens to the one.
func (s *Service) CreateIssuer(ctx context.Context, sc tenants.Scope, spec IssuerSpec) (tenants.Issuer, error) {
	return s.storeIssuer(ctx, sc, spec, false)
}

// PutIssuer is CreateIssuer, but changes the issuer when the tenant trusts its
// URL already; it can be repeated.
func (s *Service) PutIssuer(ctx context.Context, sc tenants.Scope, spec IssuerSpec) (tenants.Issuer, error) {
	return s.storeIssuer(ctx, sc, spec, true)
}

func (s *Service) storeIssuer(ctx context.Context, sc tenants.Scope, spec IssuerSpec, replace bool) (i tenants.Issuer, err error) {
	if err := mayTrust(sc); err != nil {
		return i, err
	}
	if err := checkURL("url", spec.URL, s.loopback, true); err != nil { // the rest when it is known what there is
		return i, err
	}
	err = s.db.InTenant(ctx, sc.Tenant, func(ctx context.Context, tx pgx.Tx) error {
		full := issuerQuota.room(ctx, tx, sc.Tenant) // its lock also keeps two from adding one URL
		if full != nil && !fault.Is(full, fault.Exhausted) {
			return full
		}
		old, found, err := oneIssuer(ctx, tx, lockIssuerByURL, sc.Tenant, spec.URL)
		switch {
		case err != nil:
			return err
		case found && !replace:
			return issuerExists()
		case found:
			i, err = s.changeIssuer(ctx, tx, sc, old, spec)
			return err
		case full != nil:
			return full
		}
		if i, err = s.shape(tenants.Issuer{ID: uuid.Must(uuid.NewV7()).String(), Tenant: sc.Tenant, CreatedAt: later(s.now(), time.Time{})}, spec); err != nil {
			return err
		}
		i.UpdatedAt = i.CreatedAt
		_, err = tx.Exec(ctx, insertIssuer, append(issuerArgs(i), i.CreatedAt, author(sc))...)
		if err == nil {
			err = tx.QueryRow(ctx, selectShared, i.URL).Scan(&i.Shared)
		}
		return err
	})
	if err != nil {
		return tenants.Issuer{}, fmt.Errorf("store issuer: %w", trustFault(err))
	}
	s.log.Info("issuer trusted", "tenant", sc.Tenant, "issuer", i.ID, "url", i.URL, "roles", len(i.Roles), "by", author(sc))
	return i, nil
}

// UpdateIssuer changes an issuer; its URL stays and may be left out. since is
// the UpdatedAt that the change was made on, or nil for whatever is there; a
// Precondition fault with reason changed_meanwhile when it is another. NotFound
// when the tenant has none with this id.
func (s *Service) UpdateIssuer(ctx context.Context, sc tenants.Scope, id string, spec IssuerSpec, since *time.Time) (i tenants.Issuer, err error) {
	if err := mayTrust(sc); err != nil {
		return i, err
	}
	key, err := uuid.Parse(id)
	if err != nil {
		return i, noIssuer()
	}
	err = s.db.InTenant(ctx, sc.Tenant, func(ctx context.Context, tx pgx.Tx) error {
		old, found, err := oneIssuer(ctx, tx, lockIssuer, sc.Tenant, key.String())
		switch {
		case err != nil:
			return err
		case !found:
			return noIssuer()
		case since != nil && !since.Equal(old.UpdatedAt):
			return changedMeanwhile()
		case spec.URL != "" && spec.URL != old.URL:
			return keepsURL()
		}
		spec.URL = old.URL
		i, err = s.changeIssuer(ctx, tx, sc, old, spec)
		return err
	})
	if err != nil {
		return tenants.Issuer{}, fmt.Errorf("change issuer: %w", trustFault(err))
	}
	s.log.Info("issuer changed", "tenant", sc.Tenant, "issuer", i.ID, "url", i.URL, "roles", len(i.Roles), "by", author(sc))
	return i, nil
}

// changeIssuer writes an issuer that is locked. What stays as it was is not
// written, and keeps its UpdatedAt.
func (s *Service) changeIssuer(ctx context.Context, tx pgx.Tx, sc tenants.Scope, old tenants.Issuer, spec IssuerSpec) (tenants.Issuer, error) {
	i, err := s.shape(old, spec)
	if err != nil {
		return i, err
	}
	if alike(old, i) {
		return old, nil
	}
	i.UpdatedAt = later(s.now(), old.UpdatedAt)
	if _, err := tx.Exec(ctx, updateIssuer, issuerArgs(i)...); err != nil {
		return i, err
	}
	return i, tx.QueryRow(ctx, selectShared, i.URL).Scan(&i.Shared)
}

// shape is an issuer with what a spec says of it.
func (s *Service) shape(i tenants.Issuer, spec IssuerSpec) (tenants.Issuer, error) {
	if err := spec.check(i.SealedSecret != nil, s.loopback); err != nil {
		return i, err
	}
	switch {
	case spec.ClientSecret == nil && i.SealedSecret != nil && spec.IntrospectionURL != i.IntrospectionURL:
		// Whoever chooses where a secret is sent could otherwise read it there.
		return i, fault.Bad("client_secret", "a kept client secret is not sent to another introspection URL").Do("give the client secret again, or an empty one to remove it")
	case spec.ClientSecret == nil:
	case *spec.ClientSecret == "":
		i.SealedSecret = nil
	case s.sealer == nil:
		return i, fault.New(fault.Precondition, "no_sealing_key", "this process has no key to seal the client secret with").Do("name the server's key file with --key-file")
	default:
		i.SealedSecret = s.sealer.Seal([]byte(*spec.ClientSecret), tenants.IssuerSecretUse)
	}
	i.URL, i.Name, i.JWKSURL, i.IntrospectionURL = spec.URL, spec.Name, spec.JWKSURL, spec.IntrospectionURL
	i.ClientID, i.DashboardClientID, i.Mode, i.Audiences = spec.ClientID, spec.DashboardClientID, spec.Mode, spec.Audiences
	i.TenantClaim, i.TenantValue, i.Types, i.Algorithms = spec.TenantClaim, spec.TenantValue, spec.Types, spec.Algorithms
	i.ScopeClaim, i.Opaque, i.Roles = spec.ScopeClaim, spec.Opaque, spec.Roles
	return i, nil
}

// DraftIssuer is the issuer that PutIssuer would store, for a test before it;
// it stores nothing, and an issuer that is new has no id.
func (s *Service) DraftIssuer(ctx context.Context, sc tenants.Scope, spec IssuerSpec) (tenants.Issuer, error) {
	return s.draft(ctx, sc, spec, true)
}

// DraftNew is DraftIssuer for CreateIssuer, and refuses a URL that is trusted.
func (s *Service) DraftNew(ctx context.Context, sc tenants.Scope, spec IssuerSpec) (tenants.Issuer, error) {
	return s.draft(ctx, sc, spec, false)
}

func (s *Service) draft(ctx context.Context, sc tenants.Scope, spec IssuerSpec, replace bool) (tenants.Issuer, error) {
	if err := mayTrust(sc); err != nil {
		return tenants.Issuer{}, err
	}
	if err := checkURL("url", spec.URL, s.loopback, true); err != nil {
		return tenants.Issuer{}, err
	}
	old, err := s.findIssuer(ctx, sc, selectIssuerByURL, spec.URL)
	if fault.Is(err, fault.NotFound) {
		old, err = tenants.Issuer{Tenant: sc.Tenant}, nil
	}
	if err != nil {
		return tenants.Issuer{}, err
	}
	if old.ID != "" && !replace {
		return tenants.Issuer{}, issuerExists()
	}
	return s.shape(old, spec)
}

// DraftChange is the issuer that UpdateIssuer would store, for a test before it;
// it stores nothing and refuses what UpdateIssuer would.
func (s *Service) DraftChange(ctx context.Context, sc tenants.Scope, id string, spec IssuerSpec, since *time.Time) (tenants.Issuer, error) {
	if err := mayTrust(sc); err != nil {
		return tenants.Issuer{}, err
	}
	old, err := s.GetIssuer(ctx, sc, id)
	switch {
	case err != nil:
		return tenants.Issuer{}, err
	case since != nil && !since.Equal(old.UpdatedAt):
		return tenants.Issuer{}, changedMeanwhile()
	case spec.URL != "" && spec.URL != old.URL:
		return tenants.Issuer{}, keepsURL()
	}
	spec.URL = old.URL
	return s.shape(old, spec)
}

func keepsURL() *fault.Error {
	return fault.Bad("url", "an issuer keeps its URL").Do("add the other URL as an issuer of its own, and remove this one")
}

// DeleteIssuer ends the trust in an issuer and removes its members: its tokens
// are refused within tenants.RevocationDelay on every replica. NotFound when
// the tenant has none with this id.
func (s *Service) DeleteIssuer(ctx context.Context, sc tenants.Scope, id string) error {
	if err := mayTrust(sc); err != nil {
		return err
	}
	key, err := uuid.Parse(id)
	if err != nil {
		return noIssuer()
	}
	err = s.db.InTenant(ctx, sc.Tenant, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, deleteIssuer, sc.Tenant, key.String())
		if err == nil && tag.RowsAffected() == 0 {
			return noIssuer()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("remove issuer: %w", err)
	}
	s.log.Info("issuer removed", "tenant", sc.Tenant, "issuer", key, "by", author(sc))
	return nil
}

// GetIssuer reads one issuer by its id. The caller needs admin; one that is
// limited to some nodes does not see the rules that reach further. NotFound
// when the tenant has none.
func (s *Service) GetIssuer(ctx context.Context, sc tenants.Scope, id string) (tenants.Issuer, error) {
	key, err := uuid.Parse(id)
	if err != nil {
		if err := sc.Require(tenants.Admin); err != nil {
			return tenants.Issuer{}, err
		}
		return tenants.Issuer{}, noIssuer()
	}
	return s.findIssuer(ctx, sc, selectIssuer, key.String())
}

// IssuerByURL is GetIssuer by the exact URL.
func (s *Service) IssuerByURL(ctx context.Context, sc tenants.Scope, url string) (tenants.Issuer, error) {
	if err := checkText("url", url, 1, MaxURL); err != nil {
		return tenants.Issuer{}, err
	}
	return s.findIssuer(ctx, sc, selectIssuerByURL, url)
}

func (s *Service) findIssuer(ctx context.Context, sc tenants.Scope, sql, key string) (tenants.Issuer, error) {
	if err := sc.Require(tenants.Admin); err != nil {
		return tenants.Issuer{}, err
	}
	i, found, err := tenantdb.QueryOne(ctx, s.db, sc.Tenant, sql, []any{sc.Tenant, key}, scanIssuer)
	if err != nil {
		return tenants.Issuer{}, fmt.Errorf("find issuer: %w", err)
	}
	if !found {
		return tenants.Issuer{}, noIssuer()
	}
	return within(i, sc.Nodes), nil
}

// ListIssuers lists issuers, the newest first, as GetIssuer shows them. limit
// and cursor are as in ListTokens.
func (s *Service) ListIssuers(ctx context.Context, sc tenants.Scope, cursor string, limit int) (issuers []tenants.Issuer, next string, err error) {
	issuers, next, err = list(ctx, s, sc, listing[tenants.Issuer]{
		what: "issuers", sql: selectIssuers, scan: scanIssuer, uuids: true,
		key:  func(i tenants.Issuer) (time.Time, string) { return i.CreatedAt, i.ID },
		keep: func(tenants.Issuer) bool { return true },
	}, cursor, limit)
	for n := range issuers {
		issuers[n] = within(issuers[n], sc.Nodes)
	}
	return issuers, next, err
}

// IssuerNotes says what an administrator should know of an issuer as it is set.
func IssuerNotes(i tenants.Issuer) []string {
	notes := []string{}
	switch {
	case len(i.Roles) == 0:
		notes = append(notes, "no rule: only members are let in, whatever a token says")
	case i.Open():
		notes = append(notes, "a rule without a claim: everybody who has an account at this issuer is let in, and no other tenant of this server can trust it; "+
			"at a provider of many organisations set the tenant claim to what only your people's tokens have")
	case i.ForEverybody():
		notes = append(notes, "a rule without a claim: everybody whose token has the tenant claim is let in")
	}
	if i.Shared {
		notes = append(notes, "another tenant of this server trusts this issuer too: only a claim or a member tells its people from yours")
	}
	for _, t := range i.Types {
		if t == "jwt" {
			notes = append(notes, "the type jwt is accepted: the audience alone tells an access token from an ID token of this issuer")
		}
	}
	return notes
}

// within leaves out the rules that reach further than a selector.
func within(i tenants.Issuer, limit tenants.Selector) tenants.Issuer {
	if limit.All() {
		return i
	}
	rules := []tenants.RoleRule{}
	for _, r := range i.Roles {
		if narrower(r.Nodes, limit) {
			rules = append(rules, r)
		}
	}
	i.Roles = rules
	return i
}

func mayTrust(sc tenants.Scope) error {
	if err := sc.Require(tenants.Admin); err != nil {
		return err
	}
	if !sc.Nodes.All() {
		return TooWide("whoever chooses a tenant's issuers decides about all of its nodes")
	}
	return nil
}

func oneIssuer(ctx context.Context, tx pgx.Tx, sql string, args ...any) (i tenants.Issuer, found bool, err error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return i, false, err
	}
	i, err = pgx.CollectOneRow(rows, scanIssuer)
	if errors.Is(err, pgx.ErrNoRows) {
		return i, false, nil
	}
	return i, err == nil, err
}

// issuerArgs are the parameters of insertIssuer and updateIssuer.
func issuerArgs(i tenants.Issuer) []any {
	return []any{
		i.Tenant, i.ID, i.URL, i.Name, i.JWKSURL, i.IntrospectionURL, i.ClientID, i.SealedSecret, i.DashboardClientID, i.Mode,
		orEmpty(i.Audiences), i.TenantClaim, i.TenantValue, orEmpty(i.Types), orEmpty(i.Algorithms), i.ScopeClaim, i.Opaque, encodeRoles(i.Roles), i.UpdatedAt,
	}
}

// alike reports whether two issuers are stored the same but for their times.
func alike(a, b tenants.Issuer) bool {
	if !bytes.Equal(a.SealedSecret, b.SealedSecret) {
		return false
	}
	b.UpdatedAt = a.UpdatedAt
	return fmt.Sprint(issuerArgs(a)...) == fmt.Sprint(issuerArgs(b)...)
}

func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

func issuerExists() *fault.Error {
	return fault.New(fault.Conflict, "issuer_exists", "the tenant trusts this issuer already").Do("change the issuer that there is")
}

// trustFault words the refusals of the trigger on issuer.
func trustFault(err error) error {
	switch {
	case tenantdb.Violated(err, "issuer_shared"):
		f := fault.New(fault.Conflict, "issuer_shared", "another tenant of this server trusts this issuer too, so a rule for everybody would let its people in here").
			Do("set tenant_claim and tenant_value to what only your people's tokens have, such as their organisation, or give each rule such a claim, or admit your people by name")
		f.Field = "roles"
		return f
	case tenantdb.Violated(err, "issuer_taken"):
		f := fault.New(fault.Conflict, "issuer_taken", "another tenant of this server admits everybody of this issuer, who would include your people").
			Do("ask the operator of this server, whom 'telltaled issuer tenants URL' shows which tenant it is: that one has to set a tenant claim or give its rules a claim first, then repeat this")
		f.Field = "url"
		return f
	}
	return err
}

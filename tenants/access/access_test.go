package access

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// world is two tenants, each with one token, and one service over them.
type world struct {
	*Service
	acme, globex tenants.Scope // administrators
	a, g         Token
	now          time.Time
}

func newWorld(t *testing.T) *world {
	t.Helper()
	db := dbtest.New(t)
	w := &world{now: time.Now().UTC().Truncate(time.Microsecond), acme: addTenant(t, db, "acme"), globex: addTenant(t, db, "globex")}
	w.Service = New(db, slog.New(slog.DiscardHandler), Config{Now: func() time.Time { return w.now }})
	_, w.a = w.make(t, w.acme, TokenSpec{Name: "first", Scopes: tenants.Read})
	_, w.g = w.make(t, w.globex, TokenSpec{Name: "first", Scopes: tenants.Read})
	return w
}

func addTenant(t *testing.T, db *tenantdb.DB, slug string) tenants.Scope {
	t.Helper()
	id := tenants.NewTenantID()
	err := db.Jobs(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into tenant (tenant_id, slug, name, created_at) values ($1, $2, $2, $3)`, id, slug, time.Now())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tenants.Scope{Tenant: id, Slug: slug, Granted: tenants.Admin, Principal: tenants.Principal{Kind: tenants.LocalPrincipal, ID: "test"}}
}

func (w *world) make(t *testing.T, sc tenants.Scope, spec TokenSpec) (string, Token) {
	t.Helper()
	w.now = w.now.Add(time.Millisecond)
	secret, tok, err := w.CreateToken(t.Context(), sc, spec)
	if err != nil {
		t.Fatal(err)
	}
	return secret, tok
}

func limited(sc tenants.Scope, labels map[string]string, ids ...tenants.NodeID) tenants.Scope {
	sc.Nodes = tenants.Selector{Labels: labels, IDs: ids}
	return sc
}

func wantFault(t *testing.T, err error, kind fault.Kind, reason string) {
	t.Helper()
	if f := fault.Of(err); f == nil || f.Kind != kind || f.Reason != reason || f.Msg == "" {
		t.Fatalf("got %v, want %v %s", err, kind, reason)
	}
}

var same = cmp.Options{
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) }), cmpopts.EquateEmpty(),
}

func TestTokenRoundTrip(t *testing.T) {
	w := newWorld(t)
	end := w.now.Add(time.Hour)
	spec := TokenSpec{
		Name: "ci", Scopes: tenants.Read | tenants.Payloads | tenants.Act, ExpiresAt: &end,
		Nodes: tenants.Selector{Labels: map[string]string{"site": "a", "x": ""}, IDs: []tenants.NodeID{tenants.NewNodeID(), tenants.NewNodeID()}},
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")},
	}
	secret, tok := w.make(t, w.acme, spec)
	parsed, flaw := tenants.ParseSecret(tenants.OperatorSecret, secret)
	if flaw != tenants.SecretSound || parsed.ID != tok.ID {
		t.Fatalf("secret %q: %v", secret, flaw)
	}
	got, err := w.TokenByID(t.Context(), tok.ID)
	if diff := cmp.Diff(tok, got, same); err != nil || diff != "" {
		t.Fatalf("%v\n%s", err, diff)
	}
	if !got.Hash.Equal(parsed.Hash) || got.Tenant != w.acme.Tenant || got.CreatedBy != "operator:test" {
		t.Errorf("stored %+v", got)
	}
	for _, id := range []string{"", "nope", "a\x00b", "\xff", strings.Repeat("x", 1000)} {
		if _, err := w.TokenByID(t.Context(), id); !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// The secret is nowhere in the database.
func TestSecretIsNotStored(t *testing.T) {
	dsn := dbtest.DSN(t)
	db := dbtest.Open(t, tenantdb.Config{DSN: dsn})
	s := New(db, slog.New(slog.DiscardHandler), Config{})
	secret, _, err := s.CreateToken(t.Context(), addTenant(t, db, "acme"), TokenSpec{Name: "x", Scopes: tenants.Read})
	if err != nil {
		t.Fatal(err)
	}
	var found bool
	body := strings.Split(secret, "_")[2]
	err = dbtest.Connect(t, dsn).QueryRow(t.Context(), `select exists (select from operator_token t where t::text like '%' || $1 || '%') or exists (select from credential c where c::text like '%' || $1 || '%')`, body).Scan(&found)
	if err != nil || found {
		t.Fatalf("the secret was stored: %v, %v", found, err)
	}
}

func TestCreateBounds(t *testing.T) {
	w := newWorld(t)
	past := w.now
	nets := make([]netip.Prefix, MaxCIDRs+1)
	for i := range nets {
		nets[i] = netip.MustParsePrefix("10.0.0.0/8")
	}
	good := TokenSpec{Name: "x", Scopes: tenants.Read}
	for what, change := range map[string]func(*TokenSpec){
		"no name":        func(s *TokenSpec) { s.Name = " " },
		"long name":      func(s *TokenSpec) { s.Name = strings.Repeat("x", 400_000) },
		"bad bytes":      func(s *TokenSpec) { s.Name = "\xff" },
		"no scope":       func(s *TokenSpec) { s.Scopes = 0 },
		"unknown scope":  func(s *TokenSpec) { s.Scopes = 1 << 7 },
		"over already":   func(s *TokenSpec) { s.ExpiresAt = &past },
		"many networks":  func(s *TokenSpec) { s.CIDRs = nets },
		"no network":     func(s *TokenSpec) { s.CIDRs = []netip.Prefix{{}} },
		"mapped network": func(s *TokenSpec) { s.CIDRs = []netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.0/104")} },
		"many ids":       func(s *TokenSpec) { s.Nodes.IDs = make([]tenants.NodeID, MaxNodeIDs+1) },
		"unnamed label":  func(s *TokenSpec) { s.Nodes.Labels = map[string]string{"": "x"} },
		"hidden label":   func(s *TokenSpec) { s.Nodes.Labels = map[string]string{"a": "\u202e"} },
	} {
		spec := good
		change(&spec)
		if _, _, err := w.CreateToken(t.Context(), w.acme, spec); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, granted := range []tenants.Scopes{0, tenants.Read, tenants.Maintain | tenants.Act} {
		sc := w.acme
		sc.Granted = granted
		_, _, err := w.CreateToken(t.Context(), sc, good)
		wantFault(t, err, fault.Denied, "insufficient_scope")
		_, _, err = w.ListTokens(t.Context(), sc, "", 0)
		wantFault(t, err, fault.Denied, "insufficient_scope")
		wantFault(t, w.RevokeToken(t.Context(), sc, w.a.ID), fault.Denied, "insufficient_scope")
		_, err = w.RevokeByName(t.Context(), sc, "first")
		wantFault(t, err, fault.Denied, "insufficient_scope")
	}
}

// A limited administrator neither makes, sees nor revokes what reaches further.
func TestLimitedAdministrator(t *testing.T) {
	w := newWorld(t)
	n1, n2 := tenants.NewNodeID(), tenants.NewNodeID()
	site := map[string]string{"site": "a"}
	siteWeb := map[string]string{"site": "a", "role": "web"}
	for i, c := range []struct {
		limit, want tenants.Selector
		ok          bool
	}{
		{tenants.Selector{Labels: site}, tenants.Selector{}, false},
		{tenants.Selector{Labels: site}, tenants.Selector{Labels: site}, true},
		{tenants.Selector{Labels: site}, tenants.Selector{Labels: siteWeb}, true},
		{tenants.Selector{Labels: siteWeb}, tenants.Selector{Labels: site}, false},
		{tenants.Selector{Labels: site}, tenants.Selector{Labels: map[string]string{"site": "b"}}, false},
		{tenants.Selector{Labels: site}, tenants.Selector{IDs: []tenants.NodeID{n1}}, false},
		{tenants.Selector{IDs: []tenants.NodeID{n1}}, tenants.Selector{Labels: site}, false},
		{tenants.Selector{IDs: []tenants.NodeID{n1, n2}}, tenants.Selector{IDs: []tenants.NodeID{n2}}, true},
		{tenants.Selector{IDs: []tenants.NodeID{n1}}, tenants.Selector{IDs: []tenants.NodeID{n1, n2}}, false},
	} {
		sc := w.acme
		sc.Nodes = c.limit
		_, _, err := w.CreateToken(t.Context(), sc, TokenSpec{Name: "x", Scopes: tenants.Read, Nodes: c.want})
		if c.ok != (err == nil) {
			t.Errorf("case %d: %v", i, err)
		}
		if err != nil {
			wantFault(t, err, fault.Denied, "outside_selector")
		}
	}
	list, _, err := w.ListTokens(t.Context(), limited(w.acme, site), "", 0)
	if err != nil || len(list) != 2 {
		t.Errorf("sees %d tokens (%v), want the two of its site", len(list), err)
	}
	wantFault(t, w.RevokeToken(t.Context(), limited(w.acme, site), w.a.ID), fault.NotFound, "unknown_token")
	_, err = w.RevokeByName(t.Context(), limited(w.acme, site), "x")
	wantFault(t, err, fault.Denied, "outside_selector")
}

func TestListTokens(t *testing.T) {
	w := newWorld(t)
	want := []string{w.a.ID}
	for range 6 {
		_, tok := w.make(t, w.acme, TokenSpec{Name: "n", Scopes: tenants.Read})
		want = append([]string{tok.ID}, want...)
	}
	w.now = w.now.Add(-time.Millisecond) // two of one instant
	_, twin := w.make(t, w.acme, TokenSpec{Name: "n", Scopes: tenants.Read})
	if twin.ID > want[0] {
		want = append([]string{twin.ID}, want...)
	} else {
		want = append([]string{want[0], twin.ID}, want[1:]...)
	}
	for limit := 1; limit <= 9; limit++ {
		var got []string
		for cursor := ""; ; {
			page, next, err := w.ListTokens(t.Context(), w.acme, cursor, limit)
			if err != nil || len(page) > limit {
				t.Fatal(len(page), err)
			}
			for _, tok := range page {
				got = append(got, tok.ID)
			}
			if cursor = next; next == "" {
				break
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("limit %d: %s", limit, diff)
		}
	}
	if all, _, err := w.ListTokens(t.Context(), w.acme, "", 1e9); err != nil || len(all) != len(want) {
		t.Errorf("limit 1e9: %d, %v", len(all), err)
	}
	for _, cursor := range []string{"x", "====", strings.Repeat("A", 1e6), "LTEgYQ"} {
		if _, _, err := w.ListTokens(t.Context(), w.acme, cursor, 1); !fault.Is(err, fault.Invalid) {
			t.Errorf("cursor %.10q: %v", cursor, err)
		}
	}
}

func TestRevoke(t *testing.T) {
	w := newWorld(t)
	wantFault(t, w.RevokeToken(t.Context(), w.globex, w.a.ID), fault.NotFound, "unknown_token")
	wantFault(t, w.RevokeToken(t.Context(), w.acme, w.g.ID), fault.NotFound, "unknown_token")
	wantFault(t, w.RevokeToken(t.Context(), w.acme, "a\x00"), fault.NotFound, "unknown_token")
	first := w.now
	for range 2 {
		if err := w.RevokeToken(t.Context(), w.acme, w.a.ID); err != nil {
			t.Fatal(err)
		}
		w.now = w.now.Add(time.Hour)
	}
	if tok, err := w.TokenByID(t.Context(), w.a.ID); err != nil || tok.RevokedAt == nil || !tok.RevokedAt.Equal(first) {
		t.Errorf("revoked at %v, %v", tok.RevokedAt, err)
	}
	for range 3 {
		w.make(t, w.acme, TokenSpec{Name: "dev", Scopes: tenants.Read})
		w.make(t, w.globex, TokenSpec{Name: "dev", Scopes: tenants.Read})
	}
	for _, want := range []int{3, 0} {
		if n, err := w.RevokeByName(t.Context(), w.acme, "dev"); err != nil || n != want {
			t.Errorf("revoked %d, %v; want %d", n, err, want)
		}
	}
	theirs, _, err := w.ListTokens(t.Context(), w.globex, "", 0)
	if err != nil || len(theirs) != 4 {
		t.Fatal(len(theirs), err)
	}
	for _, tok := range theirs {
		if tok.RevokedAt != nil {
			t.Errorf("the other tenant's %s was revoked", tok.Name)
		}
	}
}

func TestTouch(t *testing.T) {
	w := newWorld(t)
	at := w.now.Add(time.Minute)
	uses := map[string]time.Time{w.a.ID: at, w.g.ID: at, "unknown": at}
	if err := w.TouchTokens(t.Context(), w.acme.Tenant, uses); err != nil {
		t.Fatal(err)
	}
	if err := w.TouchTokens(t.Context(), w.acme.Tenant, map[string]time.Time{w.a.ID: at.Add(-time.Second)}); err != nil {
		t.Fatal(err)
	}
	if a, err := w.TokenByID(t.Context(), w.a.ID); err != nil || a.LastUsedAt == nil || !a.LastUsedAt.Equal(at) {
		t.Errorf("last use %v, %v", a.LastUsedAt, err)
	}
	if g, err := w.TokenByID(t.Context(), w.g.ID); err != nil || g.LastUsedAt != nil {
		t.Errorf("the other tenant's last use is %v, %v", g.LastUsedAt, err)
	}
}

// Every query fits the migrated schema and the rights of the role that runs it.
func TestQueriesFitTheSchema(t *testing.T) {
	dsn := dbtest.DSN(t)
	app := dbtest.Connect(t, dbtest.As(t, dsn, "telltale_app"))
	for i, sql := range []string{
		insertToken, selectToken, selectTokens, revokeToken, revokeByName, touchTokens, insertSession, selectSession, deleteSession, touchSessions,
		selectTrust, selectIssuer, selectIssuerByURL, lockIssuer, lockIssuerByURL, selectIssuers, insertIssuer, updateIssuer, deleteIssuer, selectShared, countIssuers,
		selectMember, lockMember, selectMemberBySubject, lockMemberBySubject, selectMembers, insertMember, updateMember, deleteMember, countMembers,
		countTokens, lockKind, selectPolicy, upsertPolicy,
	} {
		if _, err := app.Prepare(t.Context(), fmt.Sprintf("q%d", i), sql); err != nil {
			t.Errorf("%v\n%s", err, sql)
		}
	}
	if _, err := dbtest.Connect(t, dbtest.As(t, dsn, "telltale_jobs")).Prepare(t.Context(), "sweep", sweepSessions); err != nil {
		t.Error(err)
	}
}

// What every call of an OAuth caller asks, and what the quotas count, stays on
// an index under row policies.
func TestQueriesUseTheirIndexes(t *testing.T) {
	dsn := dbtest.DSN(t)
	super := dbtest.Connect(t, dsn)
	tenant := tenants.NewTenantID().String()
	for _, sql := range []string{
		`insert into tenant (tenant_id, slug, name, created_at) select case n when 1 then '` + tenant + `'::uuid else gen_random_uuid() end, 't' || n, 't', now() from generate_series(1, 20) n`,
		`insert into issuer (tenant_id, issuer_id, url, name, mode, created_at, created_by, updated_at)
			select tenant_id, gen_random_uuid(), 'https://idp.example.com/' || n, 'n', 'resource', now(), '', now() from tenant, generate_series(1, 100) n`,
		`insert into member (tenant_id, member_id, issuer_id, subject, scopes, created_at, created_by, updated_at)
			select tenant_id, gen_random_uuid(), issuer_id, 's' || n, '{telltale:read}', now(), '', now() from issuer, generate_series(1, 5) n`,
		`insert into operator_token (tenant_id, token_id, name, hash, scopes, created_at, created_by)
			select tenant_id, 'token' || tenant_id || n, 'n', sha256('x'), '{telltale:read}', now(), '' from tenant, generate_series(1, 500) n`,
		`analyze`,
	} {
		if _, err := super.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	app := dbtest.Connect(t, dbtest.As(t, dsn, "telltale_app"))
	if _, err := app.Exec(t.Context(), `select set_config('telltale.tenant', $1, false)`, tenant); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		sql  string
		args []any
	}{
		{selectTrust, []any{tenant}}, {selectMemberBySubject, []any{tenant, tenant, "s7"}}, {selectMember, []any{tenant, tenant}}, {selectMembers, []any{tenant, nil, nil, 50, nil}},
		{countMembers, []any{tenant}}, {countTokens, []any{tenant}}, {selectTokens, []any{tenant, nil, nil, 50}},
	} {
		rows, err := app.Query(t.Context(), "explain (costs off) "+c.sql, c.args...)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%v\n%s", err, c.sql)
		}
		if text := strings.Join(plan, "\n"); strings.Contains(text, "Seq Scan") || !strings.Contains(text, "Index Cond") {
			t.Errorf("%s\n%s", c.sql, text)
		}
	}
}

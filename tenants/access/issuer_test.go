package access

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// fakeSeal makes what was sealed easy to look for.
type fakeSeal struct{}

func (fakeSeal) Seal(plain []byte, use string) []byte {
	return []byte("sealed for " + use + ":" + string(rot(plain)))
}

func rot(in []byte) []byte {
	out := make([]byte, len(in))
	for i, b := range in {
		out[i] = b ^ 0x55
	}
	return out
}

const idp = "https://idp.example.com"

var sre = tenants.RoleRule{Claim: "groups", Value: "acme-sre", Scopes: tenants.Read | tenants.Diagnose}

func secretOf(s string) *string { return &s }

func (w *world) put(t *testing.T, sc tenants.Scope, spec IssuerSpec) tenants.Issuer {
	t.Helper()
	w.now = w.now.Add(time.Millisecond)
	i, err := w.PutIssuer(t.Context(), sc, spec)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestIssuerRoundTrip(t *testing.T) {
	w := newWorld(t)
	w.sealer = fakeSeal{}
	node := tenants.NewNodeID()
	spec := IssuerSpec{
		Name: "Example", URL: idp + "/realms/x", JWKSURL: idp + "/jwks?x=1", IntrospectionURL: idp + "/introspect", ClientID: "telltale", ClientSecret: secretOf("hunter2"),
		DashboardClientID: "dash", Mode: tenants.AudienceStatic, Audiences: []string{"api://telltale", "0f-guid"}, TenantClaim: "org.id", TenantValue: "acme",
		Types: []string{"at+jwt", "jwt"}, Algorithms: []string{"ES256"}, ScopeClaim: "scp", Opaque: true,
		Roles: []tenants.RoleRule{sre, {Claim: "https://ns.example.com/role", Value: "ops", Scopes: tenants.EveryScope, Nodes: tenants.Selector{Labels: map[string]string{"site": "a"}, IDs: []tenants.NodeID{node}}}},
	}
	made := w.put(t, w.acme, spec)
	want := tenants.Issuer{
		ID: made.ID, Tenant: w.acme.Tenant, Name: spec.Name, URL: spec.URL, JWKSURL: spec.JWKSURL, IntrospectionURL: spec.IntrospectionURL, ClientID: spec.ClientID,
		SealedSecret: fakeSeal{}.Seal([]byte("hunter2"), tenants.IssuerSecretUse), DashboardClientID: "dash", Mode: spec.Mode, Audiences: spec.Audiences,
		TenantClaim: "org.id", TenantValue: "acme", Types: spec.Types, Algorithms: spec.Algorithms, ScopeClaim: "scp", Opaque: true, Roles: spec.Roles,
		CreatedAt: w.now, UpdatedAt: w.now,
	}
	if d := cmp.Diff(want, made, same); d != "" {
		t.Error(d)
	}
	trust, err := w.Trust(t.Context(), w.acme.Tenant)
	if d := cmp.Diff(tenants.Trust{Issuers: []tenants.Issuer{want}}, trust, same); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
	for what, read := range map[string]func() (tenants.Issuer, error){
		"by id":  func() (tenants.Issuer, error) { return w.GetIssuer(t.Context(), w.acme, made.ID) },
		"by url": func() (tenants.Issuer, error) { return w.IssuerByURL(t.Context(), w.acme, spec.URL) },
	} {
		if got, err := read(); err != nil || cmp.Diff(want, got, same) != "" {
			t.Errorf("%s: %v\n%s", what, err, cmp.Diff(want, got, same))
		}
	}
	if trust, err := w.Trust(t.Context(), w.globex.Tenant); err != nil || len(trust.Issuers) != 0 {
		t.Errorf("globex trusts %v, %v", trust.Issuers, err)
	}
	_, err = w.GetIssuer(t.Context(), w.globex, made.ID)
	wantFault(t, err, fault.NotFound, "unknown_issuer")
	_, err = w.GetIssuer(t.Context(), w.acme, "nonsense")
	wantFault(t, err, fault.NotFound, "unknown_issuer")

	// Put again without a secret: the one that there is stays, and nothing is written.
	spec.ClientSecret = nil
	if again := w.put(t, w.acme, spec); cmp.Diff(want, again, same) != "" {
		t.Errorf("put again: %s", cmp.Diff(want, again, same))
	}
	spec.Name = "Other"
	if again := w.put(t, w.acme, spec); again.ID != made.ID || !again.UpdatedAt.After(made.UpdatedAt) || !again.CreatedAt.Equal(made.CreatedAt) || again.Name != "Other" {
		t.Errorf("changed: %+v", again)
	}
	// Who does not know the secret cannot have it sent to a place of his own.
	theirs := spec
	theirs.IntrospectionURL = "https://thief.example/introspect"
	_, err = w.UpdateIssuer(t.Context(), w.acme, made.ID, theirs, nil)
	wantFault(t, err, fault.Invalid, "invalid_argument")
	_, err = w.DraftIssuer(t.Context(), w.acme, theirs)
	wantFault(t, err, fault.Invalid, "invalid_argument")
	_, err = w.CreateIssuer(t.Context(), w.acme, spec)
	wantFault(t, err, fault.Conflict, "issuer_exists")
	spec.ClientSecret = secretOf("")
	_, err = w.PutIssuer(t.Context(), w.acme, spec) // opaque without a secret
	wantFault(t, err, fault.Invalid, "invalid_argument")
	spec.Opaque = false
	if got := w.put(t, w.acme, spec); got.SealedSecret != nil {
		t.Error("the secret was not removed")
	}
	spec.ClientSecret = secretOf("x")
	w.sealer = nil
	_, err = w.PutIssuer(t.Context(), w.acme, spec)
	wantFault(t, err, fault.Precondition, "no_sealing_key")
}

func TestIssuerSecretIsNotStored(t *testing.T) {
	dsn := dbtest.DSN(t)
	db := dbtest.Open(t, tenantdb.Config{DSN: dsn})
	s := New(db, slog.New(slog.DiscardHandler), Config{Sealer: fakeSeal{}})
	if _, err := s.PutIssuer(t.Context(), addTenant(t, db, "acme"), IssuerSpec{URL: idp, ClientID: "c", ClientSecret: secretOf("correct-horse")}); err != nil {
		t.Fatal(err)
	}
	var found bool
	err := dbtest.Connect(t, dsn).QueryRow(t.Context(), `select exists (select from issuer i where convert_from(i.sealed_secret, 'LATIN1') like '%correct-horse%' or i::text like '%correct-horse%')`).Scan(&found)
	if err != nil || found {
		t.Fatalf("the secret was stored: %v, %v", found, err)
	}
}

func TestIssuerBounds(t *testing.T) {
	w := newWorld(t)
	long := strings.Repeat("x", 400_000)
	many := make([]tenants.RoleRule, MaxRoles+1)
	for i := range many {
		many[i] = sre
	}
	static := func(s *IssuerSpec) {
		s.Mode, s.Audiences, s.TenantClaim, s.TenantValue = tenants.AudienceStatic, []string{"a"}, "org", "acme"
	}
	for what, c := range map[string]struct {
		change func(*IssuerSpec)
		field  string
	}{
		"no url":              {func(s *IssuerSpec) { s.URL = "" }, "url"},
		"relative":            {func(s *IssuerSpec) { s.URL = "idp.example.com" }, "url"},
		"no host":             {func(s *IssuerSpec) { s.URL = "https:///x" }, "url"},
		"port alone":          {func(s *IssuerSpec) { s.URL = "https://:443" }, "url"},
		"http":                {func(s *IssuerSpec) { s.URL = "http://idp.example.com" }, "url"},
		"http on loopback":    {func(s *IssuerSpec) { s.URL = "http://127.0.0.1:99" }, "url"},
		"file":                {func(s *IssuerSpec) { s.URL = "file:///etc/passwd" }, "url"},
		"gopher":              {func(s *IssuerSpec) { s.URL = "gopher://x/" }, "url"},
		"query":               {func(s *IssuerSpec) { s.URL += "?x" }, "url"},
		"empty query":         {func(s *IssuerSpec) { s.URL += "?" }, "url"},
		"fragment":            {func(s *IssuerSpec) { s.URL += "#" }, "url"},
		"user":                {func(s *IssuerSpec) { s.URL = "https://me:pw@idp.example.com" }, "url"},
		"space":               {func(s *IssuerSpec) { s.URL = "https://idp.example.com/a b" }, "url"},
		"line":                {func(s *IssuerSpec) { s.URL = "https://idp.example.com/\n" }, "url"},
		"zero byte":           {func(s *IssuerSpec) { s.URL = "https://idp.example.com/\x00" }, "url"},
		"long url":            {func(s *IssuerSpec) { s.URL = idp + "/" + long }, "url"},
		"metadata":            {func(s *IssuerSpec) { s.URL += "/.well-known/openid-configuration" }, "url"},
		"http keys":           {func(s *IssuerSpec) { s.JWKSURL = "http://x.example.com" }, "jwks_url"},
		"password in url":     {func(s *IssuerSpec) { s.IntrospectionURL = "https://a:b@x.example.com" }, "introspection_url"},
		"long name":           {func(s *IssuerSpec) { s.Name = long }, "name"},
		"hidden name":         {func(s *IssuerSpec) { s.Name = "a\u202e" }, "name"},
		"long client":         {func(s *IssuerSpec) { s.ClientID = long }, "client_id"},
		"long secret":         {func(s *IssuerSpec) { s.ClientID, s.ClientSecret = "c", &long }, "client_secret"},
		"secret of nobody":    {func(s *IssuerSpec) { s.ClientSecret = secretOf("x") }, "client_id"},
		"opaque, no secret":   {func(s *IssuerSpec) { s.Opaque, s.ClientID = true, "c" }, "client_secret"},
		"opaque, no client":   {func(s *IssuerSpec) { s.Opaque, s.ClientSecret = true, secretOf("x") }, "client_id"},
		"another mode":        {func(s *IssuerSpec) { s.Mode = "any" }, "mode"},
		"resource, audience":  {func(s *IssuerSpec) { s.Audiences = []string{"a"} }, "audiences"},
		"static, no audience": {func(s *IssuerSpec) { static(s); s.Audiences = nil }, "audiences"},
		"static, many":        {func(s *IssuerSpec) { static(s); s.Audiences = make([]string, MaxAudiences+1) }, "audiences"},
		"static, empty":       {func(s *IssuerSpec) { static(s); s.Audiences = []string{" "} }, "audiences"},
		"static, no claim":    {func(s *IssuerSpec) { static(s); s.TenantClaim = "" }, "tenant_claim"},
		"static, no value":    {func(s *IssuerSpec) { static(s); s.TenantValue = "" }, "tenant_claim"},
		"half a claim":        {func(s *IssuerSpec) { s.TenantClaim = "org" }, "tenant_claim"},
		"long value":          {func(s *IssuerSpec) { static(s); s.TenantValue = long }, "tenant_value"},
		"ID tokens":           {func(s *IssuerSpec) { s.Types = []string{"id+jwt"} }, "types"},
		"upper case":          {func(s *IssuerSpec) { s.Types = []string{"JWT"} }, "types"},
		"a type twice":        {func(s *IssuerSpec) { s.Types = []string{"jwt", "jwt"} }, "types"},
		"none":                {func(s *IssuerSpec) { s.Algorithms = []string{"none"} }, "algorithms"},
		"HS256":               {func(s *IssuerSpec) { s.Algorithms = []string{"RS256", "HS256"} }, "algorithms"},
		"deep claim":          {func(s *IssuerSpec) { s.ScopeClaim = strings.Repeat("a.", MaxClaimDepth) + "a" }, "scope_claim"},
		"empty step":          {func(s *IssuerSpec) { s.ScopeClaim = "a..b" }, "scope_claim"},
		"long claim":          {func(s *IssuerSpec) { s.ScopeClaim = long }, "scope_claim"},
		"many rules":          {func(s *IssuerSpec) { s.Roles = many }, "roles"},
		"rule without scope":  {func(s *IssuerSpec) { s.Roles[0].Scopes = 0 }, "roles"},
		"unknown scope":       {func(s *IssuerSpec) { s.Roles[0].Scopes = 1 << 7 }, "roles"},
		"value, no claim":     {func(s *IssuerSpec) { s.Roles[0].Claim = "" }, "roles"},
		"claim, no value":     {func(s *IssuerSpec) { s.Roles[0].Value = "" }, "roles"},
		"hidden value":        {func(s *IssuerSpec) { s.Roles[0].Value = "\u200b" }, "roles"},
		"unnamed label":       {func(s *IssuerSpec) { s.Roles[0].Nodes.Labels = map[string]string{"": "x"} }, "roles"},
		"many nodes":          {func(s *IssuerSpec) { s.Roles[0].Nodes.IDs = make([]tenants.NodeID, MaxNodeIDs+1) }, "roles"},
	} {
		spec := IssuerSpec{URL: idp, Roles: []tenants.RoleRule{sre}}
		c.change(&spec)
		_, err := w.PutIssuer(t.Context(), w.acme, spec)
		if f := fault.Of(err); f == nil || f.Kind != fault.Invalid || f.Field != c.field || len(f.Msg) > 600 {
			t.Errorf("%s: %+v, want a fault of %s", what, err, c.field)
		}
		if _, err := w.DraftIssuer(t.Context(), w.acme, spec); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s as a draft: %v", what, err)
		}
	}
	w.loopback = true
	for _, url := range []string{"http://127.0.0.1:99", "http://localhost:99/x", "http://[::1]:99"} {
		w.put(t, w.acme, IssuerSpec{URL: url})
	}
	for _, url := range []string{"http://127.0.0.1.example.com", "http://10.0.0.1", "http://0.0.0.0:1"} {
		if _, err := w.PutIssuer(t.Context(), w.acme, IssuerSpec{URL: url}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// An issuer of two tenants lets nobody into one of them just because he is known to it.
func TestSharedIssuers(t *testing.T) {
	w := newWorld(t)
	everybody := tenants.RoleRule{Scopes: tenants.Read}
	a := w.put(t, w.acme, IssuerSpec{URL: idp, Roles: []tenants.RoleRule{everybody}})
	if len(IssuerNotes(a)) != 1 || a.Shared {
		t.Errorf("%+v: %q", a, IssuerNotes(a))
	}
	for _, roles := range [][]tenants.RoleRule{nil, {sre}, {everybody}} {
		_, err := w.PutIssuer(t.Context(), w.globex, IssuerSpec{URL: idp, Roles: roles})
		if f := fault.Of(err); f == nil || f.Kind != fault.Conflict || f.Reason != map[bool]string{false: "issuer_taken", true: "issuer_shared"}[len(roles) == 1 && roles[0].Claim == ""] ||
			f.Field == "" || f.Next == "" || strings.Contains(err.Error(), "acme") {
			t.Errorf("rules %v: %v", roles, err)
		}
	}
	a = w.put(t, w.acme, IssuerSpec{URL: idp, Roles: []tenants.RoleRule{sre}})
	g := w.put(t, w.globex, IssuerSpec{URL: idp})
	if !g.Shared || len(IssuerNotes(g)) != 2 {
		t.Errorf("globex: %+v, %q", g, IssuerNotes(g))
	}
	if got, err := w.GetIssuer(t.Context(), w.acme, a.ID); err != nil || !got.Shared {
		t.Errorf("acme's is not shared: %+v, %v", got, err)
	}
	for _, sc := range []tenants.Scope{w.acme, w.globex} {
		_, err := w.PutIssuer(t.Context(), sc, IssuerSpec{URL: idp, Roles: []tenants.RoleRule{sre, everybody}})
		wantFault(t, err, fault.Conflict, "issuer_shared")
	}
	if err := w.DeleteIssuer(t.Context(), w.globex, g.ID); err != nil {
		t.Fatal(err)
	}
	if got := w.put(t, w.acme, IssuerSpec{URL: idp, Roles: []tenants.RoleRule{everybody}}); got.Shared {
		t.Error("still shared")
	}
	w.put(t, w.globex, IssuerSpec{URL: idp + "/", Roles: []tenants.RoleRule{everybody}}) // another iss
}

// A provider of many organisations serves several tenants, each of which admits
// everybody of its own organisation; whoever admits everybody at all stands in
// the way, and both sides are told what to do.
func TestIssuerOfManyOrganisations(t *testing.T) {
	w := newWorld(t)
	everybody := []tenants.RoleRule{{Scopes: tenants.Read}}
	of := func(org string) IssuerSpec {
		return IssuerSpec{URL: idp, Roles: everybody, TenantClaim: "hd", TenantValue: org}
	}
	a := w.put(t, w.acme, of("acme.example"))
	g := w.put(t, w.globex, of("globex.example"))
	if a.Open() || g.Open() || !g.Shared || len(IssuerNotes(g)) != 2 || !strings.Contains(IssuerNotes(g)[0], "tenant claim") {
		t.Errorf("%+v %q", g, IssuerNotes(g))
	}
	open := IssuerSpec{URL: idp, Roles: everybody}
	_, err := w.PutIssuer(t.Context(), w.globex, open)
	if f := fault.Of(err); f == nil || f.Reason != "issuer_shared" || !strings.Contains(f.Next, "tenant_claim") {
		t.Errorf("%v", err)
	}
	if err := w.DeleteIssuer(t.Context(), w.globex, g.ID); err != nil {
		t.Fatal(err)
	}
	if a = w.put(t, w.acme, open); !a.Open() || !strings.Contains(IssuerNotes(a)[0], "no other tenant") {
		t.Errorf("%+v %q", a, IssuerNotes(a))
	}
	_, err = w.PutIssuer(t.Context(), w.globex, of("globex.example"))
	if f := fault.Of(err); f == nil || f.Reason != "issuer_taken" || !strings.Contains(f.Next, "operator") || !strings.Contains(f.Next, "issuer tenants") || strings.Contains(err.Error(), "acme") {
		t.Errorf("%v", err)
	}
	w.put(t, w.acme, of("acme.example")) // as the operator asked
	w.put(t, w.globex, of("globex.example"))
}

// Two tenants that add one issuer at the same time see each other.
func TestSharedIssuersAtOnce(t *testing.T) {
	w := newWorld(t)
	for n := range 8 {
		url := fmt.Sprintf("%s/%d", idp, n)
		var wg sync.WaitGroup
		var errs [2]error
		for i, sc := range []tenants.Scope{w.acme, w.globex} {
			wg.Go(func() {
				_, errs[i] = w.CreateIssuer(t.Context(), sc, IssuerSpec{URL: url, Roles: []tenants.RoleRule{{Scopes: tenants.Read}}})
			})
		}
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Errorf("both the same: %v, %v", errs[0], errs[1])
		}
	}
}

func TestUpdateIssuer(t *testing.T) {
	w := newWorld(t)
	i := w.put(t, w.acme, IssuerSpec{URL: idp, Roles: []tenants.RoleRule{sre}})
	w.put(t, w.globex, IssuerSpec{URL: idp})
	stale := i.UpdatedAt
	next, err := w.UpdateIssuer(t.Context(), w.acme, i.ID, IssuerSpec{Name: "new", Roles: i.Roles}, &stale)
	if err != nil || next.Name != "new" || next.URL != idp || !next.Shared || !next.UpdatedAt.After(stale) { // the clock stood still
		t.Fatalf("%+v, %v", next, err)
	}
	_, err = w.UpdateIssuer(t.Context(), w.acme, i.ID, IssuerSpec{Name: "late"}, &stale)
	wantFault(t, err, fault.Precondition, "changed_meanwhile")
	if got, err := w.GetIssuer(t.Context(), w.acme, i.ID); err != nil || got.Name != "new" {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = w.UpdateIssuer(t.Context(), w.acme, i.ID, IssuerSpec{URL: idp + "/other"}, nil)
	wantFault(t, err, fault.Invalid, "invalid_argument")
	for _, id := range []string{"x", tenants.NewNodeID().String()} {
		_, err = w.UpdateIssuer(t.Context(), w.acme, id, IssuerSpec{}, nil)
		wantFault(t, err, fault.NotFound, "unknown_issuer")
		wantFault(t, w.DeleteIssuer(t.Context(), w.acme, id), fault.NotFound, "unknown_issuer")
	}
	_, err = w.UpdateIssuer(t.Context(), w.globex, i.ID, IssuerSpec{Name: "theirs"}, nil)
	wantFault(t, err, fault.NotFound, "unknown_issuer")
	wantFault(t, w.DeleteIssuer(t.Context(), w.globex, i.ID), fault.NotFound, "unknown_issuer")
}

// Who is limited to some nodes changes no issuer and sees no wider rule; who
// lacks the scope does and sees nothing.
func TestIssuersOfLimitedCallers(t *testing.T) {
	w := newWorld(t)
	site := map[string]string{"site": "a"}
	i := w.put(t, w.acme, IssuerSpec{URL: idp, Roles: []tenants.RoleRule{sre, {Claim: "groups", Value: "site-a", Scopes: tenants.Read, Nodes: tenants.Selector{Labels: site}}}})
	few := limited(w.acme, site)
	_, err := w.CreateIssuer(t.Context(), few, IssuerSpec{URL: idp + "/b"})
	wantFault(t, err, fault.Denied, "outside_selector")
	_, err = w.PutIssuer(t.Context(), few, IssuerSpec{URL: idp})
	wantFault(t, err, fault.Denied, "outside_selector")
	_, err = w.UpdateIssuer(t.Context(), few, i.ID, IssuerSpec{}, nil)
	wantFault(t, err, fault.Denied, "outside_selector")
	_, err = w.DraftIssuer(t.Context(), few, IssuerSpec{URL: idp})
	wantFault(t, err, fault.Denied, "outside_selector")
	wantFault(t, w.DeleteIssuer(t.Context(), few, i.ID), fault.Denied, "outside_selector")
	_, err = w.SetPolicy(t.Context(), few, tenants.Policy{}, nil)
	wantFault(t, err, fault.Denied, "outside_selector")
	_, err = w.Counts(t.Context(), few)
	wantFault(t, err, fault.Denied, "outside_selector")
	seen, _, err := w.ListIssuers(t.Context(), few, "", 0)
	if err != nil || len(seen) != 1 || len(seen[0].Roles) != 1 || seen[0].Roles[0].Value != "site-a" {
		t.Errorf("sees %+v, %v", seen, err)
	}

	sc := w.acme
	sc.Granted = tenants.Read | tenants.Maintain
	for what, err := range map[string]error{
		"create": second(w.CreateIssuer(t.Context(), sc, IssuerSpec{URL: idp})), "put": second(w.PutIssuer(t.Context(), sc, IssuerSpec{URL: idp})),
		"update": second(w.UpdateIssuer(t.Context(), sc, i.ID, IssuerSpec{}, nil)), "draft": second(w.DraftIssuer(t.Context(), sc, IssuerSpec{URL: idp})),
		"delete": w.DeleteIssuer(t.Context(), sc, i.ID), "get": second(w.GetIssuer(t.Context(), sc, i.ID)), "get nonsense": second(w.GetIssuer(t.Context(), sc, "x")),
		"by url": second(w.IssuerByURL(t.Context(), sc, idp)), "policy": second(w.Policy(t.Context(), sc)), "set policy": second(w.SetPolicy(t.Context(), sc, tenants.Policy{}, nil)),
		"counts": second(w.Counts(t.Context(), sc)), "member": second(w.GetMember(t.Context(), sc, "x")), "put member": second(w.PutMember(t.Context(), sc, MemberSpec{})),
		"create member": second(w.CreateMember(t.Context(), sc, MemberSpec{})), "update member": second(w.UpdateMember(t.Context(), sc, "x", MemberSpec{})), "delete member": w.DeleteMember(t.Context(), sc, "x"),
	} {
		if f := fault.Of(err); f == nil || f.Reason != "insufficient_scope" {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, _, err = w.ListIssuers(t.Context(), sc, "", 0)
	wantFault(t, err, fault.Denied, "insufficient_scope")
	_, _, err = w.ListMembers(t.Context(), sc, "", "", 0)
	wantFault(t, err, fault.Denied, "insufficient_scope")
}

func second[T any](_ T, err error) error { return err }

func TestListIssuers(t *testing.T) {
	w := newWorld(t)
	var want []string
	for n := range 5 {
		want = append([]string{w.put(t, w.acme, IssuerSpec{URL: fmt.Sprint(idp, "/", n)}).ID}, want...)
	}
	w.put(t, w.globex, IssuerSpec{URL: idp + "/0"})
	for limit := 1; limit <= 6; limit++ {
		var got []string
		for cursor := ""; ; {
			page, next, err := w.ListIssuers(t.Context(), w.acme, cursor, limit)
			if err != nil || len(page) > limit {
				t.Fatal(len(page), err)
			}
			for _, i := range page {
				got = append(got, i.ID)
			}
			if cursor = next; next == "" {
				break
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("limit %d: %s", limit, d)
		}
	}
	_, _, err := w.ListIssuers(t.Context(), w.acme, formatCursor(w.now, "no uuid"), 1)
	wantFault(t, err, fault.Invalid, "invalid_argument")
}

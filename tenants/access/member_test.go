package access

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func TestMembers(t *testing.T) {
	w := newWorld(t)
	a, g := w.put(t, w.acme, IssuerSpec{URL: idp}), w.put(t, w.globex, IssuerSpec{URL: idp})
	spec := MemberSpec{IssuerID: strings.ToUpper(a.ID), Subject: "alice", Name: "Alice", Scopes: tenants.Read | tenants.Act, Nodes: tenants.Selector{Labels: map[string]string{"site": "a"}, IDs: []tenants.NodeID{tenants.NewNodeID()}}}
	made, err := w.CreateMember(t.Context(), w.acme, spec)
	want := tenants.Member{ID: made.ID, Tenant: w.acme.Tenant, IssuerID: a.ID, Subject: "alice", Name: "Alice", Scopes: spec.Scopes, Nodes: spec.Nodes, CreatedAt: w.now, CreatedBy: "operator:test"}
	if d := cmp.Diff(want, made, same); err != nil || d != "" {
		t.Fatalf("%v\n%s", err, d)
	}
	for what, read := range map[string]func() (tenants.Member, error){
		"by id":          func() (tenants.Member, error) { return w.GetMember(t.Context(), w.acme, made.ID) },
		"as auth asks":   func() (tenants.Member, error) { return w.Member(t.Context(), w.acme.Tenant, a.ID, "alice") },
		"after a repeat": func() (tenants.Member, error) { return w.PutMember(t.Context(), w.acme, spec) },
	} {
		if got, err := read(); err != nil || cmp.Diff(want, got, same) != "" {
			t.Errorf("%s: %v\n%s", what, err, cmp.Diff(want, got, same))
		}
	}
	_, err = w.CreateMember(t.Context(), w.acme, spec)
	wantFault(t, err, fault.Conflict, "member_exists")

	// The same subject in the other tenant is another person.
	for _, c := range []struct {
		tenant          tenants.TenantID
		issuer, subject string
	}{
		{w.globex.Tenant, g.ID, "alice"}, {w.globex.Tenant, a.ID, "alice"}, {w.acme.Tenant, g.ID, "alice"}, {w.acme.Tenant, a.ID, "Alice"},
		{w.acme.Tenant, a.ID, "alice "}, {w.acme.Tenant, "", "alice"}, {w.acme.Tenant, a.ID, ""}, {w.acme.Tenant, a.ID, "a\x00"}, {w.acme.Tenant, a.ID, "\xff"}, {w.acme.Tenant, a.ID, strings.Repeat("x", 1e6)},
	} {
		_, err := w.Member(t.Context(), c.tenant, c.issuer, c.subject)
		wantFault(t, err, fault.NotFound, "unknown_member")
	}
	theirs := spec
	theirs.IssuerID = g.ID
	_, err = w.CreateMember(t.Context(), w.acme, theirs) // the other tenant's issuer
	wantFault(t, err, fault.Invalid, "invalid_argument")
	_, err = w.UpdateMember(t.Context(), w.globex, made.ID, MemberSpec{Scopes: tenants.Read})
	wantFault(t, err, fault.NotFound, "unknown_member")
	wantFault(t, w.DeleteMember(t.Context(), w.globex, made.ID), fault.NotFound, "unknown_member")

	changed, err := w.UpdateMember(t.Context(), w.acme, made.ID, MemberSpec{Scopes: tenants.EveryScope})
	if err != nil || changed.Subject != "alice" || changed.Name != "" || changed.Scopes != tenants.EveryScope || !changed.Nodes.All() {
		t.Errorf("%+v, %v", changed, err)
	}
	_, err = w.UpdateMember(t.Context(), w.acme, made.ID, MemberSpec{Subject: "bob", Scopes: tenants.Read})
	wantFault(t, err, fault.Invalid, "invalid_argument")
	if err := w.DeleteMember(t.Context(), w.acme, made.ID); err != nil {
		t.Fatal(err)
	}
	wantFault(t, w.DeleteMember(t.Context(), w.acme, made.ID), fault.NotFound, "unknown_member")

	// With its issuer a member goes, too.
	again, err := w.PutMember(t.Context(), w.acme, spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.DeleteIssuer(t.Context(), w.acme, a.ID); err != nil {
		t.Fatal(err)
	}
	_, err = w.GetMember(t.Context(), w.acme, again.ID)
	wantFault(t, err, fault.NotFound, "unknown_member")
}

func TestMemberBounds(t *testing.T) {
	w := newWorld(t)
	a := w.put(t, w.acme, IssuerSpec{URL: idp})
	for what, change := range map[string]func(*MemberSpec){
		"no issuer":     func(m *MemberSpec) { m.IssuerID = "" },
		"no such":       func(m *MemberSpec) { m.IssuerID = tenants.NewNodeID().String() },
		"no subject":    func(m *MemberSpec) { m.Subject = "" },
		"long subject":  func(m *MemberSpec) { m.Subject = strings.Repeat("x", MaxSubject+1) },
		"hidden":        func(m *MemberSpec) { m.Subject = "a\u200b" },
		"long name":     func(m *MemberSpec) { m.Name = strings.Repeat("x", 400_000) },
		"no scope":      func(m *MemberSpec) { m.Scopes = 0 },
		"unknown scope": func(m *MemberSpec) { m.Scopes = 1 << 7 },
		"many nodes":    func(m *MemberSpec) { m.Nodes.IDs = make([]tenants.NodeID, MaxNodeIDs+1) },
	} {
		spec := MemberSpec{IssuerID: a.ID, Subject: "s", Scopes: tenants.Read}
		change(&spec)
		if _, err := w.PutMember(t.Context(), w.acme, spec); !fault.Is(err, fault.Invalid) || fault.Of(err).Field == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, _, err := w.ListMembers(t.Context(), w.acme, "x", "", 1)
	wantFault(t, err, fault.Invalid, "invalid_argument")
}

// A limited administrator neither admits, sees, changes nor removes who reaches further.
func TestMembersOfLimitedCallers(t *testing.T) {
	w := newWorld(t)
	a := w.put(t, w.acme, IssuerSpec{URL: idp})
	site := map[string]string{"site": "a"}
	few := limited(w.acme, site)
	wide, err := w.CreateMember(t.Context(), w.acme, MemberSpec{IssuerID: a.ID, Subject: "wide", Scopes: tenants.Read})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.CreateMember(t.Context(), few, MemberSpec{IssuerID: a.ID, Subject: "s", Scopes: tenants.Read})
	wantFault(t, err, fault.Denied, "outside_selector")
	in := MemberSpec{IssuerID: a.ID, Subject: "s", Scopes: tenants.Admin, Nodes: tenants.Selector{Labels: site}}
	mine, err := w.CreateMember(t.Context(), few, in)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.UpdateMember(t.Context(), few, mine.ID, MemberSpec{Scopes: tenants.Admin})
	wantFault(t, err, fault.Denied, "outside_selector")
	in.Subject = "wide"
	_, err = w.PutMember(t.Context(), few, in)
	wantFault(t, err, fault.Conflict, "member_exists")
	_, err = w.UpdateMember(t.Context(), few, wide.ID, in)
	wantFault(t, err, fault.NotFound, "unknown_member")
	_, err = w.GetMember(t.Context(), few, wide.ID)
	wantFault(t, err, fault.NotFound, "unknown_member")
	wantFault(t, w.DeleteMember(t.Context(), few, wide.ID), fault.NotFound, "unknown_member")
	list, _, err := w.ListMembers(t.Context(), few, "", "", 0)
	if err != nil || len(list) != 1 || list[0].ID != mine.ID {
		t.Errorf("sees %+v, %v", list, err)
	}
	if err := w.DeleteMember(t.Context(), few, mine.ID); err != nil {
		t.Error(err)
	}
}

func TestListMembers(t *testing.T) {
	w := newWorld(t)
	a, b, g := w.put(t, w.acme, IssuerSpec{URL: idp}), w.put(t, w.acme, IssuerSpec{URL: idp + "/b"}), w.put(t, w.globex, IssuerSpec{URL: idp})
	var want, ofB []string
	for n := range 6 {
		issuer := []string{a.ID, b.ID}[n%2]
		m, err := w.PutMember(t.Context(), w.acme, MemberSpec{IssuerID: issuer, Subject: fmt.Sprint(n), Scopes: tenants.Read})
		if err != nil {
			t.Fatal(err)
		}
		want = append([]string{m.ID}, want...) // two of one instant are in the order of their ids
		if issuer == b.ID {
			ofB = append([]string{m.ID}, ofB...)
		}
		w.now = w.now.Add(time.Duration(n%2) * time.Millisecond)
	}
	if _, err := w.PutMember(t.Context(), w.globex, MemberSpec{IssuerID: g.ID, Subject: "0", Scopes: tenants.Read}); err != nil {
		t.Fatal(err)
	}
	for limit := 1; limit <= 7; limit++ {
		for issuer, want := range map[string][]string{"": want, b.ID: ofB} {
			var got []string
			for cursor := ""; ; {
				page, next, err := w.ListMembers(t.Context(), w.acme, issuer, cursor, limit)
				if err != nil || len(page) > limit {
					t.Fatal(len(page), err)
				}
				for _, m := range page {
					got = append(got, m.ID)
				}
				if cursor = next; next == "" {
					break
				}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("limit %d: %s", limit, d)
			}
		}
	}
}

// However many add at once, a quota is filled and not exceeded, and the other
// tenant's is not touched.
func TestQuotas(t *testing.T) {
	w := newWorld(t)
	a, g := w.put(t, w.acme, IssuerSpec{URL: idp}), w.put(t, w.globex, IssuerSpec{URL: idp})
	if _, err := w.SetPolicy(t.Context(), w.acme, tenants.Policy{MaxTokens: 5, MaxIssuers: 3, MaxMembers: 4}, nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, reason, field string
		room                int // besides what is there
		add                 func(sc tenants.Scope, n int) error
	}{
		{"tokens", "quota_tokens", "max_tokens", 4, func(sc tenants.Scope, n int) error {
			_, _, err := w.CreateToken(t.Context(), sc, TokenSpec{Name: "x", Scopes: tenants.Read})
			return err
		}},
		{"issuers", "quota_issuers", "max_issuers", 2, func(sc tenants.Scope, n int) error {
			return second(w.PutIssuer(t.Context(), sc, IssuerSpec{URL: fmt.Sprint(idp, "/", sc.Slug, n)}))
		}},
		{"members", "quota_members", "max_members", 4, func(sc tenants.Scope, n int) error {
			id := a.ID
			if sc.Tenant == w.globex.Tenant {
				id = g.ID
			}
			return second(w.PutMember(t.Context(), sc, MemberSpec{IssuerID: id, Subject: fmt.Sprint("s", n), Scopes: tenants.Read}))
		}},
	} {
		var wg sync.WaitGroup
		errs := make([]error, c.room+6)
		for n := range errs {
			wg.Go(func() { errs[n] = c.add(w.acme, n) })
		}
		wg.Wait()
		added := 0
		for _, err := range errs {
			if err == nil {
				added++
				continue
			}
			if f := fault.Of(err); f.Kind != fault.Exhausted || f.Reason != c.reason || f.Field != c.field || f.Next == "" || !strings.Contains(f.Msg, "at most") {
				t.Errorf("%s: %v", c.what, err)
			}
		}
		if added != c.room {
			t.Errorf("%d %s were added, want %d", added, c.what, c.room)
		}
		if err := errors.Join(c.add(w.globex, 0), c.add(w.globex, 1), c.add(w.globex, 2), c.add(w.globex, 3), c.add(w.globex, 4)); err != nil {
			t.Errorf("globex's %s: %v", c.what, err)
		}
	}
	counts, err := w.Counts(t.Context(), w.acme)
	if d := cmp.Diff(Counts{Tokens: 5, Issuers: 3, Members: 4}, counts); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
	// What is there can still be changed, and a revoked token makes room.
	w.put(t, w.acme, IssuerSpec{URL: idp, Name: "renamed"})
	if err := w.RevokeToken(t.Context(), w.acme, w.a.ID); err != nil {
		t.Fatal(err)
	}
	w.make(t, w.acme, TokenSpec{Name: "x", Scopes: tenants.Read})
}

func TestPolicy(t *testing.T) {
	w := newWorld(t)
	p, err := w.Policy(t.Context(), w.acme)
	if err != nil || !p.UpdatedAt.IsZero() || p.Effective().MaxTokens != tenants.DefaultMaxTokens || p.Effective().FirstScopes != tenants.Read || p.Effective().Scopes != tenants.EveryScope {
		t.Errorf("%+v, %v", p, err)
	}
	set := tenants.Policy{Scopes: tenants.Read | tenants.Diagnose, FirstScopes: tenants.Diagnose, PrincipalRate: 7, MaxNodes: 900_000}
	one, err := w.SetPolicy(t.Context(), w.acme, set, &time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	two, err := w.Policy(t.Context(), w.acme)
	if d := cmp.Diff(one, two, same); err != nil || d != "" || two.Set != set || two.UpdatedBy != "operator:test" {
		t.Errorf("%v\n%s", err, d)
	}
	trust, err := w.Trust(t.Context(), w.acme.Tenant)
	if err != nil || trust.Policy != set {
		t.Errorf("%+v, %v", trust, err)
	}
	if trust, err := w.Trust(t.Context(), w.globex.Tenant); err != nil || trust.Policy != (tenants.Policy{}) {
		t.Errorf("globex: %+v, %v", trust, err)
	}
	if of, err := w.PolicyOf(t.Context(), w.acme.Tenant); err != nil || of.PrincipalRate != 7 || of.TenantRate != tenants.DefaultTenantRate {
		t.Errorf("%+v, %v", of, err)
	}
	three, err := w.SetPolicy(t.Context(), w.acme, set, &one.UpdatedAt)
	if err != nil || !three.UpdatedAt.After(one.UpdatedAt) {
		t.Error(three, err)
	}
	_, err = w.SetPolicy(t.Context(), w.acme, tenants.Policy{}, &one.UpdatedAt)
	wantFault(t, err, fault.Precondition, "changed_meanwhile")

	// The tenant's own administrator stays within the default, or within what
	// the operator gave.
	own := w.acme
	own.Principal.Kind = tenants.TokenPrincipal
	for field, p := range map[string]tenants.Policy{
		"max_nodes":        {MaxNodes: 900_001},
		"max_tokens":       {MaxTokens: tenants.DefaultMaxTokens + 1},
		"principal_rate":   {PrincipalRate: tenants.DefaultPrincipalRate + 1},
		"tenant_rate":      {TenantRate: -1},
		"scopes":           {Scopes: 1 << 7},
		"first_scopes":     {Scopes: tenants.Read, FirstScopes: tenants.Act},
		"max_issuers":      {MaxIssuers: tenants.DefaultMaxIssuers + 1},
		"max_members":      {MaxMembers: 1 << 30},
		"max_enrol_tokens": {MaxEnrolTokens: -5},
	} {
		_, err := w.SetPolicy(t.Context(), own, p, nil)
		if f := fault.Of(err); f == nil || f.Kind != fault.Invalid || f.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := w.SetPolicy(t.Context(), own, tenants.Policy{MaxNodes: 900_000}, nil); err != nil {
		t.Error(err)
	}
	_, err = w.SetPolicy(t.Context(), w.acme, tenants.Policy{MaxNodes: 1_000_001}, nil)
	wantFault(t, err, fault.Invalid, "invalid_argument")
}

// What the operator gave beyond the default stays the bound of the tenant's
// administrator, however low it sets it meanwhile; an operator's new number
// replaces it, and one that the operator does not touch stays.
func TestCeilingOfTheOperator(t *testing.T) {
	w := newWorld(t)
	own := w.acme
	own.Principal.Kind = tenants.TokenPrincipal
	must := func(sc tenants.Scope, p tenants.Policy) PolicyState {
		t.Helper()
		state, err := w.SetPolicy(t.Context(), sc, p, nil)
		if err != nil {
			t.Fatal(err)
		}
		read, err := w.Policy(t.Context(), sc)
		if d := cmp.Diff(state.Most(), read.Most()); d != "" || err != nil {
			t.Fatalf("%v %s", err, d)
		}
		return state
	}
	refused := func(p tenants.Policy, field, words string) {
		t.Helper()
		_, err := w.SetPolicy(t.Context(), own, p, nil)
		if f := fault.Of(err); f == nil || f.Kind != fault.Invalid || f.Field != field || !strings.Contains(f.Msg, words) || f.Next == "" {
			t.Errorf("%v, want %s with %q", err, field, words)
		}
	}
	must(w.acme, tenants.Policy{MaxNodes: 90_000, MaxTokens: 7000})
	for _, n := range []int{90_000, 10, 0, 90_000, 50_000} {
		if got := must(own, tenants.Policy{MaxNodes: n}).Most(); got.MaxNodes != 90_000 || got.MaxTokens != 7000 || got.TenantRate != tenants.DefaultTenantRate {
			t.Errorf("%+v", got)
		}
	}
	refused(tenants.Policy{MaxNodes: 90_001}, "max_nodes", "want 1 to 90000, which the operator of this server gave")
	must(w.acme, tenants.Policy{MaxNodes: 50_000, MaxTokens: 6000}) // max_nodes is as it was
	must(own, tenants.Policy{MaxNodes: 90_000})
	refused(tenants.Policy{MaxTokens: 6001}, "max_tokens", "want 1 to 6000, which")
	must(w.acme, tenants.Policy{}) // back to the default
	refused(tenants.Policy{MaxNodes: tenants.DefaultMaxNodes + 1}, "max_nodes", fmt.Sprintf("want 1 to %d, or 0", tenants.DefaultMaxNodes))
	if of, err := w.Policy(t.Context(), w.globex); err != nil || of.Most().MaxTokens != tenants.DefaultMaxTokens {
		t.Errorf("globex: %+v, %v", of, err)
	}
}

package directory

import (
	"context"
	"crypto/sha256"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

func scanText(row pgx.CollectableRow) (s string, err error) { return s, row.Scan(&s) }

func (w *world) count(t *testing.T, tn Tenant, sql string) string {
	t.Helper()
	rows, err := tenantdb.Query(t.Context(), w.db, tn.ID, sql, []any{tn.ID}, scanText)
	if err != nil || len(rows) != 1 {
		t.Fatal(rows, err)
	}
	return rows[0]
}

const countAllNodes = `select count(*)::text from node where tenant_id = $1`

// N uses make exactly N nodes, however many redeem at the same time, and the
// other tenant is never touched.
func TestUsesMakeAsManyNodes(t *testing.T) {
	w := newWorld(t, Config{})
	w.enrol(t, w.globex, "g", nil)
	total := 0
	for range 4 {
		uses, tries := 1+rand.IntN(6), 8+rand.IntN(8)
		secret, _, err := w.CreateEnrolToken(t.Context(), admin(w.acme), EnrolTokenSpec{Uses: uses, Labels: map[string]string{"a": "1", "b": "2"}})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		nodes := map[tenants.NodeID]bool{}
		for range tries {
			wg.Go(func() {
				tenant, node, err := w.RedeemEnrolToken(t.Context(), secret, NodeFacts{Name: "n"})
				if err != nil {
					if f := fault.Of(err); f.Reason != "token_spent" || f.Kind != fault.Unauthorized {
						t.Errorf("refused with %v", err)
					}
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if nodes[node] || tenant != w.acme.ID {
					t.Errorf("node %v of %v twice or in the wrong tenant", node, tenant)
				}
				nodes[node] = true
			})
		}
		wg.Wait()
		if len(nodes) != uses {
			t.Fatalf("%d uses, %d tries: %d nodes", uses, tries, len(nodes))
		}
		total += uses
		for node := range nodes {
			id, err := w.NodeIdentity(t.Context(), w.acme.ID, node)
			if diff := cmp.Diff(map[string]string{"a": "1", "b": "2"}, id.Labels); err != nil || diff != "" {
				t.Fatalf("%v\n%s", err, diff)
			}
		}
	}
	nodes := w.count(t, w.acme, countAllNodes)
	if uses := w.count(t, w.acme, `select sum(uses_max - uses_left)::text from enrol_token where tenant_id = $1`); uses != nodes {
		t.Errorf("%s uses, %s nodes (want %d)", uses, nodes, total)
	}
	if got := w.count(t, w.globex, countAllNodes); got != "1" {
		t.Errorf("globex has %s nodes", got)
	}
}

func TestRedeemRefusals(t *testing.T) {
	now := time.Now()
	w := newWorld(t, Config{Now: func() time.Time { return now }})
	secret, tok, err := w.CreateEnrolToken(t.Context(), admin(w.acme), EnrolTokenSpec{Uses: 2, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	refuse := func(text string, kind fault.Kind, reason string) {
		t.Helper()
		_, _, err := w.RedeemEnrolToken(t.Context(), text, NodeFacts{Name: "n"})
		wantFault(t, err, kind, reason)
		if strings.Contains(err.Error(), text) && len(text) > 20 {
			t.Errorf("the refusal shows the secret: %v", err)
		}
	}
	stranger, _ := tenants.MintSecret(tenants.EnrolSecret)
	operator, _ := tenants.MintSecret(tenants.OperatorSecret)
	mistyped := secret[:len(secret)-1] + "0"
	if mistyped == secret {
		mistyped = secret[:len(secret)-1] + "1"
	}
	refuse("", fault.Unauthorized, "malformed_token")
	refuse(operator, fault.Unauthorized, "malformed_token")
	refuse(strings.Repeat("x", 400_000), fault.Unauthorized, "malformed_token")
	refuse(mistyped, fault.Unauthorized, "bad_checksum")
	refuse(stranger, fault.Unauthorized, "unknown_token")

	if _, _, err := w.RedeemEnrolToken(t.Context(), secret, NodeFacts{KeyHash: []byte{1}}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a short key hash: %v", err)
	}
	if err := w.SetSuspended(t.Context(), "acme", true); err != nil {
		t.Fatal(err)
	}
	refuse(secret, fault.Denied, "tenant_suspended")
	if err := w.SetSuspended(t.Context(), "acme", false); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Minute)
	refuse(secret, fault.Unauthorized, "token_expired")
	now = now.Add(-time.Second)
	if _, _, err := w.RedeemEnrolToken(t.Context(), secret, NodeFacts{}); err != nil {
		t.Fatalf("a second before its end: %v", err)
	}
	wantFault(t, w.RevokeEnrolToken(t.Context(), admin(w.globex), tok.ID), fault.NotFound, "unknown_enrol_token")
	if err := w.RevokeEnrolToken(t.Context(), admin(w.acme), tok.ID); err != nil {
		t.Fatal(err)
	}
	refuse(secret, fault.Unauthorized, "token_revoked")
	if got := w.count(t, w.acme, countAllNodes); got != "1" {
		t.Errorf("%s nodes, want the one that was let in", got)
	}
}

// A right id with a wrong secret learns nothing, not even that it is expired.
func TestGuessedSecretLearnsNothing(t *testing.T) {
	now := time.Now()
	w := newWorld(t, Config{Now: func() time.Time { return now }})
	secret, tok, err := w.CreateEnrolToken(t.Context(), admin(w.acme), EnrolTokenSpec{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	var guess string
	for guess == "" { // a secret of the same id with a right checksum
		other, _ := tenants.MintSecret(tenants.EnrolSecret)
		guess = swapID(other, tok.ID)
	}
	_, _, err = w.RedeemEnrolToken(t.Context(), guess, NodeFacts{})
	wantFault(t, err, fault.Unauthorized, "unknown_token")
	_, _, err = w.RedeemEnrolToken(t.Context(), secret, NodeFacts{})
	wantFault(t, err, fault.Unauthorized, "token_expired")
}

// An agent whose answer was lost asks again with its key and is the same node.
func TestLostAnswer(t *testing.T) {
	w := newWorld(t, Config{})
	secret, _, err := w.CreateEnrolToken(t.Context(), admin(w.acme), EnrolTokenSpec{})
	if err != nil {
		t.Fatal(err)
	}
	key := sha256.Sum256([]byte("key"))
	other := sha256.Sum256([]byte("other"))
	var nodes [4]tenants.NodeID
	var wg sync.WaitGroup
	for i := range nodes {
		wg.Go(func() {
			var err error
			if _, nodes[i], err = w.RedeemEnrolToken(t.Context(), secret, NodeFacts{Name: "n", KeyHash: key[:]}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, n := range nodes {
		if n != nodes[0] || n.IsZero() {
			t.Fatalf("one key became several nodes: %v", nodes)
		}
	}
	_, _, err = w.RedeemEnrolToken(t.Context(), secret, NodeFacts{KeyHash: other[:]})
	wantFault(t, err, fault.Unauthorized, "token_spent")
	if err := w.RevokeNode(t.Context(), admin(w.acme), nodes[0]); err != nil {
		t.Fatal(err)
	}
	_, _, err = w.RedeemEnrolToken(t.Context(), secret, NodeFacts{KeyHash: key[:]})
	wantFault(t, err, fault.Unauthorized, "node_revoked")
}

func TestCreateEnrolTokenBounds(t *testing.T) {
	w := newWorld(t, Config{})
	many := map[string]string{}
	for i := range tenants.MaxNodeLabels + 1 {
		many[strings.Repeat("k", i+1)] = ""
	}
	for what, spec := range map[string]EnrolTokenSpec{
		"negative uses":  {Uses: -1},
		"too many uses":  {Uses: MaxEnrolUses + 1},
		"negative time":  {TTL: -time.Second},
		"too long":       {TTL: MaxEnrolTTL + 1},
		"many labels":    {Labels: many},
		"unnamed label":  {Labels: map[string]string{"": "x"}},
		"400 KB label":   {Labels: map[string]string{"a": strings.Repeat("x", 400_000)}},
		"bad bytes":      {Labels: map[string]string{"a": "\xff"}},
		"hidden letters": {Labels: map[string]string{"a": "x\u202ey"}},
	} {
		if _, _, err := w.CreateEnrolToken(t.Context(), admin(w.acme), spec); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	reader := admin(w.acme)
	reader.Granted = tenants.Read | tenants.Maintain
	_, _, err := w.CreateEnrolToken(t.Context(), reader, EnrolTokenSpec{})
	wantFault(t, err, fault.Denied, "insufficient_scope")
	_, _, err = w.CreateEnrolToken(t.Context(), tenants.Scope{}, EnrolTokenSpec{})
	wantFault(t, err, fault.Unauthorized, "no_credential")

	site := limited(w.acme, map[string]string{"site": "a"})
	_, _, err = w.CreateEnrolToken(t.Context(), site, EnrolTokenSpec{})
	wantFault(t, err, fault.Denied, "outside_selector")
	if _, _, err = w.CreateEnrolToken(t.Context(), site, EnrolTokenSpec{Labels: map[string]string{"site": "a", "x": "y"}}); err != nil {
		t.Error(err)
	}
	_, _, err = w.CreateEnrolToken(t.Context(), limited(w.acme, nil, tenants.NewNodeID()), EnrolTokenSpec{})
	wantFault(t, err, fault.Denied, "outside_selector")
}

// Facts of untrusted machines are made safe, cut, and never refused.
func TestWildFacts(t *testing.T) {
	w := newWorld(t, Config{})
	for _, name := range []string{"", "\xfftest", "a\x00b", strings.Repeat("長", 200_000), "x\u202ey"} {
		secret, _, err := w.CreateEnrolToken(t.Context(), admin(w.acme), EnrolTokenSpec{})
		if err != nil {
			t.Fatal(err)
		}
		_, node, err := w.RedeemEnrolToken(t.Context(), secret, NodeFacts{Name: name, MachineID: name, Kernel: name})
		if err != nil {
			t.Fatalf("%.10q: %v", name, err)
		}
		id, err := w.NodeIdentity(t.Context(), w.acme.ID, node)
		if err != nil || id.Name == "" || len(id.Name) > 128 {
			t.Errorf("%.10q became %q, %v", name, id.Name, err)
		}
	}
}

func TestListEnrolTokens(t *testing.T) {
	w := newWorld(t, Config{})
	var ids []string
	for _, tn := range []Tenant{w.acme, w.globex} {
		_, tok, err := w.CreateEnrolToken(t.Context(), admin(tn), EnrolTokenSpec{Uses: 3, Labels: map[string]string{"of": tn.Slug}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, tok.ID)
	}
	if err := w.RevokeEnrolToken(t.Context(), admin(w.acme), ids[0]); err != nil {
		t.Fatal(err)
	}
	list, _, err := w.ListEnrolTokens(t.Context(), admin(w.acme), "", 0)
	if err != nil || len(list) != 1 {
		t.Fatalf("acme's tokens: %v, %v", list, err)
	}
	if got := list[0]; got.ID != ids[0] || got.RevokedAt == nil || got.UsesLeft != 3 || got.UsesMax != 3 || got.Labels["of"] != "acme" {
		t.Errorf("got %+v", got)
	}
	reader := admin(w.acme)
	reader.Granted = tenants.Read
	_, _, err = w.ListEnrolTokens(t.Context(), reader, "", 0)
	wantFault(t, err, fault.Denied, "insufficient_scope")
}

func TestPagesOfEnrolTokens(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Microsecond)
	w := newWorld(t, Config{Now: func() time.Time { return now }})
	site := map[string]string{"site": "a"}
	var all, ofSite []string
	for n := range 5 {
		now = now.Add(time.Millisecond)
		labels := map[string]string{"n": strings.Repeat("x", n)}
		if n%2 == 1 {
			labels["site"] = "a"
		}
		_, tok, err := w.CreateEnrolToken(t.Context(), admin(w.acme), EnrolTokenSpec{Labels: labels})
		if err != nil {
			t.Fatal(err)
		}
		all = append([]string{tok.ID}, all...)
		if n%2 == 1 {
			ofSite = append([]string{tok.ID}, ofSite...)
		}
	}
	if _, _, err := w.CreateEnrolToken(t.Context(), admin(w.globex), EnrolTokenSpec{Labels: site}); err != nil {
		t.Fatal(err)
	}
	for limit := 1; limit <= 6; limit++ {
		for what, c := range map[string]struct {
			sc   tenants.Scope
			want []string
		}{"all": {admin(w.acme), all}, "a site": {limited(w.acme, site), ofSite}, "one node": {limited(w.acme, nil, tenants.NewNodeID()), nil}} {
			var got []string
			for cursor := ""; ; {
				page, next, err := w.ListEnrolTokens(t.Context(), c.sc, cursor, limit)
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
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("%s by %d: %s", what, limit, d)
			}
		}
	}
	for _, cursor := range []string{"x", "====", strings.Repeat("A", 1e6), "LTEgYQ"} {
		if _, _, err := w.ListEnrolTokens(t.Context(), admin(w.acme), cursor, 1); !fault.Is(err, fault.Invalid) {
			t.Errorf("cursor %.10q: %v", cursor, err)
		}
	}
	wantFault(t, w.RevokeEnrolToken(t.Context(), limited(w.acme, site), all[0]), fault.NotFound, "unknown_enrol_token")
	wantFault(t, w.RevokeEnrolToken(t.Context(), admin(w.acme), "a\x00"), fault.NotFound, "unknown_enrol_token")
	if err := w.RevokeEnrolToken(t.Context(), limited(w.acme, site), ofSite[0]); err != nil {
		t.Error(err)
	}
}

// held is a policy for everybody.
type held tenants.Policy

func (h held) PolicyOf(_ context.Context, tenant tenants.TenantID) (tenants.Policy, error) {
	return tenants.Policy(h).OrDefaults(), nil
}

// However many ask at once, a tenant gets as many nodes and enrolment tokens as
// it may have, and the other tenant is not touched.
func TestQuotas(t *testing.T) {
	now := time.Now()
	w := newWorld(t, Config{Now: func() time.Time { return now }, Quotas: held{MaxNodes: 3, MaxEnrolTokens: 4}})
	race := func(what, reason, field string, want int, add func() error) {
		t.Helper()
		var wg sync.WaitGroup
		errs := make([]error, want+6)
		for n := range errs {
			wg.Go(func() { errs[n] = add() })
		}
		wg.Wait()
		added := 0
		for _, err := range errs {
			if err == nil {
				added++
			} else if f := fault.Of(err); f.Kind != fault.Exhausted || f.Reason != reason || f.Field != field || f.Next == "" {
				t.Errorf("%s: %v", what, err)
			}
		}
		if added != want {
			t.Errorf("%d %s, want %d", added, what, want)
		}
	}
	var mu sync.Mutex
	var secrets []string
	race("enrolment tokens", "quota_enrol_tokens", "max_enrol_tokens", 4, func() error {
		secret, _, err := w.CreateEnrolToken(t.Context(), admin(w.acme), EnrolTokenSpec{Uses: 10})
		mu.Lock()
		defer mu.Unlock()
		secrets = append(secrets, secret)
		return err
	})
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return s == "" })
	next := 0
	race("nodes", "quota_nodes", "max_nodes", 3, func() error { // each token's row is another one, and does not serialise them
		mu.Lock()
		secret := secrets[next%len(secrets)]
		next++
		mu.Unlock()
		_, _, err := w.RedeemEnrolToken(t.Context(), secret, NodeFacts{Name: "n"})
		return err
	})
	counts, err := w.Counts(t.Context(), admin(w.acme))
	if d := cmp.Diff(Counts{Nodes: 3, EnrolTokens: 4}, counts); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
	_, err = w.Counts(t.Context(), tenants.Scope{Tenant: w.acme.ID, Granted: tenants.Read})
	wantFault(t, err, fault.Denied, "insufficient_scope")
	_, err = w.Counts(t.Context(), limited(w.acme, map[string]string{"site": "a"}))
	wantFault(t, err, fault.Denied, "outside_selector")
	key := sha256.Sum256([]byte("key"))
	theirs, _, err := w.CreateEnrolToken(t.Context(), admin(w.globex), EnrolTokenSpec{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a lost answer needs no room
		if _, _, err := w.RedeemEnrolToken(t.Context(), theirs, NodeFacts{Name: "g", KeyHash: key[:]}); err != nil {
			t.Error(err)
		}
	}
	now = now.Add(2 * time.Hour) // the tokens are over and make room
	if _, _, err := w.CreateEnrolToken(t.Context(), admin(w.acme), EnrolTokenSpec{}); err != nil {
		t.Error(err)
	}
}

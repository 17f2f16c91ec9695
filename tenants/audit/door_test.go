package audit

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func reference(n int) string { return fmt.Sprintf("ref%017d", n) }

func TestAttempts(t *testing.T) {
	w := newWorld(t)
	at := func(n int, tenant tenants.TenantID) tenants.Attempt {
		return tenants.Attempt{Tenant: tenant, Reference: reference(n), At: w.now(), Step: tenants.StepRefused, Class: "audience", Surface: "mcp", Issuer: "https://idp.example",
			Expected: "https://host/t/acme/mcp", Received: "https://elsewhere", Client: "curl", From: netip.MustParseAddr("192.0.2.9")}
	}
	for n := range 3 {
		w.s.Attempt(at(n, w.a))
		w.s2.Attempt(at(100+n, w.b))
		w.advance(time.Second)
	}
	w.s.Attempt(tenants.Attempt{Step: tenants.StepRefused}) // of no tenant
	for _, when := range []string{"waiting", "written"} {
		got, err := w.s.ByReference(t.Context(), w.a, reference(1))
		want := at(1, w.a)
		want.At = start.Add(time.Second)
		if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); d != "" || err != nil {
			t.Errorf("%s: %v %s", when, err, d)
		}
		if _, err := w.s.ByReference(t.Context(), w.b, reference(1)); !fault.Is(err, fault.NotFound) {
			t.Errorf("%s: another tenant's: %v", when, err)
		}
		list, err := w.s.Recent(t.Context(), w.admin)
		if err != nil || len(list.Attempts) != 3 || list.Attempts[0].Reference != reference(2) || list.Dropped != nil {
			t.Errorf("%s: %v %v", when, list, err)
		}
		w.flush(w.s, w.s2)
	}
	if list, err := w.s.Recent(t.Context(), w.other); err != nil || len(list.Attempts) != 3 || list.Attempts[0].Reference != reference(102) {
		t.Errorf("%v %v", list, err)
	}
	reader := w.admin
	reader.Granted = tenants.Read
	if _, err := w.s.Recent(t.Context(), reader); !fault.Is(err, fault.Denied) {
		t.Errorf("without admin: %v", err)
	}
	for _, odd := range []string{"", "x", strings.Repeat("a", 41), "REF00000000000000001", "ref0000000000000000'", "\x00"} {
		if _, err := w.s.ByReference(t.Context(), w.a, odd); !fault.Is(err, fault.NotFound) {
			t.Errorf("%q: %v", odd, err)
		}
	}
	if got := w.s.Stats(); got.Homeless != 1 {
		t.Errorf("%+v", got)
	}

	// The newest of a kind stay, whoever floods; those of another kind and of
	// another tenant do not go.
	known := at(500, w.a)
	known.Proven = true
	w.s.Attempt(known)
	for n := range 250 {
		w.s.Attempt(at(1000+n, w.a))
		w.s.Attempt(tenants.Attempt{Tenant: w.a, Reference: reference(2000 + n), Step: tenants.StepMetadata, Surface: "metadata"})
		if n%90 == 0 {
			w.flush(w.s)
		}
		w.advance(10 * time.Millisecond)
	}
	w.flush(w.s)
	if n := w.count(`select count(*) from attempt where tenant_id = $1`, w.a); n != refusedKind.most+metadataKind.most+1 {
		t.Errorf("%d attempts are kept", n)
	}
	if got, err := w.s.ByReference(t.Context(), w.a, reference(500)); err != nil || got.Reference != reference(500) {
		t.Errorf("the proven one: %v", err)
	}
	recent, err := w.s.Recent(t.Context(), w.admin)
	gone := []Dropped{{"metadata", metadataKind.most, 250 - int64(metadataKind.most)}, {"refused", refusedKind.most, 253 - int64(refusedKind.most)}}
	if d := cmp.Diff(gone, recent.Dropped); d != "" || err != nil || len(recent.Attempts) != refusedKind.most+metadataKind.most+1 {
		t.Errorf("%v, %d attempts %s", err, len(recent.Attempts), d)
	}
	if other, err := w.s.Recent(t.Context(), w.other); err != nil || other.Dropped != nil {
		t.Errorf("the other tenant lost %v %v", other.Dropped, err)
	}
	if n := w.count(`select count(*) from attempt where tenant_id = $1`, w.b); n != 3 {
		t.Errorf("%d attempts of the other tenant are kept", n)
	}
	if _, err := w.s.ByReference(t.Context(), w.a, reference(1249)); err != nil {
		t.Errorf("the newest: %v", err)
	}
	if _, err := w.s.ByReference(t.Context(), w.a, reference(1)); !fault.Is(err, fault.NotFound) {
		t.Errorf("the oldest: %v", err)
	}

	// A day later they are gone.
	w.advance(day)
	if _, err := w.s.ByReference(t.Context(), w.a, reference(1249)); !fault.Is(err, fault.NotFound) {
		t.Errorf("after a day: %v", err)
	}
	if list, err := w.s.Recent(t.Context(), w.admin); err != nil || len(list.Attempts) != 0 {
		t.Errorf("after a day: %v %v", list, err)
	}
	if err := w.s.keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := w.count(`select count(*) from attempt`); n != 0 {
		t.Errorf("%d old attempts are kept", n)
	}
	w.advance(time.Hour)
	if err := w.s.keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := w.count(`select count(*) from attempt_dropped`); n != 0 {
		t.Errorf("%d old counts are kept", n)
	}
	sum := 0
	for _, k := range kinds {
		sum += k.most
	}
	if sum != MaxAttempts {
		t.Errorf("the kinds may have %d together", sum)
	}
}

// A refused or failed call is found by its reference id, at once, when it was
// folded with others, and by its row in the audit when newer ones pushed it out;
// a stranger's by the count of refusals that names it. Never another tenant's.
func TestCallByReference(t *testing.T) {
	w := newWorld(t)
	call := func(n int, reason string) Entry {
		e := entry(w.admin, "get_node")
		e.Outcome, e.Reason, e.Reference = Failed, reason, reference(n)
		return e
	}
	find := func(when string, n int, class string) {
		t.Helper()
		a, err := w.s.ByReference(t.Context(), w.a, reference(n))
		if err != nil || a.Class != class || a.Step != tenants.StepCall || a.Principal != w.admin.Principal.ID || !strings.HasPrefix(a.Received, "get_node {") {
			t.Errorf("%s: %+v %v", when, a, err)
		}
		if _, err := w.s.ByReference(t.Context(), w.b, reference(n)); !fault.Is(err, fault.NotFound) {
			t.Errorf("%s, to another tenant: %v", when, err)
		}
	}
	w.s.Note(call(1, "unknown_node"))
	limited := call(2, "rate_limited")
	limited.Outcome = Refused
	for range 2 { // the second is folded into the first
		w.s.Note(limited)
		limited.Reference = reference(3)
	}
	fine := entry(w.admin, "list_nodes")
	fine.Reference = reference(4)
	w.s.Note(fine)
	find("waiting", 1, "unknown_node")
	find("folded", 3, "rate_limited")
	w.flush(w.s)
	find("written", 1, "unknown_node")
	find("folded and written", 3, "rate_limited")
	if _, err := w.s.ByReference(t.Context(), w.a, reference(4)); !fault.Is(err, fault.NotFound) {
		t.Errorf("one that went well: %v", err)
	}

	// Its caller's other calls push out the attempt, and not the audit's row.
	for n := range 200 {
		w.s.Note(call(100+n, "unknown_node"))
	}
	w.flush(w.s)
	if n := w.count(`select count(*) from attempt where tenant_id = $1`, w.a); n != callKind.most+2 {
		t.Errorf("%d attempts are kept", n)
	}
	find("pushed out", 1, "unknown_node")

	for n := range 100 { // of one network and one reason: counted together under the last
		w.s.Attempt(tenants.Attempt{Tenant: w.a, Reference: reference(1000 + n), Step: tenants.StepRefused, Class: "signature", Surface: "mcp"})
	}
	w.flush(w.s)
	w.exec(`delete from attempt where reference = $1`, reference(1099))
	if a, err := w.s.ByReference(t.Context(), w.a, reference(1099)); err != nil || a.Class != "signature" || a.Step != tenants.StepRefused {
		t.Errorf("a stranger's: %+v %v", a, err)
	}
	w.advance(day + time.Hour)
	if _, err := w.s.ByReference(t.Context(), w.a, reference(1)); !fault.Is(err, fault.NotFound) {
		t.Errorf("after a day: %v", err)
	}
}

// A good credential that is worth nothing here is somebody's: it goes to the
// audit, and what nobody known sent to the refusals.
func TestRefusalsAtTheDoor(t *testing.T) {
	w := newWorld(t)
	refused := tenants.Attempt{Tenant: w.a, Step: tenants.StepRefused, Class: "expired", Surface: "mcp", Reference: reference(1), From: netip.MustParseAddr("192.0.2.9")}
	for n := range 200 { // from many networks
		refused.From = netip.AddrFrom4([4]byte{198, 51, byte(n), 7})
		w.s.Attempt(refused)
		w.s.Note(Entry{Tenant: w.b, Surface: "rest", Outcome: Refused, Reason: "no_token", From: netip.MustParseAddr("2001:db8:1:2::3"), Reference: reference(2)})
	}
	w.s.Attempt(tenants.Attempt{Tenant: w.a, Step: tenants.StepScope, Class: "no_role", Surface: "mcp", Reference: reference(3), Principal: "https://idp.example|erin|cli", Client: "cli"})
	w.s.Attempt(tenants.Attempt{Tenant: w.a, Step: tenants.StepScope, Class: "scope", Surface: "mcp", Reference: reference(4), Principal: "p"}) // the tool's guard records it
	w.s.Attempt(tenants.Attempt{Tenant: w.a, Step: tenants.StepAccepted, Surface: "mcp", Reference: reference(5), Principal: "p"})
	w.flush(w.s)
	list, err := w.s.Refusals(t.Context(), w.admin)
	if err != nil {
		t.Fatal(err)
	}
	total, nets := int64(0), map[string]bool{}
	for _, r := range list {
		total, nets[r.Network] = total+r.Count, true
	}
	if n := w.count(`select count(*) from refusal where tenant_id = $1`, w.a); n != maxNets+1 || len(list) != listRows || !nets[""] {
		t.Errorf("%d rows, %d listed, %v", n, len(list), nets)
	}
	if n := w.count(`select sum(count) from refusal where tenant_id = $1`, w.a); n != 200 {
		t.Errorf("%d refusals, want 200", n)
	}
	got, err := w.s.Refusals(t.Context(), w.other)
	want := []Refusal{{Hour: start.Truncate(time.Hour), Surface: "rest", Reason: "no_token", Network: "2001:db8:1::/48", Count: 200, First: start, Last: start, Reference: reference(2)}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	page := w.list(w.admin, Query{})
	if len(page.Entries) != 1 || page.Entries[0].Reason != "no_role" || page.Entries[0].Principal.ID != "https://idp.example|erin|cli" || page.Entries[0].Outcome != Refused {
		t.Errorf("%+v", page.Entries)
	}
	reader := w.admin
	reader.Granted = tenants.Read
	if _, err := w.s.Refusals(t.Context(), reader); !fault.Is(err, fault.Denied) {
		t.Errorf("without admin: %v", err)
	}

	// Later ones of the hour are added, and the table stays small.
	w.s.Note(Entry{Tenant: w.b, Surface: "rest", Outcome: Refused, Reason: "no_token", From: netip.MustParseAddr("2001:db8:1:2::3")})
	w.flush(w.s)
	if n := w.count(`select sum(count) from refusal where tenant_id = $1`, w.b); n != 201 {
		t.Errorf("%d refusals, want 201", n)
	}
	w.exec(`insert into refusal select $1, hour - n * interval '1 minute', surface, reason, from_net, 1, first_at, last_at, '' from refusal, generate_series(1, 3000) n where tenant_id = $2`, w.b, w.b)
	if err := w.s.keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := w.count(`select count(*) from refusal where tenant_id = $1`, w.b); n != maxRefusals {
		t.Errorf("%d rows are kept", n)
	}
	w.advance(keepRefusal + time.Hour)
	if err := w.s.keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := w.count(`select count(*) from refusal`); n != 0 {
		t.Errorf("%d rows are kept for ever", n)
	}
}

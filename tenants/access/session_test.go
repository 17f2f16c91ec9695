package access

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func TestSessions(t *testing.T) {
	w := newWorld(t)
	ses := func(sc tenants.Scope, token string) Session {
		_, secret := tenants.MintSecret(tenants.SessionSecret)
		return Session{ID: secret.ID, Hash: secret.Hash, Tenant: sc.Tenant, TokenID: token, CreatedAt: w.now, LastSeenAt: w.now, ExpiresAt: w.now.Add(24 * time.Hour)}
	}
	one, two, theirs := ses(w.acme, w.a.ID), ses(w.acme, w.a.ID), ses(w.globex, w.g.ID)
	if err := w.PutSession(t.Context(), one, ""); err != nil {
		t.Fatal(err)
	}
	if err := w.PutSession(t.Context(), theirs, one.ID); err != nil { // not theirs to end
		t.Fatal(err)
	}
	got, err := w.SessionByID(t.Context(), w.acme.Tenant, one.ID)
	if diff := cmp.Diff(one, got, same); err != nil || diff != "" {
		t.Fatalf("%v\n%s", err, diff)
	}
	_, err = w.SessionByID(t.Context(), w.globex.Tenant, one.ID)
	wantFault(t, err, fault.NotFound, "unknown_session")
	if err := w.PutSession(t.Context(), ses(w.acme, w.g.ID), ""); !fault.Is(err, fault.Conflict) {
		t.Errorf("a session on the other tenant's token: %v", err)
	}

	if err := w.PutSession(t.Context(), two, one.ID); err != nil {
		t.Fatal(err)
	}
	_, err = w.SessionByID(t.Context(), w.acme.Tenant, one.ID)
	wantFault(t, err, fault.NotFound, "unknown_session")
	at := w.now.Add(time.Hour)
	if err := w.TouchSessions(t.Context(), w.acme.Tenant, map[string]time.Time{two.ID: at, theirs.ID: at}); err != nil {
		t.Fatal(err)
	}
	if got, err := w.SessionByID(t.Context(), w.acme.Tenant, two.ID); err != nil || !got.LastSeenAt.Equal(at) {
		t.Errorf("seen %v, %v", got.LastSeenAt, err)
	}
	if err := w.EndSession(t.Context(), w.acme.Tenant, theirs.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := w.SessionByID(t.Context(), w.globex.Tenant, theirs.ID); err != nil || !got.LastSeenAt.Equal(w.now) {
		t.Errorf("the other tenant's session: seen %v, %v", got.LastSeenAt, err)
	}
	if n, err := w.Sweep(t.Context()); err != nil || n != 0 {
		t.Errorf("swept %d, %v", n, err)
	}
	w.now = w.now.Add(24 * time.Hour)
	if n, err := w.Sweep(t.Context()); err != nil || n != 2 {
		t.Errorf("swept %d, %v", n, err)
	}
}

func TestRunEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newWorld(t).Run(ctx); err != nil {
		t.Error(err)
	}
}

package audit

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// kind is a sort of attempts with a bound of its own, so that what anybody can
// cause, or one caller causes all the time, does not push out the rest.
type kind struct {
	name string
	most int
}

var (
	metadataKind  = kind{"metadata", 10}  // anybody reads it
	challengeKind = kind{"challenge", 30} // nothing was sent
	refusedKind   = kind{"refused", 60}   // a credential that anybody could have made up
	provenKind    = kind{"proven", 100}   // one that was issued for this tenant
	acceptedKind  = kind{"accepted", 30}
	callKind      = kind{"call", 60}  // of a verified caller
	rateKind      = kind{"rate", 10}  // the same, too fast: there are always many
	strayKind     = kind{"stray", 20} // calls of nobody known

	kinds = []kind{metadataKind, challengeKind, refusedKind, provenKind, acceptedKind, callKind, rateKind, strayKind}
)

// MaxAttempts is how many attempts of a tenant are kept at most, for a day: the
// bounds of all kinds together.
const MaxAttempts = 320

func kindOf(a tenants.Attempt) kind {
	switch {
	case a.Step == tenants.StepMetadata:
		return metadataKind
	case a.Step == tenants.StepChallenge:
		return challengeKind
	case a.Step == tenants.StepAccepted:
		return acceptedKind
	case a.Step == tenants.StepCall && a.Principal == "":
		return strayKind
	case a.Step == tenants.StepCall && a.Class == "rate_limited":
		return rateKind
	case a.Step == tenants.StepCall:
		return callKind
	case a.Proven:
		return provenKind
	}
	return refusedKind
}

// Dropped says of one kind of attempts how many were too many.
type Dropped struct {
	Kind    string `json:"kind"`
	Kept    int    `json:"kept"`    // the newest so many
	Dropped int64  `json:"dropped"` // older ones of the last 24 hours
}

// Recent is what happened at a tenant's door.
type Recent struct {
	Attempts []tenants.Attempt // the newest first
	Dropped  []Dropped         // the kinds of which some were dropped, by name
}

// Recent lists the last attempts: of each kind the newest of the last 24 hours.
// It needs telltale:admin.
func (s *Service) Recent(ctx context.Context, scope tenants.Scope) (Recent, error) {
	if err := scope.Require(tenants.Admin); err != nil {
		return Recent{}, err
	}
	waiting, lost := s.door.of(scope.Tenant)
	since := s.now().Add(-day)
	list, err := tenantdb.Query(ctx, s.db, scope.Tenant, sqlAttemptsRecent, []any{scope.Tenant, since, MaxAttempts}, scanAttempt(scope.Tenant))
	if err != nil {
		return Recent{}, tenantdb.Fault(err)
	}
	dropped, err := tenantdb.Query(ctx, s.db, scope.Tenant, sqlDropped, []any{scope.Tenant, since}, pgx.RowToStructByPos[struct {
		Kind string
		N    int64
	}])
	if err != nil {
		return Recent{}, tenantdb.Fault(err)
	}
	for _, d := range dropped {
		lost[d.Kind] += d.N
	}
	out := Recent{Attempts: list}
	for _, a := range waiting { // it may be written by now
		if !slices.ContainsFunc(list, func(b tenants.Attempt) bool {
			return a.Reference == b.Reference && a.Step == b.Step && a.At.Equal(b.At)
		}) {
			out.Attempts = append(out.Attempts, a.Attempt)
		}
	}
	slices.SortStableFunc(out.Attempts, func(a, b tenants.Attempt) int { return b.At.Compare(a.At) })
	out.Attempts = out.Attempts[:min(len(out.Attempts), MaxAttempts)]
	for _, k := range kinds {
		if n := lost[k.name]; n > 0 {
			out.Dropped = append(out.Dropped, Dropped{k.name, k.most, n})
		}
	}
	return out, nil
}

var errReference = fault.New(fault.NotFound, "reference_unknown", "no attempt of the last 24 hours has this reference id").
	Do(fmt.Sprintf("copy the id of the header Telltale-Reference again; attempts are kept for 24 hours, of each kind the newest, such as %d refused credentials and %d calls; "+
		"an administrator of the tenant sees how many were dropped, and the server's log has them all", provenKind.most, callKind.most))

// ByReference finds what a reference id belongs to: an attempt, else the
// refusal or the failure that the audit has under it. NotFound when there is
// none of the last 24 hours. It asks for no scope: whoever shows the values to
// a caller checks that it is an administrator of the tenant.
func (s *Service) ByReference(ctx context.Context, t tenants.TenantID, reference string) (tenants.Attempt, error) {
	if t.IsZero() || !referenceForm.MatchString(reference) {
		return tenants.Attempt{}, errReference
	}
	waiting, _ := s.door.of(t)
	for _, a := range slices.Backward(waiting) {
		if a.Reference == reference {
			return a.Attempt, nil
		}
	}
	args := []any{t, reference, s.now().Add(-day)}
	for _, from := range []struct {
		sql  string
		scan pgx.RowToFunc[tenants.Attempt]
	}{
		{sqlAttemptByReference, scanAttempt(t)},
		{sqlCallByReference, scanCall(t, reference)},
		{sqlRefusalByReference, scanRefused(t, reference)},
	} {
		a, found, err := tenantdb.QueryOne(ctx, s.db, t, from.sql, args, from.scan)
		if err != nil {
			return tenants.Attempt{}, tenantdb.Fault(err)
		}
		if found {
			return a, nil
		}
	}
	return tenants.Attempt{}, errReference
}

func scanAttempt(t tenants.TenantID) pgx.RowToFunc[tenants.Attempt] {
	return func(from pgx.CollectableRow) (a tenants.Attempt, err error) {
		var step, addr string
		a.Tenant = t
		err = from.Scan(&a.At, &a.Reference, &step, &a.Class, &a.Surface, &a.Issuer, &a.Expected, &a.Received, &a.Principal, &a.Client, &addr)
		a.At, a.Step, a.From = a.At.UTC(), tenants.AttemptStep(step), parseAddr(addr)
		return a, err
	}
}

func scanCall(t tenants.TenantID, reference string) pgx.RowToFunc[tenants.Attempt] {
	return func(from pgx.CollectableRow) (tenants.Attempt, error) {
		a := tenants.Attempt{Tenant: t, Reference: reference, Step: tenants.StepCall}
		var addr string
		err := from.Scan(&a.At, &a.Class, &a.Surface, &a.Received, &a.Principal, &a.Client, &addr)
		a.At, a.From, a.Received = a.At.UTC(), parseAddr(addr), clip(a.Received, maxClaim)
		return a, err
	}
}

func scanRefused(t tenants.TenantID, reference string) pgx.RowToFunc[tenants.Attempt] {
	return func(from pgx.CollectableRow) (tenants.Attempt, error) {
		a := tenants.Attempt{Tenant: t, Reference: reference, Step: tenants.StepRefused}
		err := from.Scan(&a.At, &a.Class, &a.Surface)
		a.At = a.At.UTC()
		return a, err
	}
}

// told makes an attempt of an entry that says how a verified caller's call was
// refused or failed. One that lacks a scope is reported by whoever challenges.
func (e Entry) told(at time.Time) (tenants.Attempt, bool) {
	if e.Outcome != Refused && e.Outcome != Failed || e.Reference == "" || e.Reason == "insufficient_scope" {
		return tenants.Attempt{}, false
	}
	return tenants.Attempt{Tenant: e.Tenant, Reference: e.Reference, At: at, Step: tenants.StepCall, Class: e.Reason, Surface: e.Surface,
		Received: e.Action + " " + e.Arguments, Principal: e.Principal.ID, Client: e.Principal.Client, From: e.From}, true
}

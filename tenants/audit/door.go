package audit

import (
	"context"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

const (
	// MaxAttempts is how many attempts of a tenant are kept, for a day.
	MaxAttempts = 100

	maxDoors  = 1000 // tenants whose attempts wait for their write
	maxClaim  = 300  // bytes of what was expected and received
	doorBatch = 50   // tenants of one write
)

// door is the attempts that wait: at most the newest MaxAttempts a tenant.
type door struct {
	mu               sync.Mutex
	waiting          map[tenants.TenantID][]attempt
	dropped, unknown uint64
}

type attempt struct {
	id uuid.UUID
	tenants.Attempt
}

func (d *door) init() { d.waiting = map[tenants.TenantID][]attempt{} }

// Attempt records what happened at a tenant's door, within a second; it never
// blocks. Of no tenant it is counted only. A refusal of somebody unknown is
// counted among the refusals too.
func (s *Service) Attempt(a tenants.Attempt) {
	d := &s.door
	if a.Tenant.IsZero() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.unknown++
		return
	}
	if a.At.IsZero() {
		a.At = s.now()
	}
	a.At = a.At.UTC().Truncate(time.Microsecond)
	if (a.Step == tenants.StepRefused || a.Step == tenants.StepChallenge) && a.Principal == "" {
		s.refusals.add(a.Tenant, a.At, a.Surface, a.Class, a.From, a.Reference, 1)
	}
	if a.Step == tenants.StepScope && a.Principal != "" && a.Class != "scope" { // one that lacks a scope is recorded by whoever refuses it
		s.Note(Entry{Tenant: a.Tenant, At: a.At, Principal: tenants.Principal{Kind: tenants.OAuthPrincipal, ID: a.Principal, Client: a.Client},
			Surface: a.Surface, Action: "connect", Outcome: Refused, Reason: a.Class, Reference: a.Reference, From: a.From})
	}
	a.Reference, a.Step, a.Class, a.Surface = clean(a.Reference, maxWord), tenants.AttemptStep(clean(string(a.Step), maxWord)), clean(a.Class, maxWord), clean(a.Surface, maxWord)
	a.Issuer, a.Expected, a.Received = clean(a.Issuer, maxID), clean(a.Expected, maxClaim), clean(a.Received, maxClaim)
	a.Principal, a.Client = clean(a.Principal, maxID), clean(a.Client, maxName)
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.waiting[a.Tenant]
	switch {
	case list == nil && len(d.waiting) >= maxDoors:
		d.dropped++
		return
	case len(list) >= MaxAttempts:
		d.dropped++ // it would be trimmed by the next ones anyway
		list = slices.Delete(list, 0, 1)
	}
	d.waiting[a.Tenant] = append(list, attempt{idAt(a.At), a})
}

// flushDoor writes the attempts and trims what is beyond the bound. What cannot
// be written now waits on, unless newer ones take its place.
func (s *Service) flushDoor(ctx context.Context) error {
	d := &s.door
	for {
		d.mu.Lock()
		var part []attempt
		taken := map[tenants.TenantID]int{}
		for t, list := range d.waiting {
			if len(taken) == doorBatch {
				break
			}
			part = append(part, list...)
			taken[t] = len(list)
		}
		d.mu.Unlock()
		if len(part) == 0 {
			return nil
		}
		if err := s.writeAttempts(ctx, part); err != nil {
			return err
		}
		d.mu.Lock()
		for t := range taken {
			d.waiting[t] = slices.DeleteFunc(d.waiting[t], func(a attempt) bool {
				return slices.ContainsFunc(part, func(b attempt) bool { return a.id == b.id })
			})
			if len(d.waiting[t]) == 0 {
				delete(d.waiting, t)
			}
		}
		d.mu.Unlock()
	}
}

func (s *Service) writeAttempts(ctx context.Context, part []attempt) error {
	n := len(part)
	list, tenant, id, at := make([]tenants.TenantID, n), make([][16]byte, n), make([][16]byte, n), make([]time.Time, n)
	texts := make([][]string, 10)
	for i := range texts {
		texts[i] = make([]string, n)
	}
	for i, a := range part {
		list[i], tenant[i], id[i], at[i] = a.Tenant, a.Tenant, a.id, a.At
		for j, v := range []string{a.Reference, string(a.Step), a.Class, a.Surface, a.Issuer, a.Expected, a.Received, a.Principal, a.Client, addr(a.From)} {
			texts[j][i] = v
		}
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	b := &pgx.Batch{}
	b.Queue(sqlAttempts, tenant, id, at, texts[0], texts[1], texts[2], texts[3], texts[4], texts[5], texts[6], texts[7], texts[8], texts[9])
	b.Queue(sqlTrimAttempts, tenant, MaxAttempts)
	return tenantdb.Fault(s.db.WriteAll(ctx, list, b))
}

var referenceForm = regexp.MustCompile(`^[a-z0-9]{16,40}$`)

// ByReference finds the attempt that a reference id belongs to; NotFound when
// there is none of the last 24 hours. It asks for no scope: whoever shows the
// values to a caller checks that it is an administrator of the tenant.
func (s *Service) ByReference(ctx context.Context, t tenants.TenantID, reference string) (tenants.Attempt, error) {
	unknown := fault.New(fault.NotFound, "reference_unknown", "no attempt of the last 24 hours has this reference id").
		Do("copy the id of the header Telltale-Reference again; attempts are kept for 24 hours, the newest 100 of a tenant")
	if t.IsZero() || !referenceForm.MatchString(reference) {
		return tenants.Attempt{}, unknown
	}
	s.door.mu.Lock()
	for _, a := range slices.Backward(s.door.waiting[t]) {
		if a.Reference == reference {
			s.door.mu.Unlock()
			return a.Attempt, nil
		}
	}
	s.door.mu.Unlock()
	a, found, err := tenantdb.QueryOne(ctx, s.db, t, sqlAttemptByReference, []any{t, reference, s.now().Add(-day)}, scanAttempt(t))
	switch {
	case err != nil:
		return tenants.Attempt{}, tenantdb.Fault(err)
	case !found:
		return tenants.Attempt{}, unknown
	}
	return a, nil
}

// Recent lists the last attempts, the newest first: at most 100 of the last 24
// hours. It needs telltale:admin.
func (s *Service) Recent(ctx context.Context, scope tenants.Scope) ([]tenants.Attempt, error) {
	if err := scope.Require(tenants.Admin); err != nil {
		return nil, err
	}
	d := &s.door
	d.mu.Lock()
	waiting := slices.Clone(d.waiting[scope.Tenant])
	d.mu.Unlock()
	list, err := tenantdb.Query(ctx, s.db, scope.Tenant, sqlAttemptsRecent, []any{scope.Tenant, s.now().Add(-day), MaxAttempts}, scanAttempt(scope.Tenant))
	if err != nil {
		return nil, tenantdb.Fault(err)
	}
	for _, a := range waiting { // it may be written by now
		if !slices.ContainsFunc(list, func(b tenants.Attempt) bool {
			return a.Reference == b.Reference && a.Step == b.Step && a.At.Equal(b.At)
		}) {
			list = append(list, a.Attempt)
		}
	}
	slices.SortStableFunc(list, func(a, b tenants.Attempt) int { return b.At.Compare(a.At) })
	return list[:min(len(list), MaxAttempts)], nil
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

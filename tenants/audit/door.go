package audit

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

const (
	maxDoors  = 1000 // tenants whose attempts wait for their write
	maxClaim  = 300  // bytes of what was expected and received
	doorBatch = 50   // tenants of one write
)

// door is the attempts that wait for their write: of each tenant and kind as
// many as are kept, the newest.
type door struct {
	mu               sync.Mutex
	tenants          map[tenants.TenantID]*knocks
	dropped, unknown uint64
}

// knocks is what waits of one tenant, and how many of each kind were dropped
// for want of room.
type knocks struct {
	waiting []attempt
	lost    map[string]int64
}

type attempt struct {
	id   uuid.UUID
	kind kind
	tenants.Attempt
}

func (d *door) init() { d.tenants = map[tenants.TenantID]*knocks{} }

// of is a copy of what waits of a tenant.
func (d *door) of(t tenants.TenantID) ([]attempt, map[string]int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if k := d.tenants[t]; k != nil {
		return slices.Clone(k.waiting), maps.Clone(k.lost)
	}
	return nil, map[string]int64{}
}

// add lets a in, in the place of the oldest of its kind when there are as many
// as are kept.
func (d *door) add(a attempt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.tenants[a.Tenant]
	if k == nil {
		if len(d.tenants) >= maxDoors {
			d.dropped++
			return
		}
		k = &knocks{lost: map[string]int64{}}
		d.tenants[a.Tenant] = k
	}
	alike, oldest := 0, -1
	for i, w := range k.waiting {
		if w.kind != a.kind {
			continue
		}
		if alike++; oldest < 0 {
			oldest = i
		}
	}
	if alike >= a.kind.most {
		d.dropped++
		k.lost[a.kind.name]++
		k.waiting = slices.Delete(k.waiting, oldest, oldest+1)
	}
	k.waiting = append(k.waiting, a)
}

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
		s.note(Entry{Tenant: a.Tenant, At: a.At, Principal: tenants.Principal{Kind: tenants.OAuthPrincipal, ID: a.Principal, Client: a.Client},
			Surface: a.Surface, Action: "connect", Outcome: Refused, Reason: a.Class, Reference: a.Reference, From: a.From})
	}
	s.knock(a)
}

// knock keeps an attempt, cleaned.
func (s *Service) knock(a tenants.Attempt) {
	a.Reference, a.Step, a.Class, a.Surface = clean(a.Reference, maxWord), tenants.AttemptStep(clean(string(a.Step), maxWord)), clean(a.Class, maxWord), clean(a.Surface, maxWord)
	a.Issuer, a.Expected, a.Received = clean(a.Issuer, maxID), clean(a.Expected, maxClaim), clean(a.Received, maxClaim)
	a.Principal, a.Client = clean(a.Principal, maxID), clean(a.Client, maxName)
	s.door.add(attempt{idAt(a.At), kindOf(a), a})
}

// flushDoor writes the attempts and trims what is beyond the bound. What cannot
// be written now waits on, unless newer ones take its place.
func (s *Service) flushDoor(ctx context.Context) error {
	d := &s.door
	for {
		d.mu.Lock()
		var part []attempt
		lost := map[tenants.TenantID]map[string]int64{}
		for t, k := range d.tenants {
			if len(lost) == doorBatch {
				break
			}
			part = append(part, k.waiting...)
			lost[t] = maps.Clone(k.lost)
		}
		d.mu.Unlock()
		if len(part) == 0 {
			return nil
		}
		if err := s.writeAttempts(ctx, part, lost); err != nil {
			return err
		}
		d.mu.Lock()
		for t := range lost {
			k := d.tenants[t]
			k.waiting = slices.DeleteFunc(k.waiting, func(a attempt) bool {
				return slices.ContainsFunc(part, func(b attempt) bool { return a.id == b.id })
			})
			for name, n := range lost[t] {
				k.lost[name] -= n
			}
			if len(k.waiting) == 0 {
				delete(d.tenants, t)
			}
		}
		d.mu.Unlock()
	}
}

func (s *Service) writeAttempts(ctx context.Context, part []attempt, lost map[tenants.TenantID]map[string]int64) error {
	n := len(part)
	list, tenant, id, at := make([]tenants.TenantID, n), make([][16]byte, n), make([][16]byte, n), make([]time.Time, n)
	texts := make([][]string, 11)
	for i := range texts {
		texts[i] = make([]string, n)
	}
	for i, a := range part {
		list[i], tenant[i], id[i], at[i] = a.Tenant, a.Tenant, a.id, a.At
		for j, v := range []string{a.Reference, string(a.Step), a.Class, a.Surface, a.Issuer, a.Expected, a.Received, a.Principal, a.Client, addr(a.From), a.kind.name} {
			texts[j][i] = v
		}
	}
	var bounds, lostKinds []string
	var most []int32
	var lostTenants [][16]byte
	var counts []int64
	for _, k := range kinds {
		bounds, most = append(bounds, k.name), append(most, int32(k.most))
	}
	for t, kinds := range lost {
		for name, n := range kinds {
			if n > 0 {
				lostTenants, lostKinds, counts = append(lostTenants, t), append(lostKinds, name), append(counts, n)
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	b := &pgx.Batch{}
	b.Queue(sqlAttempts, tenant, id, at, texts[0], texts[1], texts[2], texts[3], texts[4], texts[5], texts[6], texts[7], texts[8], texts[9], texts[10])
	b.Queue(sqlTrimAttempts, tenant, bounds, most, lostTenants, lostKinds, counts, s.now().Truncate(time.Hour))
	return tenantdb.Fault(s.db.WriteAll(ctx, list, b))
}

var referenceForm = regexp.MustCompile(`^[a-z0-9]{16,40}$`)

package audit

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

const (
	maxNets    = 64     // networks that one tenant's refusals of one hour are told apart by, a replica
	maxWaiting = 10_000 // folded refusals that wait for their write
	listHours  = 24 * time.Hour
	listRows   = 50
)

// Refusal counts the refusals of one hour that were alike, of callers whom
// nobody verified.
type Refusal struct {
	Hour      time.Time `json:"hour"`
	Surface   string    `json:"surface"`
	Reason    string    `json:"reason"`
	Network   string    `json:"network"` // /24 or /48; empty: many others
	Count     int64     `json:"count"`
	First     time.Time `json:"first_at"`
	Last      time.Time `json:"last_at"`
	Reference string    `json:"reference_id,omitempty"` // of one of them
}

// refusals folds what strangers are refused, so that no flood of them fills a
// table or the memory.
type refusals struct {
	mu      sync.Mutex
	waiting map[refusalKey]*refused
	nets    map[tenants.TenantID]*hourNets
	dropped uint64
}

type refusalKey struct {
	tenant               tenants.TenantID
	hour                 time.Time
	surface, reason, net string
}

type refused struct {
	count       int64
	first, last time.Time
	reference   string
}

type hourNets struct {
	hour time.Time
	seen map[string]struct{}
}

func (r *refusals) init() {
	r.waiting, r.nets = map[refusalKey]*refused{}, map[tenants.TenantID]*hourNets{}
}

func (r *refusals) add(t tenants.TenantID, at time.Time, surface, reason string, from netip.Addr, reference string, n int) {
	at = at.UTC().Truncate(time.Microsecond)
	k := refusalKey{tenant: t, hour: at.Truncate(time.Hour), surface: clean(surface, maxWord), reason: clean(reason, maxWord)}
	r.mu.Lock()
	defer r.mu.Unlock()
	k.net = r.net(t, k.hour, from)
	w := r.waiting[k]
	if w == nil {
		if len(r.waiting) >= maxWaiting {
			r.dropped++
			return
		}
		w = &refused{first: at}
		r.waiting[k] = w
	}
	w.count += int64(n)
	w.last, w.reference = at, clean(reference, maxWord)
}

// net is the caller's network while the tenant has few in this hour.
func (r *refusals) net(t tenants.TenantID, hour time.Time, from netip.Addr) string {
	if !from.IsValid() {
		return ""
	}
	from = from.Unmap().WithZone("")
	bits := 24
	if from.Is6() {
		bits = 48
	}
	p, err := from.Prefix(bits)
	if err != nil {
		return ""
	}
	h := r.nets[t]
	if h == nil && len(r.nets) >= maxWaiting {
		return ""
	}
	if h == nil || !h.hour.Equal(hour) {
		h = &hourNets{hour, map[string]struct{}{}}
		r.nets[t] = h
	}
	text := p.String()
	if _, known := h.seen[text]; !known {
		if len(h.seen) >= maxNets {
			return ""
		}
		h.seen[text] = struct{}{}
	}
	return text
}

// flushRefusals writes what waits; when that fails it is counted as dropped: a
// second write might count the same twice.
func (s *Service) flushRefusals(ctx context.Context) error {
	r := &s.refusals
	r.mu.Lock()
	waiting := r.waiting
	r.waiting = map[refusalKey]*refused{}
	r.mu.Unlock()
	if len(waiting) == 0 {
		return nil
	}
	keys := make([]refusalKey, 0, len(waiting))
	for k := range waiting {
		keys = append(keys, k)
	}
	var err error
	for len(keys) > 0 {
		part := keys[:min(len(keys), maxBatch)]
		keys = keys[len(part):]
		if one := s.writeRefusals(ctx, part, waiting); one != nil {
			err = one
			r.mu.Lock()
			for _, k := range part {
				r.dropped += uint64(waiting[k].count)
			}
			r.mu.Unlock()
		}
	}
	return err
}

func (s *Service) writeRefusals(ctx context.Context, part []refusalKey, waiting map[refusalKey]*refused) error {
	n := len(part)
	list, tenant, hour := make([]tenants.TenantID, n), make([][16]byte, n), make([]time.Time, n)
	surface, reason, net, reference := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	count, first, last := make([]int64, n), make([]time.Time, n), make([]time.Time, n)
	for i, k := range part {
		w := waiting[k]
		list[i], tenant[i], hour[i], surface[i], reason[i], net[i] = k.tenant, k.tenant, k.hour, k.surface, k.reason, k.net
		count[i], first[i], last[i], reference[i] = w.count, w.first, w.last, w.reference
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	b := &pgx.Batch{}
	b.Queue(sqlRefusals, tenant, hour, surface, reason, net, count, first, last, reference)
	return tenantdb.Fault(s.db.WriteAll(ctx, list, b))
}

// Refusals lists what strangers were refused in the last 24 hours, the newest
// first and at most 50. It needs telltale:admin.
func (s *Service) Refusals(ctx context.Context, scope tenants.Scope) ([]Refusal, error) {
	if err := scope.Require(tenants.Admin); err != nil {
		return nil, err
	}
	rows, err := tenantdb.Query(ctx, s.db, scope.Tenant, sqlRefusalList, []any{scope.Tenant, s.now().Add(-listHours), listRows}, func(from pgx.CollectableRow) (r Refusal, err error) {
		err = from.Scan(&r.Hour, &r.Surface, &r.Reason, &r.Network, &r.Count, &r.First, &r.Last, &r.Reference)
		r.Hour, r.First, r.Last = r.Hour.UTC(), r.First.UTC(), r.Last.UTC()
		return r, err
	})
	return rows, tenantdb.Fault(err)
}

package audit

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

// busyEntry is what one call of a tool leaves.
func busyEntry(t tenants.TenantID) Entry {
	return Entry{Tenant: t, Principal: tenants.Principal{Kind: tenants.TokenPrincipal, ID: "01a22b78-a917-7e5b-8697-ae67d0da3a75", Name: "read"}, Surface: "mcp", Action: "metrics_summary",
		Arguments: `{module="network" node="sim-0001"}`, Outcome: OK, Bytes: 9000, Duration: 1234 * time.Microsecond, Reference: "abcdefghij0123456789", From: netip.MustParseAddr("127.0.0.1")}
}

func BenchmarkNote(b *testing.B) {
	s := New(nil, Config{Replica: "replica-1", Queue: 1000}, slog.New(slog.DiscardHandler))
	e := busyEntry(tenants.NewTenantID())
	b.ReportAllocs()
	for b.Loop() {
		s.Note(e)
		if len(s.queue.rows) == maxBatch {
			columnsOf(s.queue.head())
			s.queue.done(maxBatch)
		}
	}
}

func BenchmarkDigest(b *testing.B) {
	s := New(nil, Config{Replica: "replica-1"}, slog.New(slog.DiscardHandler))
	r := s.rowOf(busyEntry(tenants.NewTenantID()))
	b.ReportAllocs()
	for b.Loop() {
		r.digest()
	}
}

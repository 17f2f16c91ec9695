package tenantdb_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

const busTopic = "task.moved"

// replicas starts a bus for each name on one database and waits until all
// listen.
func replicas(t *testing.T, names ...string) (buses []*tenantdb.Bus, inboxes []<-chan tenantdb.Hint, super *pgx.Conn) {
	t.Helper()
	dsn := dbtest.DSN(t)
	for _, n := range names {
		b := tenantdb.NewBus(tenantdb.Config{DSN: dsn}, n, slog.New(slog.DiscardHandler))
		in, stop := b.Subscribe(busTopic)
		t.Cleanup(stop)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		resync(t, in)
		buses, inboxes = append(buses, b), append(inboxes, in)
	}
	return buses, inboxes, dbtest.Connect(t, dsn)
}

func take(t *testing.T, in <-chan tenantdb.Hint) tenantdb.Hint {
	t.Helper()
	select {
	case h := <-in:
		return h
	case <-time.After(20 * time.Second):
		t.Fatal("no hint came")
		return tenantdb.Hint{}
	}
}

// resync waits for the hint that says: look at everything again.
func resync(t *testing.T, in <-chan tenantdb.Hint) {
	t.Helper()
	for take(t, in).Key != "" {
	}
}

func TestBus(t *testing.T) {
	b, in, _ := replicas(t, "r1", "r2", "r 3 with \"quotes\"")
	tenant := tenants.NewTenantID()
	hint := func(key string) tenantdb.Hint { return tenantdb.Hint{Topic: busTopic, Tenant: tenant, Key: key} }

	b[0].Send("r2", hint("for two"))
	b[0].Send("r2", hint("for two")) // equal hints are one, unless the first is on its way
	b[0].Send("r2", tenantdb.Hint{Topic: "another topic", Tenant: tenant, Key: "x"})
	if got := take(t, in[1]); got != hint("for two") {
		t.Error(got)
	}
	b[0].Send("", hint("for all"))
	for i := range in {
		got := take(t, in[i])
		if i == 1 && got == hint("for two") {
			got = take(t, in[i])
		}
		if got != hint("for all") {
			t.Errorf("replica %d: %v", i, got)
		}
	}
	b[1].Send("r 3 with \"quotes\"", hint("odd name"))
	if got := take(t, in[2]); got != hint("odd name") {
		t.Error(got)
	}
	b[0].Send("r1", hint("own")) // needs no database
	if got := <-in[0]; got != hint("own") {
		t.Error(got)
	}
	b[0].Send("r2", hint(strings.Repeat("x", 600)))
	if s := b[0].Stats(); s.Dropped != 1 || !s.Listening || s.Connects != 1 {
		t.Errorf("%+v", s)
	}
}

// Many hints travel in few notifications of bounded size, none is lost.
func TestBusSplitsPayloads(t *testing.T) {
	b, in, _ := replicas(t, "r1", "r2")
	tenant := tenants.NewTenantID()
	want := map[string]bool{}
	for i := range 400 {
		key := fmt.Sprintf("%03d-%s", i, strings.Repeat("\u2028é", 40))
		want[key] = true
		b[0].Send("r2", tenantdb.Hint{Topic: busTopic, Tenant: tenant, Key: key})
	}
	for len(want) > 0 {
		h := take(t, in[1])
		if !want[h.Key] || h.Tenant != tenant {
			t.Fatalf("unexpected %q", h.Key)
		}
		delete(want, h.Key)
	}
	// A hint arrives a moment before its sender counts it.
	for deadline := time.Now().Add(5 * time.Second); b[0].Stats().Sent < 400 && time.Now().Before(deadline); {
		runtime.Gosched()
	}
	if s := b[0].Stats(); s.Dropped != 0 || s.Sent != 400 {
		t.Errorf("%+v", s)
	}
}

// A bus whose connections are killed makes new ones and tells its subscribers
// to look again.
func TestBusReconnects(t *testing.T) {
	b, in, super := replicas(t, "r1", "r2")
	const theirs = ` from pg_stat_activity where datname = current_database() and application_name = 'telltaled bus'`
	var up, killed int
	for deadline := time.Now().Add(20 * time.Second); up < 4; { // the senders connect beside the listeners
		if err := super.QueryRow(t.Context(), `select count(*)`+theirs).Scan(&up); err != nil || time.Now().After(deadline) {
			t.Fatal(up, err)
		}
	}
	if err := super.QueryRow(t.Context(), `select count(pg_terminate_backend(pid))`+theirs).Scan(&killed); err != nil || killed != 4 {
		t.Fatal(killed, err)
	}
	resync(t, in[0])
	resync(t, in[1])
	// The sending connection learns of its death by its next batch, which is
	// lost and counted.
	tenant := tenants.NewTenantID()
	deadline := time.Now().Add(20 * time.Second)
	for i := 0; ; i++ {
		b[0].Send("r2", tenantdb.Hint{Topic: busTopic, Tenant: tenant, Key: fmt.Sprint(i)})
		select {
		case h := <-in[1]:
			if h.Tenant != tenant || h.Key == "" {
				continue
			}
		case <-time.After(50 * time.Millisecond):
			if time.Now().After(deadline) {
				t.Fatal("no hint came after the reconnect")
			}
			continue
		}
		break
	}
	if s := b[1].Stats(); s.Connects < 2 {
		t.Errorf("%+v", s)
	}
}

// Without a database nothing blocks; what finds no room is counted.
func TestBusIsBounded(t *testing.T) {
	b := tenantdb.NewBus(tenantdb.Config{DSN: "host=/nonexistent"}, "r1", slog.New(slog.DiscardHandler))
	in, stop := b.Subscribe(busTopic)
	for i := range 10_100 {
		b.Send("r2", tenantdb.Hint{Topic: busTopic, Key: fmt.Sprint(i)})
	}
	if s := b.Stats(); s.Dropped != 100 {
		t.Errorf("%+v", s)
	}
	for i := range 600 {
		b.Send("r1", tenantdb.Hint{Topic: busTopic, Key: fmt.Sprint(i)})
	}
	if s := b.Stats(); s.Overflowed != 88 || len(in) != 512 {
		t.Errorf("%+v, %d wait", s, len(in))
	}
	stop()
	b.Send("r1", tenantdb.Hint{Topic: busTopic})
	if len(in) != 512 {
		t.Error("a hint after the end of the subscription")
	}
}

package tenantdb_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

const (
	insertSecret = `insert into secret (tenant_id, ts, id, word) values ($1, '2026-01-01T13:00Z', $2, 'written')`
	writtenIDs   = `select id from secret where word = 'written' order by id`
)

func written(t *testing.T, db *tenantdb.DB, tenant tenants.TenantID) []string {
	t.Helper()
	ids, err := tenantdb.Query(t.Context(), db, tenant, writtenIDs, nil, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// A write that need not be on disk at once is seen by everybody, inside its
// tenant, and leaves the connection as it was.
func TestWriteSoon(t *testing.T) {
	w := newWorld(t)
	db := dbtest.Open(t, tenantdb.Config{DSN: w.dsn, AppConns: 1})
	soon := func(tenant tenants.TenantID, owner tenants.TenantID, id string) error {
		b := &pgx.Batch{}
		b.Queue(insertSecret, owner.String(), id)
		return db.WriteSoon(t.Context(), tenant, b)
	}
	before, _, err := tenantdb.QueryOne(t.Context(), db, w.a, `show synchronous_commit`, nil, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if err := soon(w.a, w.a, "p"); err != nil {
		t.Fatal(err)
	}
	if err := soon(w.a, w.b, "q"); !fault.Is(err, fault.Internal) {
		t.Errorf("into another tenant: %v", err)
	}
	if err := soon(tenants.TenantID{}, w.a, "r"); !fault.Is(err, fault.Internal) {
		t.Errorf("without a tenant: %v", err)
	}
	if diff := cmp.Diff([]string{"p"}, written(t, db, w.a)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{}, written(t, db, w.b)); diff != "" {
		t.Error(diff)
	}
	after, _, err := tenantdb.QueryOne(t.Context(), db, w.a, `show synchronous_commit`, nil, pgx.RowTo[string])
	if err != nil || after != before {
		t.Errorf("synchronous_commit was %s and is %s, %v", before, after, err)
	}
}

func TestWrites(t *testing.T) {
	for name, pooler := range map[string]bool{"direct": false, "through a pooler": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			super := dbtest.Connect(t, w.dsn)
			must(t, super, `set role telltale_owner; create table late (tenant_id uuid, id text, other text,
				primary key (tenant_id, id), foreign key (tenant_id, other) references late deferrable initially deferred); select telltale_protect('late')`)
			db := dbtest.Open(t, tenantdb.Config{DSN: w.dsn, Pooler: pooler})
			write := func(tenant tenants.TenantID, sql string, args ...[]any) (rows int64, err error) {
				b := &pgx.Batch{}
				for _, a := range args {
					b.Queue(sql, a...).Exec(func(tag pgconn.CommandTag) error { rows += tag.RowsAffected(); return nil })
				}
				return rows, db.Write(t.Context(), tenant, b)
			}
			for i, id := range []string{"p", "q", "r"} { // the later ones find their statements prepared
				if n, err := write(w.a, insertSecret, []any{w.a.String(), id}); err != nil || n != 1 {
					t.Errorf("write %d: %d, %v", i, n, err)
				}
			}
			if _, err := write(w.a, insertSecret, []any{w.b.String(), "x"}); !fault.Is(err, fault.Internal) {
				t.Errorf("into another tenant: %v", err)
			}
			// The second one fails, and the first goes with it.
			if _, err := write(w.b, insertSecret, []any{w.b.String(), "y"}, []any{w.b.String(), "y"}); !fault.Is(err, fault.Conflict) {
				t.Errorf("a duplicate: %v", err)
			}
			// What only the commit refuses is told, too.
			if _, err := write(w.a, `insert into late values ($1, $2, $3)`, []any{w.a.String(), "1", "none"}); !fault.Is(err, fault.Conflict) {
				t.Errorf("refused by the commit: %v", err)
			}
			if _, err := write(tenants.TenantID{}, insertSecret); !fault.Is(err, fault.Internal) {
				t.Errorf("without a tenant: %v", err)
			}
			if diff := cmp.Diff([]string{"p", "q", "r"}, written(t, db, w.a)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff([]string{}, written(t, db, w.b)); diff != "" {
				t.Error(diff)
			}

			both := &pgx.Batch{}
			both.Queue(`update secret set word = 'written' where id = '0'`)
			if err := db.WriteAll(t.Context(), []tenants.TenantID{w.b, w.a, w.b}, both); err != nil {
				t.Error(err)
			}
			if a, b := written(t, db, w.a), written(t, db, w.b); len(a) != 4 || len(b) != 1 {
				t.Errorf("in both: %v, %v", a, b)
			}
			one := &pgx.Batch{}
			one.Queue(`update secret set word = 'written' where id = '1'`)
			if err := db.WriteAll(t.Context(), []tenants.TenantID{w.b}, one); err != nil {
				t.Error(err)
			}
			if a, b := written(t, db, w.a), written(t, db, w.b); len(a) != 4 || len(b) != 2 {
				t.Errorf("in one: %v, %v", a, b)
			}
			for _, list := range [][]tenants.TenantID{nil, {w.a, {}}} {
				if err := db.WriteAll(t.Context(), list, one); !fault.Is(err, fault.Internal) {
					t.Errorf("list %v: %v", list, err)
				}
			}
			// A setting ends with its batch.
			err := db.InTenant(t.Context(), w.a, func(ctx context.Context, tx pgx.Tx) error {
				_, owners, err := count(ctx, tx)
				if owners != 1 {
					t.Errorf("%d owners", owners)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
			own := errors.New("callback")
			b := &pgx.Batch{}
			b.Queue(`select 1`).Query(func(pgx.Rows) error { return own })
			if err := db.Write(t.Context(), w.a, b); !errors.Is(err, own) {
				t.Errorf("a callback's error: %v", err)
			}
			if got := written(t, db, w.a); len(got) != 4 {
				t.Errorf("afterwards: %v", got)
			}
		})
	}
}

// A server that stopped meanwhile has broken the pools' connections: nobody
// sees it, and a write happens once.
func TestBrokenConnectionsAreNotHandedOut(t *testing.T) {
	w := newWorld(t)
	db := w.open(t)
	admin := dbtest.Connect(t, w.dsn)
	for i, id := range []string{"a", "b", "c"} {
		write := func(one bool) error {
			b := &pgx.Batch{}
			if one {
				b.Queue(insertSecret, w.a.String(), id)
				return db.Write(t.Context(), w.a, b)
			}
			b.Queue(`update secret set word = word || '.' where id = '1'`)
			return db.WriteAll(t.Context(), []tenants.TenantID{w.a, w.b}, b)
		}
		for _, one := range []bool{true, false} {
			if err := write(one); err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
		}
		if got := written(t, db, w.a); len(got) != i+1 {
			t.Errorf("round %d: %v", i, got)
		}
		must(t, admin, `select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = current_database() and usename like 'telltale%'`)
	}
	words, err := tenantdb.Query(t.Context(), db, w.b, `select word from secret where id = '1'`, nil, pgx.RowTo[string])
	if diff := cmp.Diff([]string{"of " + w.b.String() + "..."}, words); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

// The driver may leave a read under way on an idle connection; a look at it
// does not wait for that.
func TestALookDoesNotWait(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	read := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(conn, make([]byte, 2))
		read <- err
	}()
	if _, err := peer.Write([]byte{1}); err != nil { // the reader is at work, or soon
		t.Fatal(err)
	}
	looked := make(chan struct{})
	go func() {
		for range 1000 {
			tenantdb.Silent(conn)
		}
		close(looked)
	}()
	select {
	case <-looked:
	case <-time.After(10 * time.Second):
		t.Fatal("a look waits for a read")
	}
	if _, err := peer.Write([]byte{2}); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	if !tenantdb.Silent(conn) {
		t.Error("nothing is to be read")
	}
	if err := peer.Close(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); tenantdb.Silent(conn); {
		if time.Now().After(end) {
			t.Fatal("the end is not seen")
		}
	}
	if one, _ := net.Pipe(); tenantdb.Silent(one) {
		t.Error("what cannot be looked at is not to be trusted")
	}
}

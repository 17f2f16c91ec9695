package dbtest_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

func TestDatabasesAreApart(t *testing.T) {
	one, two := dbtest.DSN(t), dbtest.DSN(t)
	conn := dbtest.Connect(t, one)
	if _, err := conn.Exec(t.Context(), `insert into credential values ('kind', 'lookup_id', $1)`, tenants.NewTenantID().String()); err != nil {
		t.Fatal(err)
	}
	for dsn, want := range map[string]int{one: 1, two: 0} {
		var got int
		if err := dbtest.Connect(t, dsn).QueryRow(t.Context(), `select count(*) from credential`).Scan(&got); err != nil || got != want {
			t.Errorf("%d rows, %v; want %d", got, err, want)
		}
	}
}

func TestDatabaseEndsWithItsTest(t *testing.T) {
	var name string
	t.Run("inner", func(t *testing.T) {
		t.Parallel()
		db := dbtest.New(t)
		err := db.InTenant(t.Context(), tenants.NewTenantID(), func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, `select current_database()`).Scan(&name)
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() {
		var there bool
		if err := dbtest.Connect(t, dbtest.DSN(t)).QueryRow(context.Background(), `select exists (select from pg_database where datname = $1)`, name).Scan(&there); err != nil || there {
			t.Errorf("database %q is left: %v", name, err)
		}
	})
}

func TestHaltAndResume(t *testing.T) {
	srv := dbtest.NewServer(t, map[string]string{"max_connections": "20"})
	dsn := srv.Database()
	db := dbtest.Open(t, tenantdb.Config{DSN: dsn})
	srv.Halt()
	if err := db.Ping(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("halted: %v", err)
	}
	srv.Resume()
	if err := db.Ping(t.Context()); err != nil {
		t.Errorf("resumed: %v", err)
	}
}

// childEnv makes TestChild hold its server until its input ends.
const childEnv = "DBTEST_CHILD"

func TestChild(t *testing.T) {
	if os.Getenv(childEnv) == "" {
		return // only as a part of TestNothingIsLeft
	}
	var data string
	if err := dbtest.Connect(t, dbtest.DSN(t)).QueryRow(t.Context(), `show data_directory`).Scan(&data); err != nil {
		t.Fatal(err)
	}
	fmt.Println("data " + data)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// However a test binary ends, its server and its directory go with it.
func TestNothingIsLeft(t *testing.T) {
	for name, end := range map[string]func(*exec.Cmd, io.Closer) error{
		"killed": func(c *exec.Cmd, _ io.Closer) error { return c.Process.Kill() },
		"done":   func(_ *exec.Cmd, in io.Closer) error { return in.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestChild$", "-test.v")
			cmd.Env = append(os.Environ(), childEnv+"=1")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var data string
			for lines := bufio.NewScanner(out); data == "" && lines.Scan(); {
				data, _ = strings.CutPrefix(lines.Text(), "data ")
				if data == lines.Text() {
					data = ""
				}
			}
			if data == "" {
				t.Fatal("the child did not start a server")
			}
			pid := firstLine(t, filepath.Join(data, "postmaster.pid"))
			if err := end(cmd, in); err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, out)
			_ = cmd.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for exists(filepath.Dir(data)) || running(pid) {
				select {
				case <-ctx.Done():
					t.Fatalf("left: %s or process %s", filepath.Dir(data), pid)
				case <-tick.C:
				}
			}
		})
	}
}

func firstLine(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	return line
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// running tells a process from one that only waits to be counted by its parent.
func running(pid string) bool {
	raw, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(raw), ") Z ")
}

func BenchmarkDatabase(b *testing.B) {
	for b.Loop() {
		dbtest.DSN(b)
	}
}

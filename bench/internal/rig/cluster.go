package rig

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants/tenantdb/localpg"
)

// Cluster is a database of its own, with PostgreSQL's ordinary safety, and
// `telltaled serve` processes on it.
type Cluster struct {
	Dir     string // holds everything, removed by Stop
	CAFile  string
	Servers []*Replica

	bin      string
	dsn      string
	tls      auth.LocalTLS
	database *localpg.Server
	ports    ports
	children []*Child // what Stop ends, the youngest first
}

// Replica is one server of a cluster.
type Replica struct {
	*Child
	URL  string // REST, MCP
	GRPC string // agents
	Mgmt string // its own metrics and profiles
}

// StartCluster starts the database and n servers. The caller calls Stop.
func StartCluster(ctx context.Context, bin string, n int) (c *Cluster, err error) {
	dir, err := os.MkdirTemp("", "ttbench")
	if err != nil {
		return nil, err
	}
	c = &Cluster{Dir: dir, bin: bin}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	if err := os.Chmod(dir, 0o755); err != nil { // the database's user passes through
		return nil, err
	}
	if c.tls, err = auth.EnsureLocalTLS(filepath.Join(dir, "tls"), []string{"127.0.0.1"}); err != nil {
		return nil, err
	}
	c.CAFile = c.tls.CAFile
	if c.database, err = localpg.Start(ctx, localpg.Config{Dir: filepath.Join(dir, "postgres"), Log: slog.New(slog.DiscardHandler)}); err != nil {
		return nil, err
	}
	if err := c.database.CreateDatabase(ctx, "telltale"); err != nil {
		return nil, err
	}
	c.dsn = c.database.DSN("telltale")
	for range n {
		if err := c.addServer(ctx); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *Cluster) addServer(ctx context.Context) error {
	var at [3]string
	for i := range at {
		var err error
		if at[i], err = c.ports.free(); err != nil {
			return err
		}
	}
	child, err := c.spawn([]string{"TELLTALE_DATABASE=" + c.dsn}, "telltaled", "serve", "--migrate", "--http", at[0], "--grpc", at[1], "--mgmt", at[2],
		"--grpc-cert", c.tls.CertFile, "--grpc-key", c.tls.KeyFile, "--key-file", filepath.Join(c.Dir, "sealing.key"), "--log-level", "warn")
	if err != nil {
		return err
	}
	r := &Replica{Child: child, URL: "http://" + at[0], GRPC: at[1], Mgmt: "http://" + at[2]}
	c.Servers = append(c.Servers, r)
	err = r.Await(ctx, startTimeout, func() bool {
		resp, err := http.Get(r.URL + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	if err != nil {
		return fmt.Errorf("the server did not become ready: %w; its output: %s", err, r.Output())
	}
	return nil
}

func (c *Cluster) spawn(env []string, program string, args ...string) (*Child, error) {
	child, err := Spawn(env, filepath.Join(c.bin, program), args...)
	if err == nil {
		c.children = append(c.children, child)
	}
	return child, err
}

// Admin runs a command of telltaled against the database.
func (c *Cluster) Admin(ctx context.Context, args ...string) (string, error) {
	return admin(ctx, c.bin, c.dsn, args...)
}

// AddTenant makes a tenant and an operator token that may read and diagnose.
// Its URLs are those of the first server; At moves them.
func (c *Cluster) AddTenant(ctx context.Context, slug string) (Tenant, error) {
	if _, err := c.Admin(ctx, "tenant", "create", slug); err != nil {
		return Tenant{}, err
	}
	token, err := c.Admin(ctx, "token", "create", "--tenant", slug, "--name", "bench", "--scopes", "read,diagnose")
	if err != nil {
		return Tenant{}, err
	}
	t := Tenant{Slug: slug, Tokens: map[string]string{"read": token, "diagnose": token}}
	return t.At(c.Servers[0]), nil
}

// At is the tenant at a server.
func (t Tenant) At(r *Replica) Tenant {
	t.RESTURL, t.MCPURL = r.URL+"/t/"+t.Slug+"/api/v1", r.URL+"/t/"+t.Slug+"/mcp"
	return t
}

// Agent starts `telltale-agent COMMAND` against a server, with an enrolment
// token for n nodes of the tenant.
func (c *Cluster) Agent(ctx context.Context, r *Replica, t Tenant, n int, command string, args ...string) (*Child, error) {
	token, err := c.Admin(ctx, "enrol-token", "create", "--tenant", t.Slug, "--uses", strconv.Itoa(n))
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(c.Dir, "agents", t.Slug+"-"+command+"-"+strconv.Itoa(len(c.children)))
	return c.spawn([]string{"TELLTALE_ENROL_TOKEN=" + token}, "telltale-agent", append([]string{command, "--server", r.GRPC, "--ca", c.CAFile, "--dir", dir}, args...)...)
}

// Stop ends everything, agents before servers, and removes the directory.
func (c *Cluster) Stop() error {
	var errs []error
	for i := len(c.children) - 1; i >= 0; i-- {
		errs = append(errs, c.children[i].Stop())
	}
	if c.database != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		errs = append(errs, c.database.Stop(ctx))
	}
	return errors.Join(append(errs, os.RemoveAll(c.Dir))...)
}

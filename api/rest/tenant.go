package rest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/directory"
)

// exportTimeout bounds one export, the time to receive it included.
const exportTimeout = 11 * time.Minute

// Lifecycle reads, suspends, exports and deletes the caller's own tenant.
type Lifecycle interface {
	Tenant(ctx context.Context, scope tenants.Scope) (tenants.Tenant, error)
	Suspend(ctx context.Context, scope tenants.Scope, suspended bool) (tenants.Tenant, error)
	Export(ctx context.Context, scope tenants.Scope, w io.Writer) (directory.ExportEnd, error)
	Delete(ctx context.Context, scope tenants.Scope, confirm string, without bool) error
}

// tenantView is a tenant as its administrators see it.
type tenantView struct {
	Tenant      string     `json:"tenant"`
	Name        string     `json:"name"`
	Suspended   bool       `json:"suspended"`
	SuspendedBy string     `json:"suspended_by,omitempty"` // "operator" or "admin"
	MCP         bool       `json:"mcp"`                    // its MCP endpoint is on
	CreatedAt   time.Time  `json:"created_at"`
	ExportedAt  *time.Time `json:"exported_at"` // null: no whole export yet
}

func viewTenant(t tenants.Tenant) tenantView {
	return tenantView{t.Slug, t.Name, t.Suspended, t.SuspendedBy, !t.MCPDisabled, t.CreatedAt, t.ExportedAt}
}

func (s *Server) getTenant(c *call) (any, error) {
	if err := c.query.done(); err != nil {
		return nil, err
	}
	t, err := s.cfg.Lifecycle.Tenant(c.r.Context(), c.scope)
	if err != nil {
		return nil, err
	}
	return viewTenant(t), nil
}

type tenantRequest struct {
	Suspended *bool `json:"suspended" audit:"value"`
}

func (s *Server) setTenant(c *call) (any, error) {
	if err := c.query.done(); err != nil {
		return nil, err
	}
	var in tenantRequest
	if err := s.decode(c.w, c.r, &in); err != nil {
		return nil, err
	}
	if in.Suspended == nil {
		return nil, badBody("suspended", "want true or false")
	}
	t, err := s.cfg.Lifecycle.Suspend(c.r.Context(), c.scope, *in.Suspended)
	if err != nil {
		return nil, err
	}
	return viewTenant(t), nil
}

type deletedTenant struct {
	Tenant  string `json:"tenant"`
	Deleted bool   `json:"deleted"`
	Note    string `json:"note"`
}

func (s *Server) deleteTenant(c *call) (any, error) {
	confirm, without := c.query.text("confirm"), c.query.oneOf("without_export", "false", "true") == "true"
	if err := c.query.done(); err != nil {
		return nil, err
	}
	if err := s.cfg.Lifecycle.Delete(c.r.Context(), c.scope, confirm, without); err != nil {
		return nil, err
	}
	return deletedTenant{c.scope.Slug, true, "no credential of this tenant is accepted any more; its rows are erased within a minute, its audit when it ages out, and its slug stays taken"}, nil
}

// exportTenant sends the rows as they are read. What fails before the first
// byte is answered as everywhere else; later the connection is cut, and the
// last line, which says how many rows there are, is missing.
func (s *Server) exportTenant(w http.ResponseWriter, r *http.Request) {
	scope, _ := auth.ScopeFrom(r.Context())
	if err := parseParams(r.URL.RawQuery).done(); err != nil {
		s.fail(w, r, err)
		return
	}
	out := &exportBody{w: w, slug: scope.Slug, looked: time.Now(), allowed: func() bool { return s.stillAllowed(r, tenants.Admin) }}
	if _, err := s.cfg.Lifecycle.Export(r.Context(), scope, out); err != nil {
		if !out.begun {
			s.fail(w, r, err)
			return
		}
		callOf(r.Context()).err = err
		panic(http.ErrAbortHandler)
	}
}

// exportWrite is how long a reader may take for one piece of an export: one
// that takes nothing must not hold a connection of the database.
const exportWrite = time.Minute

var errExportEnds = errors.New("the caller may not export any more")

// exportBody sets the headers with the first byte, and ends with the
// credential that it is made for.
type exportBody struct {
	w       http.ResponseWriter
	slug    string
	begun   bool
	looked  time.Time
	allowed func() bool
}

func (e *exportBody) Write(b []byte) (int, error) {
	if time.Since(e.looked) >= streamRecheck {
		if !e.allowed() {
			return 0, errExportEnds
		}
		e.looked = time.Now()
		e.within(exportWrite)
	}
	if !e.begun {
		e.begun = true
		e.within(exportWrite)
		e.w.Header().Set("Content-Type", "application/x-ndjson")
		e.w.Header().Set("Content-Disposition", `attachment; filename="`+e.slug+`.ndjson"`)
	}
	return e.w.Write(b)
}

func (e *exportBody) within(limit time.Duration) {
	_ = http.NewResponseController(e.w).SetWriteDeadline(time.Now().Add(limit)) // a recorder in a test has none
}

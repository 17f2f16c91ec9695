package fleet

import (
	"context"

	"github.com/telltale-dev/telltale/tenants"
)

// Overview sums up every node in scope. It needs telltale:read.
func (s *Service) Overview(ctx context.Context, scope tenants.Scope) (Overview, error) {
	return Overview{}, nil
}

// List answers one page of nodes. It needs telltale:read.
func (s *Service) List(ctx context.Context, scope tenants.Scope, q ListQuery) (Page, error) {
	return Page{}, nil
}

// Get answers everything about one node, addressed by id or unique name. It
// needs telltale:read. A name that several nodes in scope bear is Invalid with
// reason "ambiguous_name" and names the candidates.
func (s *Service) Get(ctx context.Context, scope tenants.Scope, ref string) (NodeDetail, error) {
	return NodeDetail{}, nil
}

// Capabilities answers what one node can measure now. It needs telltale:read.
func (s *Service) Capabilities(ctx context.Context, scope tenants.Scope, ref string) (NodeCapabilities, error) {
	return NodeCapabilities{}, nil
}

// SetModules makes off the whole list of modules that are switched off for a
// node from the server; an empty list lifts all remote switches. It can never
// switch on what the node's own configuration has off. It needs telltale:admin.
func (s *Service) SetModules(ctx context.Context, scope tenants.Scope, ref string, off []string) ([]ModuleOff, error) {
	return nil, nil
}

package rest

import (
	"net/url"

	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/fleet"
)

// maxModules bounds the list of one switch.
const maxModules = 32

func (s *Server) overview(c *call) (any, error) {
	if err := c.query.done(); err != nil {
		return nil, err
	}
	return s.cfg.Fleet.Overview(c.r.Context(), c.scope)
}

func (s *Server) listNodes(c *call) (any, error) {
	q := fleet.ListQuery{
		Status: statuses(c.query),
		Labels: c.query.labels("labels"),
		Search: c.query.text("search"),
		Limit:  c.query.limit(),
		Cursor: c.query.cursor(),
	}
	if err := c.query.done(); err != nil {
		return nil, err
	}
	page, err := s.cfg.Nodes.List(c.r.Context(), c.scope, q)
	page.Notes = append(c.query.notes, page.Notes...)
	return page, err
}

func statuses(p *params) (out []fleet.Status) {
	known := make([]string, 0, 8)
	for _, st := range fleet.Statuses() {
		known = append(known, string(st))
	}
	for _, w := range p.words("status") {
		p.member("status", w, known)
		out = append(out, fleet.Status(w))
	}
	return out
}

func (s *Server) getNode(c *call) (any, error) {
	ref, err := nodeRef(c)
	if err != nil {
		return nil, err
	}
	return s.cfg.Nodes.Get(c.r.Context(), c.scope, ref)
}

func (s *Server) capabilities(c *call) (any, error) {
	ref, err := nodeRef(c)
	if err != nil {
		return nil, err
	}
	return s.cfg.Nodes.Capabilities(c.r.Context(), c.scope, ref)
}

type modulesRequest struct {
	Off *[]string `json:"off"`
}

type modulesAnswer struct {
	ModulesOff []fleet.ModuleOff `json:"modules_off"`
}

func (s *Server) setModules(c *call) (any, error) {
	ref, err := nodeRef(c)
	if err != nil {
		return nil, err
	}
	var in modulesRequest
	if err := s.decode(c.w, c.r, &in); err != nil {
		return nil, err
	}
	switch {
	case in.Off == nil:
		return nil, badBody("off", "the list of modules to switch off is missing; an empty list lifts all switches")
	case len(*in.Off) > maxModules:
		return nil, badBody("off", "the list has %d modules, at most %d are read", len(*in.Off), maxModules)
	}
	off, err := s.cfg.Fleet.SetModules(c.r.Context(), c.scope, ref, *in.Off)
	if off == nil {
		off = []fleet.ModuleOff{}
	}
	return modulesAnswer{off}, err
}

// nodeRef reads the path's node and refuses any query parameter.
func nodeRef(c *call) (string, error) {
	if err := c.query.done(); err != nil {
		return "", err
	}
	ref := c.r.PathValue("node")
	if c.r.URL.RawPath != "" { // the router matched the escaped path
		plain, err := url.PathUnescape(ref)
		if err != nil {
			return "", fault.Bad("node", "the node's name is escaped wrongly")
		}
		ref = plain
	}
	if err := checkText("node", ref); err != nil {
		return "", err
	}
	return ref, nil
}

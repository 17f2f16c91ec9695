package tasks

import (
	"github.com/telltale-dev/telltale/tenants"
)

// Which node a request means, before the database is asked: a guess that the
// start itself proves, in the statement that stores the task. It saves a round
// trip when it is right and costs one when it is wrong.

// channel answers the open channel of a node, nil when this replica has none.
func (s *Service) channel(k nodeKey) *Channel {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.channels[k]; c != nil && c.ready {
		return c
	}
	return nil
}

// guess answers the node that ref should mean, if its channel is open here and
// a task was meant for it before.
func (s *Service) guess(tenant tenants.TenantID, ref string) (t target, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.byName[nodeName{tenant, ref}]
	if id, err := tenants.ParseNodeID(ref); c == nil && err == nil {
		c = s.channels[nodeKey{tenant, id}]
	}
	if c == nil || !c.ready || c.name == "" || s.channels[c.key] != c {
		return target{}, false
	}
	return target{tenants.Target{Node: c.key.node, Name: c.name, Replica: s.replica}, c}, true
}

// named notes what a channel's node is called.
func (s *Service) named(c *Channel, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.channels[c.key] != c {
		return
	}
	s.unname(c)
	c.name = name
	s.byName[nodeName{c.key.tenant, name}] = c
}

// unname forgets it. s.mu is held.
func (s *Service) unname(c *Channel) {
	if k := (nodeName{c.key.tenant, c.name}); s.byName[k] == c {
		delete(s.byName, k)
	}
	c.name = ""
}

package cgroups

import (
	"sync"
	"time"
)

// Names turns ids into paths. It keeps what one walk over a hierarchy found
// and walks again, at most once in walkEvery, for an id that it does not
// know. Safe for concurrent use.
type Names struct {
	sys string

	mu    sync.Mutex
	trees map[string]*names // by controller; "" is version 2
}

type names struct {
	paths map[uint64]string
	at    time.Time
}

// walkEvery is the least time between two walks over one hierarchy.
const walkEvery = time.Second

// NewNames reads below sys, "" for /sys. It looks at nothing yet.
func NewNames(sys string) *Names {
	return &Names{sys: or(sys, "/sys"), trees: map[string]*names{}}
}

// Name returns the path of a group of the version 2 hierarchy, or "" when it
// is not known: gone, or outside of what this process sees.
func (n *Names) Name(id uint64) string { return n.V1("", id) }

// V1 returns the path of a group in the version 1 hierarchy of a controller,
// or "".
func (n *Names) V1(controller string, id uint64) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.trees[controller]
	if t == nil {
		t = &names{}
		n.trees[controller] = t
	}
	if p, ok := t.paths[id]; ok {
		return p
	}
	if now := time.Now(); now.Sub(t.at) >= walkEvery {
		t.at = now
		t.paths = map[uint64]string{} // an inode may have been used again
		for _, h := range hierarchies(n.sys) {
			if h.has(controller) {
				walk(h.root, maxDirs, func(at string, ino uint64) bool { t.paths[ino] = show(at); return true })
				break
			}
		}
	}
	return t.paths[id]
}

// has tells whether a hierarchy has a controller; "" is version 2.
func (h hierarchy) has(controller string) bool {
	if controller == "" {
		return h.controllers == nil
	}
	for _, c := range h.controllers {
		if c == controller {
			return true
		}
	}
	return false
}

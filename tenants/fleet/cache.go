package fleet

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

// An overview of many thousand nodes costs tens of milliseconds, and every
// open dashboard asks for it every few seconds. One of a large fleet is
// therefore answered again for overviewLife; its At says how old it is. Small
// fleets are always read.
const (
	overviewLife = 2 * time.Second
	largeFleet   = 2000 // nodes in scope
	maxOverviews = 256
)

// overviews keeps the latest overviews of large fleets by tenant and selector.
type overviews struct {
	mu sync.Mutex
	m  map[string]Overview
}

// overviewKey names what a scope can see: two principals with one key see the
// same nodes.
func overviewKey(scope tenants.Scope) string {
	var b strings.Builder
	b.WriteString(scope.Tenant.String())
	keys := make([]string, 0, len(scope.Nodes.Labels))
	for k := range scope.Nodes.Labels {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys { // lengths keep apart what separators could not
		for _, s := range []string{k, scope.Nodes.Labels[k]} {
			b.WriteString("\x00" + strconv.Itoa(len(s)) + ":" + s)
		}
	}
	ids := make([]string, len(scope.Nodes.IDs))
	for i, id := range scope.Nodes.IDs {
		ids[i] = id.String()
	}
	slices.Sort(ids)
	return b.String() + "\x01" + strings.Join(ids, ",")
}

func (c *overviews) get(key string, now time.Time) (Overview, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.m[key]
	return o, ok && now.Sub(o.At).Abs() < overviewLife
}

// large reports whether the last overview of the key was one of a large fleet.
func (c *overviews) large(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.m[key]
	return ok
}

func (c *overviews) put(key string, o Overview) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.Nodes < largeFleet {
		delete(c.m, key)
		return
	}
	for old := range c.m {
		if len(c.m) < maxOverviews {
			break
		}
		delete(c.m, old)
	}
	if c.m == nil {
		c.m = map[string]Overview{}
	}
	c.m[key] = o
}

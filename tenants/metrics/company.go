package metrics

import (
	"fmt"
	"sync"

	"github.com/telltale-dev/telltale/tenants"
)

const (
	maxCompany   = 50   // nodes of a question that are remembered
	maxCompanies = 1024 // questions that are remembered
)

// companies remembers which few nodes a question was about the last time, by
// tenant, selector and what was asked. It decides nothing: each question lists
// its nodes anew, and only saves itself a second round trip when the memory was
// right.
type companies struct {
	mu sync.Mutex
	m  map[string][][16]byte
}

func companyKey(scope tenants.Scope, ref string, labels map[string]string) string {
	return fmt.Sprintf("%s %q %q %v %q", scope.Tenant, ref, labels, scope.Nodes.IDs, scope.Nodes.Labels)
}

func (c *companies) get(key string) [][16]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.m[key]
}

// put remembers ids, which nobody may change any more.
func (c *companies) put(key string, ids [][16]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(ids) == 0 || len(ids) > maxCompany {
		delete(c.m, key)
		return
	}
	for old := range c.m {
		if len(c.m) < maxCompanies {
			break
		}
		delete(c.m, old)
	}
	if c.m == nil {
		c.m = map[string][][16]byte{}
	}
	c.m[key] = ids
}

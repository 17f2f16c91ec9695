package metrics

import (
	"strconv"
	"sync"
	"testing"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// Many nodes of a tenant bring one new layout at the same moment, as after a
// new release: each is taken, none is refused for the others' sake.
func TestManyBringOneLayoutAtOnce(t *testing.T) {
	w := newWorld(t)
	node := w.node(w.a, "web-1")
	for round := range 20 {
		l := inspector.NewLayout("network", []inspector.Series{{Metric: "network.tcp_closes", Kind: inspector.Delta, Unit: inspector.Count, Labels: []inspector.Label{{Key: "round", Value: strconv.Itoa(round)}}}})
		encoded := l.AppendBinary(nil)
		var bring sync.WaitGroup
		for range 8 {
			// A service of its own is a replica of its own: nothing is cached.
			s := w.service()
			bring.Go(func() {
				if _, err := s.PutLayout(t.Context(), node, encoded); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		bring.Wait()
	}
}

package ingest

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// Bounds of results on their way in. An agent sends one after the other.
const (
	maxChunk      = 64 << 10
	maxAssembly   = 4
	maxAssembling = 128 << 20 // bytes over all channels of a server
)

// assembly puts the results of one channel together from their chunks. Not
// safe for concurrent use.
type assembly struct {
	held *atomic.Int64 // bytes held by all assemblies of the server
	open []part
}

type part struct {
	id   tasks.ID
	next uint32
	data []byte
}

// add takes one chunk. With the last one of a task, whole is true and data the
// result; a chunk out of order or over a bound is an error.
func (a *assembly) add(id tasks.ID, c *pb.TaskChunk) (data []byte, whole bool, err error) {
	i := slices.IndexFunc(a.open, func(p part) bool { return p.id == id })
	if i < 0 {
		if c.Index == 0 && c.Last && len(c.Data) <= maxChunk {
			return c.Data, true, nil
		}
		if len(a.open) >= maxAssembly {
			return nil, false, errProtocol(fmt.Sprintf("results of more than %d tasks at once", maxAssembly))
		}
		a.open = append(a.open, part{id: id})
		i = len(a.open) - 1
	}
	p := &a.open[i]
	switch {
	case c.Index != p.next:
		return nil, false, errProtocol(fmt.Sprintf("chunk %d of a result in the place of chunk %d", c.Index, p.next))
	case len(c.Data) > maxChunk || len(p.data)+len(c.Data) > inspector.MaxResultBytes:
		return nil, false, errProtocol(fmt.Sprintf("a chunk of %d bytes after %d", len(c.Data), len(p.data)))
	case len(c.Data) == 0 && !c.Last:
		return nil, false, errProtocol("an empty chunk that is not the last")
	}
	if a.held.Add(int64(len(c.Data))) > maxAssembling {
		a.held.Add(-int64(len(c.Data)))
		return nil, false, retryable{errBusy("results"), soonAgain()}
	}
	p.next++
	p.data = append(p.data, c.Data...)
	if !c.Last {
		return nil, false, nil
	}
	data = p.data
	a.held.Add(-int64(len(data)))
	a.open = slices.Delete(a.open, i, i+1)
	return data, true, nil
}

// close gives up what is not whole.
func (a *assembly) close() {
	for _, p := range a.open {
		a.held.Add(-int64(len(p.data)))
	}
	a.open = nil
}

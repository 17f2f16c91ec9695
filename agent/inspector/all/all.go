// Package all knows the words of every component: the one list, in
// alphabetical order, that agent and server hand their registry to.
package all

import (
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/host"
	"github.com/telltale-dev/telltale/agent/inspector/network"
	"github.com/telltale-dev/telltale/agent/inspector/process"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// Register adds every component to r.
func Register(r *inspector.Registry) {
	host.Register(r)
	network.Register(r)
	process.Register(r)
	storage.Register(r)
}

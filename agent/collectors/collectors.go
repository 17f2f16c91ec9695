// Package collectors is the list of everything this agent can measure: one
// alphabetical entry for each component.
//
// It owns the list alone; who runs the modules is agent/runner, what they
// measure is in their own folders.
package collectors

import (
	"log/slog"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
	"github.com/telltale-dev/telltale/agent/inspector/host"
	hostcollect "github.com/telltale-dev/telltale/agent/inspector/host/collect"
	"github.com/telltale-dev/telltale/agent/inspector/network"
	networkprobe "github.com/telltale-dev/telltale/agent/inspector/network/probe"
	"github.com/telltale-dev/telltale/agent/inspector/process"
	processprobe "github.com/telltale-dev/telltale/agent/inspector/process/probe"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
	storageprobe "github.com/telltale-dev/telltale/agent/inspector/storage/probe"
	"github.com/telltale-dev/telltale/agent/runner"
)

// Config is common to all components. Empty paths mean /proc and /sys.
type Config struct {
	Proc    string
	Sys     string
	Disable map[string][]string // component: signals to keep off
}

// List makes the modules; none is opened.
func List(cfg Config, log *slog.Logger) []runner.Module {
	var words inspector.Registry
	all.Register(&words)
	module := func(component string, open func(log *slog.Logger, disable []string) (runner.Collector, error)) runner.Module {
		c, _ := words.Component(component)
		return runner.Module{Component: component, Signals: c.Signals, Open: func() (runner.Collector, error) {
			return open(log.With("component", component), cfg.Disable[component])
		}}
	}
	mounts := hostcollect.NewMounts() // outlives a collector that is switched off
	return []runner.Module{
		module(host.Name, func(log *slog.Logger, disable []string) (runner.Collector, error) {
			return hostcollect.New(hostcollect.Config{Proc: cfg.Proc, Sys: cfg.Sys, Disable: disable, Mounts: mounts}, log), nil
		}),
		module(network.Name, func(log *slog.Logger, disable []string) (runner.Collector, error) {
			return networkprobe.New(networkprobe.Config{Proc: cfg.Proc, Sys: cfg.Sys, Disable: disable}, log)
		}),
		module(process.Name, func(log *slog.Logger, disable []string) (runner.Collector, error) {
			return processprobe.New(processprobe.Config{Proc: cfg.Proc, Sys: cfg.Sys, Disable: disable}, log)
		}),
		module(storage.Name, func(log *slog.Logger, disable []string) (runner.Collector, error) {
			return storageprobe.New(storageprobe.Config{Proc: cfg.Proc, Sys: cfg.Sys, Disable: disable}, log)
		}),
	}
}

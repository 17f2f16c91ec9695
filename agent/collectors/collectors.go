// Package collectors is the list of everything this agent can measure: one
// alphabetical entry for each component.
//
// It owns the list alone; who runs the modules is agent/runner, what they
// measure is in their own folders.
package collectors

import (
	"log/slog"

	"github.com/telltale-dev/telltale/agent/bpfload"
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
	// Emit takes what probes see happen. It does not block and is safe for
	// concurrent use. Nil: nobody listens.
	Emit func(inspector.Occurrence)
	// StateDir is where a probe keeps what must outlive the agent. Empty: in
	// memory only.
	StateDir string
}

// List makes the modules; none is opened.
func List(cfg Config, log *slog.Logger) []runner.Module {
	var words inspector.Registry
	all.Register(&words)
	type tasks = map[string]inspector.TaskRun
	module := func(component string, tasks tasks, open func(*slog.Logger) (runner.Collector, error)) runner.Module {
		c, _ := words.Component(component)
		return runner.Module{Component: component, Signals: c.Signals, Tasks: tasks, Open: func() (runner.Collector, error) {
			return open(log.With("component", component))
		}}
	}
	kernel := bpfload.NewKernel()
	networkConfig := networkprobe.Config{Proc: cfg.Proc, Sys: cfg.Sys, Disable: cfg.Disable[network.Name], Emit: cfg.Emit, Kernel: kernel}
	processConfig := processprobe.Config{Proc: cfg.Proc, Sys: cfg.Sys, Disable: cfg.Disable[process.Name], Emit: cfg.Emit, Kernel: kernel, StateDir: cfg.StateDir}
	storageConfig := storageprobe.Config{Proc: cfg.Proc, Sys: cfg.Sys, Disable: cfg.Disable[storage.Name], Emit: cfg.Emit, Kernel: kernel}
	mounts := hostcollect.NewMounts() // outlives a collector that is switched off
	return []runner.Module{
		module(host.Name, nil, func(log *slog.Logger) (runner.Collector, error) {
			return hostcollect.New(hostcollect.Config{Proc: cfg.Proc, Sys: cfg.Sys, Disable: cfg.Disable[host.Name], Mounts: mounts}, log), nil
		}),
		module(network.Name, networkprobe.Tasks(networkConfig, log), func(log *slog.Logger) (runner.Collector, error) {
			return networkprobe.New(networkConfig, log)
		}),
		module(process.Name, processprobe.Tasks(processConfig, log), func(log *slog.Logger) (runner.Collector, error) {
			return processprobe.New(processConfig, log)
		}),
		module(storage.Name, storageprobe.Tasks(storageConfig, log), func(log *slog.Logger) (runner.Collector, error) {
			return storageprobe.New(storageConfig, log)
		}),
	}
}

package probe

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/telltale-dev/telltale/agent/cgroups"
)

// facts are what the tasks' programs must know of the running kernel.
type facts struct {
	reasons       reasons
	rxSock        bool // kfree_skb names the receiving socket
	retransmitErr bool // tcp_retransmit_skb tells the outcome
	netns, pidns  uint32
	controllers   map[string]uint32 // version 1 controller: its index in a css_set
	naming        string            // the version 1 controller that names a process's group; "" on version 2
}

// naming are the version 1 controllers in order of preference: the first are
// those that a container's runtime always sets.
var naming = []string{"memory", "pids", "cpu", "cpuacct", "blkio", "cpuset", "devices", "freezer", "net_cls", "net_prio", "perf_event", "hugetlb", "rdma", "misc"}

func readFacts(cfg Config) (*facts, error) {
	kspec, err := cfg.Kernel.Types()
	if err != nil {
		return nil, fmt.Errorf("the kernel offers no BTF: %w", err)
	}
	f := &facts{
		reasons:       readReasons(kspec),
		rxSock:        params(kspec, "btf_trace_kfree_skb") > 4,
		retransmitErr: params(kspec, "btf_trace_tcp_retransmit_skb") > 3,
		controllers:   map[string]uint32{},
	}
	if f.netns, err = netnsInode(cfg.Proc + "/thread-self/ns/net"); err != nil {
		return nil, err
	}
	if f.pidns, err = netnsInode(cfg.Proc + "/self/ns/pid"); err != nil {
		return nil, err
	}
	var e *btf.Enum
	if err := kspec.TypeByName("cgroup_subsys_id", &e); err == nil {
		for _, v := range e.Values {
			if name, ok := strings.CutSuffix(v.Name, "_cgrp_id"); ok {
				if name == "io" {
					name = "blkio" // as version 1 calls it
				}
				f.controllers[name] = uint32(v.Value)
			}
		}
	}
	if root, err := cgroups.Resolve(cfg.Proc, cfg.Sys, "/"); err == nil {
		f.naming = f.controller(root)
	}
	return f, nil
}

// controller picks the controller by which processes are looked up in a group.
func (f *facts) controller(t cgroups.Target) string {
	for _, c := range naming {
		if _, there := t.V1[c]; !there {
			continue
		}
		if _, known := f.controllers[c]; known {
			return c
		}
	}
	return ""
}

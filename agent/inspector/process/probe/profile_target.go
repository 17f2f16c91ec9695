package probe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/cgroups"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
	"github.com/telltale-dev/telltale/agent/symbols"
)

// target is what a profile is of: a process, or groups of which one is
// enough.
type target struct {
	proc    string
	process *symbols.Process // nil: the groups
	groups  []group
}

// group is a control group as the kernel's side knows it.
type group struct {
	id     uint64
	subsys int32 // which of version 1's hierarchies; -1: version 2
}

// maxGroups is how many the program compares with: GROUPS.
const maxGroups = 4

// target finds out what the arguments name.
func (p *profiler) target(args inspector.Args, files *symbols.Files) (*target, error) {
	t := &target{proc: p.cfg.Proc}
	given := 0
	for _, a := range []string{process.ArgPid, process.ArgCgroup, process.ArgContainer} {
		if args.Has(a) {
			given++
		}
	}
	if given != 1 {
		return nil, &inspector.Refusal{Kind: "INVALID_ARGUMENT", Reason: inspector.ReasonInvalidArgument, Arg: process.ArgPid,
			Msg: "give one of pid, cgroup and container", Next: "Call again with one target."}
	}
	if args.Has(process.ArgPid) {
		var err error
		t.process, err = files.Open(int(args.Int(process.ArgPid)))
		if errors.Is(err, symbols.ErrGone) {
			return nil, &inspector.Refusal{Kind: "NOT_FOUND", Reason: inspector.ReasonPidGone, Arg: process.ArgPid,
				Msg:  fmt.Sprintf("there is no process %d on this node: it ended, or never was", args.Int(process.ArgPid)),
				Next: "Profile its cgroup or container, or find the present id: cgroup \"/\" is the whole machine, by process."}
		}
		if err != nil {
			return nil, fmt.Errorf("look at the process: %w", err)
		}
		return t, nil
	}
	var found cgroups.Target
	var err error
	if ref := args.Text(process.ArgCgroup); ref != "" {
		found, err = cgroups.Resolve(p.cfg.Proc, p.cfg.Sys, ref)
	} else {
		found, err = cgroups.Container(p.cfg.Proc, p.cfg.Sys, args.Text(process.ArgContainer))
	}
	if err != nil {
		return nil, err
	}
	if t.groups, err = groupsOf(found, p.cfg.Kernel); err != nil {
		return nil, err
	}
	return t, nil
}

// groupsOf picks the hierarchies to look in. A group may have the same path
// in several, and its processes be in one of them only: memory and CPU first.
func groupsOf(found cgroups.Target, kernel *bpfload.Kernel) ([]group, error) {
	var out []group
	if found.V2 != 0 {
		out = append(out, group{found.V2, -1})
	}
	names := []string{"memory", "cpu"}
	for name := range found.V1 {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names[2:])
	for _, name := range names {
		id, ok := found.V1[name]
		if !ok || len(out) == maxGroups {
			continue
		}
		if n, ok := subsystem(kernel, name); ok {
			out = append(out, group{id, n})
		}
	}
	if len(out) == 0 {
		return nil, &inspector.Refusal{Kind: "FAILED_PRECONDITION", Reason: inspector.ReasonUnknownCgroup, Arg: process.ArgCgroup,
			Msg: "the group is in no hierarchy that has a controller", Next: "Give its pid, or a group of the memory or cpu controller."}
	}
	return out, nil
}

// subsystem is the kernel's number of a version 1 controller; it depends on
// how the kernel was built.
func subsystem(kernel *bpfload.Kernel, controller string) (int32, bool) {
	if controller == "blkio" {
		controller = "io"
	}
	spec, err := kernel.Types()
	if err != nil {
		return 0, false
	}
	var ids *btf.Enum
	if spec.TypeByName("cgroup_subsys_id", &ids) != nil {
		return 0, false
	}
	for _, v := range ids.Values {
		if v.Name == controller+"_cgrp_id" {
			return int32(v.Value), true
		}
	}
	return 0, false
}

// set tells the program whom to count.
func (t *target) set(spec *ebpf.CollectionSpec) error {
	values := map[string]any{profileVarPidNamespace: pidNamespace(t.proc)}
	if t.process != nil {
		values[profileVarOnlyTgid] = int32(t.process.Pid)
		values[profileVarOnlyStart] = t.process.Start
	} else {
		var ids [maxGroups]uint64
		var subsys [maxGroups]int32
		for i, g := range t.groups {
			ids[i], subsys[i] = g.id, g.subsys
		}
		values[profileVarGroupId], values[profileVarGroupSubsys] = ids, subsys
		values[profileVarGroups] = uint32(len(t.groups))
	}
	for name, v := range values {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// firstPidNamespace is the inode of the first one (include/linux/proc_ns.h).
const firstPidNamespace = 0xEFFFFFFC

// pidNamespace is the inode of the namespace that a procfs shows the numbers
// of, 0 for the machine's first one.
func pidNamespace(proc string) uint32 {
	if proc == "" {
		proc = "/proc"
	}
	for _, who := range []string{"1", "self"} { // the first process of it is certainly in it
		link, err := os.Readlink(filepath.Join(proc, who, "ns/pid"))
		if err != nil {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(link, "pid:["), "]"), 10, 32)
		if err == nil && n != firstPidNamespace {
			return uint32(n)
		}
		return 0
	}
	return 0
}

// tick is the unit of start times in /proc (USER_HZ, 100 on every platform
// that this runs on).
const tick = uint64(time.Second) / 100

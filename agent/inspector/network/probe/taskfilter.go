package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/agent/cgroups"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// filter is what a task's arguments mean to its programs: constants by name.
type filter struct {
	vars    map[string]any
	process *process // the target, if one is given
	byOwner bool     // needs to know who owns a socket
}

// process is one process for as long as it lives.
type process struct {
	root  string // /proc
	pid   int64
	start uint64 // clock ticks since boot
}

func gone(pid int64) error {
	return &inspector.Refusal{Kind: "NOT_FOUND", Reason: inspector.ReasonPidGone, Arg: network.ArgPid,
		Msg: fmt.Sprintf("the node has no process %d", pid), Next: "it has ended or never was; take a pid from a present row or sample, or from profile_on_cpu {\"cgroup\":\"/\"}"}
}

func invalid(arg, msg, next string) error {
	return &inspector.Refusal{Kind: "INVALID_ARGUMENT", Reason: inspector.ReasonInvalidArgument, Arg: arg, Msg: msg, Next: next}
}

// findProcess looks a process up; the id of one of its threads stands for it.
func findProcess(proc string, pid int64) (*process, error) {
	status, err := os.ReadFile(fmt.Sprintf("%s/%d/status", proc, pid))
	if err != nil {
		return nil, gone(pid)
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "Tgid:"); ok {
			if pid, err = strconv.ParseInt(strings.TrimSpace(v), 10, 64); err != nil {
				return nil, fmt.Errorf("read the process's status: %w", err)
			}
		}
	}
	p := &process{root: proc, pid: pid}
	if p.start, err = p.started(); err != nil {
		return nil, gone(pid)
	}
	return p, nil
}

// started reads when the process with this id began; one that has ended and
// is not waited for yet has gone.
func (p *process) started() (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("%s/%d/stat", p.root, p.pid))
	if err != nil {
		return 0, err
	}
	// The name is in brackets and may hold anything, brackets too.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return 0, os.ErrProcessDone
	}
	return strconv.ParseUint(f[19], 10, 64)
}

func (p *process) alive() bool {
	start, err := p.started()
	return err == nil && start == p.start
}

// newFilter checks what only the node can check and makes the constants.
func (t *tracer) newFilter(args inspector.Args, f *facts) (*filter, error) {
	out := &filter{vars: map[string]any{
		"only_netns":  t.cfg.Netns,
		"own_pidns":   f.pidns,
		"sample_rate": uint32(max(1, args.Int(inspector.ArgSampleRate))),
		"max_events":  uint32(args.Int(inspector.ArgMaxEvents)),
	}}
	if f.naming != "" {
		out.vars["name_index"] = f.controllers[f.naming]
	}
	if args.Has(network.ArgAddress) {
		a, err := netip.ParseAddr(args.Text(network.ArgAddress))
		if err != nil || a.Zone() != "" {
			return nil, invalid(network.ArgAddress, "not an IPv4 or IPv6 address", "give one address without a mask or zone, for example 10.0.0.7")
		}
		out.vars["want_family"], out.vars["want_addr"] = words(a.Unmap())
	}
	if args.Has(network.ArgPort) {
		out.vars["want_port"] = uint32(args.Int(network.ArgPort))
	}
	if args.Has(network.ArgPid) {
		p, err := findProcess(t.cfg.Proc, args.Int(network.ArgPid))
		if err != nil {
			return nil, err
		}
		out.process, out.byOwner = p, true
		out.vars["want_pid"], out.vars["want_start"] = uint32(p.pid), p.start
	}
	return out, t.addCgroup(out, args, f)
}

func (t *tracer) addCgroup(out *filter, args inspector.Args, f *facts) error {
	var target cgroups.Target
	var err error
	switch group, container := args.Has(network.ArgCgroup), args.Has(network.ArgContainer); {
	case group && container:
		return invalid(network.ArgContainer, "cgroup and container are both given", "give one of them")
	case group:
		target, err = cgroups.Resolve(t.cfg.Proc, t.cfg.Sys, args.Text(network.ArgCgroup))
	case container:
		target, err = cgroups.Container(t.cfg.Proc, t.cfg.Sys, args.Text(network.ArgContainer))
	default:
		return nil
	}
	if err != nil {
		return err
	}
	out.vars["by_cgroup"] = true
	out.vars["want_cgroup2"] = target.V2
	controller := f.controller(target)
	if controller != "" {
		out.byOwner = true
		out.vars["want_cgroup1"], out.vars["cgroup1_index"] = target.V1[controller], f.controllers[controller]
	}
	if target.V2 == 0 && controller == "" {
		return &inspector.Refusal{Kind: "FAILED_PRECONDITION", Reason: inspector.ReasonFeatureOff, Arg: network.ArgCgroup,
			Msg: "the group exists only in a hierarchy without a controller, by which sockets cannot be told", Next: "filter by pid, port or address instead"}
	}
	return nil
}

// words is an address as the programs hold it: its family and four words.
func words(a netip.Addr) (family uint32, w [4]uint32) {
	b := a.AsSlice()
	for i := range len(b) / 4 {
		w[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	if a.Is4() {
		return 4, w
	}
	return 6, w
}

// ifaceArg is an interface's name as the kernel holds it.
func ifaceArg(name string) (out [16]int8) {
	for i := range min(len(name), 15) {
		out[i] = int8(name[i])
	}
	return out
}

// findInterface looks an interface up in the namespace of a process:
// "thread-self" for the agent's own. It returns the namespace.
func (t *tracer) findInterface(of, name string) (netns uint32, err error) {
	if netns, err = netnsInode(t.cfg.Proc + "/" + of + "/ns/net"); err != nil {
		return 0, err
	}
	b, err := os.ReadFile(t.cfg.Proc + "/" + of + "/net/dev")
	if err != nil {
		return 0, fmt.Errorf("list interfaces: %w", err)
	}
	var there []string
	for line := range strings.Lines(string(b)) {
		n, _, ok := strings.Cut(line, ":")
		if n = strings.TrimSpace(n); !ok {
			continue
		}
		if n == name {
			return netns, nil
		}
		there = append(there, ifaceName(n))
	}
	if len(there) > 10 {
		there = append(there[:10], "…")
	}
	return 0, &inspector.Refusal{Kind: "NOT_FOUND", Reason: inspector.ReasonUnknownIface, Arg: network.ArgInterface,
		Msg:  "that network namespace has no interface of this name; it has " + strings.Join(there, ", "),
		Next: "give one of these, or pid to look in the namespace of a process"}
}

var errNoReason = errors.New("no such reason")

// reasonArg is the number of a drop reason by its name.
func (r reasons) reasonArg(name string) (uint32, error) {
	plain := strings.TrimPrefix(strings.ToUpper(name), reasonPrefix)
	for v, n := range r {
		if n == plain {
			return v, nil
		}
	}
	if v, err := strconv.ParseUint(name, 0, 32); err == nil && strings.HasPrefix(name, "0x") {
		return uint32(v), nil // as reasons without a name are shown
	}
	return 0, errNoReason
}

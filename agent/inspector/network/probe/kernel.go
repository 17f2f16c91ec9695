package probe

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/cilium/ebpf"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// needs lists the programs behind each signal.
var needs = map[string][]string{
	network.Opens:           {"sock_state"},
	network.Established:     {"read_mibs"},
	network.Closes:          {"sock_state"},
	network.SocketEnds:      {"sock_end"},
	network.ResetsIn:        {"reset_in"},
	network.ResetsOut:       {"reset_out"},
	network.Retransmits:     {"retransmit", "retransmit_synack"},
	network.Drops:           {"drop"},
	network.ListenOverflows: {"read_mibs"},
	network.Interfaces:      {"transmit", "receive"},
}

var programs = []bpfload.Program{
	{Name: "sock_state"}, {Name: "sock_end"}, {Name: "reset_in"}, {Name: "reset_out"},
	{Name: "retransmit"}, {Name: "retransmit_synack"}, {Name: "drop"},
	{Name: "transmit"}, {Name: "receive"},
	{Name: "read_mibs", Attach: bpfload.OnDemand},
}

// kernel is the eBPF side of the module.
type kernel struct {
	set     *bpfload.Set
	log     *slog.Logger
	reasons reasons
	places  places
	mibs    mibs
	missed  map[string]uint64 // runs the kernel skipped, by program
	lost    uint64            // all of them
	dropped uint64            // drops whose reason found no room
	unseen  uint64            // looks at namespaces that found no room
	unnamed traffic           // of interfaces that found no room

	// list names the interfaces of the namespace that is counted, by index;
	// nil where it cannot be looked into.
	list func() (map[uint32]string, error)
	here map[uint32]string  // as last listed
	past map[uint32]traffic // as last read
}

// openKernel loads the programs that the wanted signals need. It never
// fails; the set knows what does not run.
func openKernel(cfg Config, off map[string]string, log *slog.Logger) *kernel {
	k := &kernel{log: log, missed: map[string]uint64{}, places: places{path: cfg.Proc + "/kallsyms"}}
	if cfg.Netns == 0 {
		k.list = ownInterfaces
	}
	disable := unneeded(off)
	spec, err := loadNetwork()
	if err == nil {
		err = k.configure(spec, cfg)
	}
	if err != nil {
		log.Warn("network programs cannot be prepared", "error", err)
		k.set = bpfload.Absent(programs, disable, err)
		return k
	}
	k.set = cfg.Kernel.Open(spec, programs, disable, log)
	return k
}

// unneeded names the programs that only serve signals which are off.
func unneeded(off map[string]string) map[string]string {
	disable := map[string]string{}
	for signal, reason := range off {
		for _, p := range needs[signal] {
			disable[p] = reason
		}
	}
	for signal, ps := range needs {
		if _, isOff := off[signal]; !isOff {
			for _, p := range ps {
				delete(disable, p)
			}
		}
	}
	return disable
}

// configure sets the constants of the programs from the running kernel's BTF.
func (k *kernel) configure(spec *ebpf.CollectionSpec, cfg Config) error {
	own := cfg.Netns
	if own == 0 {
		var err error
		if own, err = netnsInode(cfg.Proc + "/self/ns/net"); err != nil {
			return err
		}
	}
	kspec, err := cfg.Kernel.Types()
	if err != nil {
		return fmt.Errorf("the kernel offers no BTF: %w", err)
	}
	k.reasons = readReasons(kspec)
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count the possible CPUs: %w", err)
	}
	values := map[string]any{
		"only_netns":           cfg.Netns,
		"own_netns":            own,
		"reason_not_specified": k.reasons.value("NOT_SPECIFIED"),
		"reason_no_socket":     k.reasons.value("NO_SOCKET"),
		"reason_queue_purge":   k.reasons.value("QUEUE_PURGE"),
		"has_rx_sk":            params(kspec, "btf_trace_kfree_skb") > 4,
		"has_retransmit_err":   params(kspec, "btf_trace_tcp_retransmit_skb") > 3,
		"possible_cpus":        uint32(cpus),
	}
	constants, err := enumConstants(cfg.Sys+"/kernel/btf/vmlinux", "LINUX_MIB_LISTENOVERFLOWS", "LINUX_MIB_LISTENDROPS", "TCP_MIB_CURRESTAB")
	if err != nil {
		return err
	}
	values["mib_listen_overflows"] = constants[0]
	values["mib_listen_drops"] = constants[1]
	values["mib_established"] = constants[2]
	for name, v := range values {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// read looks at everything the running programs count. A part that fails
// leaves its numbers missing and the others stand.
func (k *kernel) read(r *reading) error {
	var errs []error
	if k.set.Running("read_mibs") {
		// First: the library's own check for running programs frees a packet.
		errs = append(errs, k.readMIBs(r))
	}
	errs = append(errs, k.readCounters(r))
	if k.set.Running("drop") {
		errs = append(errs, k.readDrops(r))
	}
	if k.set.Running("transmit", "receive") {
		errs = append(errs, k.readTraffic(r))
	}
	costs, err := k.set.Costs()
	for _, c := range costs {
		k.lost += c.Missed - min(c.Missed, k.missed[c.Program])
		k.missed[c.Program] = c.Missed
	}
	r.lost = k.lost
	r.truncated = k.dropped + k.unseen + k.mibs.cut + k.unnamed.rxPackets + k.unnamed.txPackets
	return errors.Join(append(errs, err)...)
}

// ownInterfaces lists this process's own network namespace.
func ownInterfaces() (map[uint32]string, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	names := map[uint32]string{}
	for _, i := range list {
		names[uint32(i.Index)] = ifaceName(i.Name)
	}
	return names, nil
}

// readTraffic adds up both interface maps. Names come from the namespace, so
// that a renamed interface shows its present one; an interface that is there
// and has no entry has moved nothing, and one that is gone gives its entry
// back once that has been read.
func (k *kernel) readTraffic(r *reading) error {
	rest := k.set.Map("traffic_rest")
	entries := map[uint32]iface{}
	inRest := uint32(0)
	visit := func(index uint32, per []networkTraffic) {
		var i iface
		for at := range per {
			t := &per[at]
			i.traffic = i.add(traffic{t.RxPackets, t.RxBytes, t.TxPackets, t.TxBytes})
			if i.name == "" {
				i.name = cString(t.Name[:])
			}
		}
		entries[index] = i
	}
	if err := bpfload.Each(k.set.Map("traffic_quick"), visit); err != nil {
		return fmt.Errorf("interfaces: %w", err)
	}
	quick := len(entries)
	if err := bpfload.Each(rest, visit); err != nil {
		return fmt.Errorf("interfaces: %w", err)
	}
	inRest = uint32(len(entries) - quick)
	k.unnamed, r.unnamed = entries[0].traffic, entries[0].traffic
	delete(entries, 0)
	// After the walk: what is made in between has moved nothing that was read.
	if k.list != nil {
		if here, err := k.list(); err != nil {
			k.log.Debug("interfaces cannot be listed", "error", err)
		} else {
			k.here = here
		}
	}
	r.interfaces = map[ifaceKey]iface{}
	for index, i := range entries {
		name, here := k.here[index]
		switch {
		case here:
			i.name = name
		case i.traffic == traffic{}:
			continue
		case k.here != nil:
			i.gone = true
			if int(index) >= quick && k.past[index] == i.traffic {
				_ = rest.Delete(index) // only frees room
				delete(entries, index)
				continue
			}
		}
		i.name = cmp.Or(i.name, fmt.Sprintf("if%d", index))
		r.interfaces[ifaceKey{index: index}] = i
	}
	for index, name := range k.here {
		// An entry that found no room is in the unnamed one.
		if _, has := entries[index]; !has && inRest < rest.MaxEntries() {
			r.interfaces[ifaceKey{index: index}] = iface{name: name}
		}
	}
	k.past = map[uint32]traffic{}
	for index, i := range entries {
		k.past[index] = i.traffic
	}
	return nil
}

func cString(b []int8) string {
	out := make([]byte, 0, len(b))
	for _, c := range b {
		if c == 0 {
			break
		}
		out = append(out, byte(c))
	}
	if len(out) == 0 {
		return ""
	}
	return ifaceName(string(out))
}

package probe

import (
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
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
	symbols symbols
	mibs    mibs
	dropped uint64 // drops whose reason found no room
	named   bool   // interfaces are in this process's own namespace
}

// openKernel loads the programs that the wanted signals need. It never
// fails; the set knows what does not run.
func openKernel(cfg Config, off map[string]string, log *slog.Logger) *kernel {
	k := &kernel{log: log, named: cfg.Netns == 0, symbols: symbols{path: cfg.Proc + "/kallsyms"}}
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
	k.set = bpfload.Open(spec, programs, disable, log)
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
	kspec, err := btf.LoadKernelSpec()
	if err != nil {
		return fmt.Errorf("the kernel offers no BTF: %w", err)
	}
	k.reasons = readReasons(kspec)
	values := map[string]any{
		"only_netns":           cfg.Netns,
		"own_netns":            own,
		"reason_not_specified": k.reasons.value("NOT_SPECIFIED"),
		"reason_no_socket":     k.reasons.value("NO_SOCKET"),
		"reason_queue_purge":   k.reasons.value("QUEUE_PURGE"),
		"has_rx_sk":            params(kspec, "btf_trace_kfree_skb") > 4,
		"has_retransmit_err":   params(kspec, "btf_trace_tcp_retransmit_skb") > 3,
		"possible_cpus":        uint32(ebpf.MustPossibleCPU()),
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
		r.lost += c.Missed
	}
	return errors.Join(append(errs, err)...)
}

// readTraffic adds up both interface maps. Names come from the namespace
// where it is ours, so that a renamed interface shows its present name.
func (k *kernel) readTraffic(r *reading) error {
	names := map[uint32]string{}
	if k.named {
		list, err := net.Interfaces()
		if err != nil {
			k.log.Debug("interfaces cannot be listed", "error", err)
		}
		for _, i := range list {
			names[uint32(i.Index)], _ = inspector.CleanLabel(i.Name)
		}
	}
	interfaces := map[ifaceKey]traffic{}
	visit := func(index uint32, per []networkTraffic) {
		key := ifaceKey{index: index, name: names[index]}
		var sum traffic
		for i := range per {
			t := &per[i]
			sum = sum.add(traffic{t.RxPackets, t.RxBytes, t.TxPackets, t.TxBytes})
			if key.name == "" {
				key.name = cString(t.Name[:])
			}
		}
		if index == 0 {
			key.name = "other"
			r.truncated += sum.rxPackets + sum.txPackets
		}
		if sum != (traffic{}) {
			interfaces[key] = sum
		}
	}
	if err := bpfload.Each(k.set.Map("traffic_quick"), visit); err != nil {
		return fmt.Errorf("interfaces: %w", err)
	}
	if err := bpfload.Each(k.set.Map("traffic_rest"), visit); err != nil {
		return fmt.Errorf("interfaces: %w", err)
	}
	r.interfaces = interfaces
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
	clean, _ := inspector.CleanLabel(string(out))
	return clean
}

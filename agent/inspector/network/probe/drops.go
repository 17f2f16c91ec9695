package probe

import (
	"context"
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/symbols"
)

// reasons are the names of enum skb_drop_reason in the running kernel,
// without their prefix.
type reasons map[uint32]string

const reasonPrefix = "SKB_DROP_REASON_"

func readReasons(kspec *btf.Spec) reasons {
	out := reasons{}
	var e *btf.Enum
	if err := kspec.TypeByName("skb_drop_reason", &e); err != nil {
		return out // before Linux 5.17: every reason is a bare number
	}
	for _, v := range e.Values {
		if name, ok := strings.CutPrefix(v.Name, reasonPrefix); ok && name != "MAX" && name != "SUBSYS_MASK" {
			out[uint32(v.Value)] = name
		}
	}
	return out
}

// value is the number of a reason, or one that no packet carries.
func (r reasons) value(name string) uint32 {
	for v, n := range r {
		if n == name {
			return v
		}
	}
	return ^uint32(0)
}

// name is the reason's name; reasons of other subsystems have none.
func (r reasons) name(v uint32) string {
	if n, ok := r[v]; ok {
		return n
	}
	return fmt.Sprintf("0x%x", v)
}

// expected are the rows that are there before their first drop, so that none
// reads as 0 and not as absent; the kernel's other hundred reasons appear with
// their first.
var expected = []dropRow{
	{reason: "NETFILTER_DROP"}, {reason: "NO_SOCKET"}, {reason: "NO_SOCKET", benign: true},
	{reason: "SOCKET_BACKLOG"}, {reason: "SOCKET_RCVBUFF"}, {reason: "TCP_CSUM"}, {reason: "UDP_CSUM"},
}

func (k *kernel) readDrops(r *reading) error {
	type entry struct {
		key networkDropKey
		n   uint64
	}
	var entries []entry
	var unknown []uint64
	err := bpfload.Each(k.set.Map("drops"), func(key networkDropKey, per []uint64) {
		e := entry{key: key}
		for _, n := range per {
			e.n += n
		}
		entries = append(entries, e)
		if key.Location != 0 {
			unknown = append(unknown, key.Location)
		}
	})
	if err != nil {
		return fmt.Errorf("drops: %w", err)
	}
	k.places.resolve(unknown)
	r.drops = map[dropRow]uint64{}
	if k.dropped > 0 {
		r.drops[dropRow{reason: otherRow}] = k.dropped
	} else {
		for _, row := range expected {
			if k.reasons.value(row.reason) != ^uint32(0) {
				r.drops[row] = 0
			}
		}
	}
	for _, e := range entries {
		row := dropRow{reason: k.reasons.name(e.key.Reason), benign: e.key.Benign != 0}
		if e.key.Location != 0 {
			row.location = k.places.name(e.key.Location)
		}
		r.drops[row] += e.n
	}
	return nil
}

// places names kernel addresses. The kernel's symbol list is read only when
// an address turns up that was not seen before.
type places struct {
	path   string
	known  map[uint64]string
	hidden bool // the kernel shows no addresses to this process
}

// maxPlaces bounds the cache; it is emptied when full.
const maxPlaces = 1024

func (p *places) name(addr uint64) string {
	if n := p.known[addr]; n != "" {
		return n
	}
	return "unknown"
}

func (p *places) resolve(addrs []uint64) {
	if len(p.known) > maxPlaces {
		p.known = nil
	}
	if p.known == nil {
		p.known = map[uint64]string{}
	}
	var missing []uint64
	for _, a := range addrs {
		if _, ok := p.known[a]; !ok {
			missing = append(missing, a)
		}
	}
	if len(missing) == 0 || p.hidden {
		return
	}
	table, err := symbols.KernelAt(p.path)
	if err != nil {
		p.hidden = true
		return
	}
	names := table.Names(context.Background(), missing)
	for _, a := range missing {
		p.known[a] = names[a]
	}
}

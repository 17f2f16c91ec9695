package probe

import (
	"fmt"
	"strconv"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
)

// Slots of the counters map; they mirror enum counter in bpf/network.bpf.c.
const (
	activeOpens = iota
	passiveOpens
	failedOpens
	establishedResets
	opened
	closed
	resetsIn
	resetsOut
	retransmits
	retransmitsSynack
	dropsOverflow
	netnsOverflow
	endsSent
	endsReceived
	srttSum
	srttBuckets
	slots = srttBuckets + 64
)

// reading is one look at cumulative numbers, from either source. What a
// source does not know is missing, never zero.
type reading struct {
	counters    map[string]uint64 // by metric name
	established *float64
	srtt        []uint64           // buckets
	drops       map[dropRow]uint64 // nil: not known
	interfaces  map[ifaceKey]iface // nil: not known
	unnamed     traffic            // of interfaces that found no room in the map
	lost        uint64             // cumulative
	truncated   uint64             // cumulative
}

// dropRow is one series of network.drops.
type dropRow struct {
	reason, location string
	benign           bool
}

func (d dropRow) id() string { return fmt.Sprintf("%s\x00%s\x00%t", d.reason, d.location, d.benign) }

// ifaceKey tells interfaces apart: by index, which outlives a renaming, or by
// name where the source tells no index.
type ifaceKey struct {
	index uint32
	name  string
}

// iface is one interface's traffic.
type iface struct {
	name string
	traffic
	gone bool // it is in the namespace no more
}

// ifaceName is the label of an interface; one that is really called like the
// row of the rest is quoted.
func ifaceName(raw string) string {
	name, _ := inspector.CleanLabel(raw)
	if name == "" || name == otherRow {
		return strconv.Quote(name)
	}
	return name
}

// otherRow is the label of what has no series of its own.
const otherRow = "other"

type traffic struct{ rxPackets, rxBytes, txPackets, txBytes uint64 }

func (t traffic) add(o traffic) traffic {
	return traffic{t.rxPackets + o.rxPackets, t.rxBytes + o.rxBytes, t.txPackets + o.txPackets, t.txBytes + o.txBytes}
}

func (t traffic) bytes() uint64 { return t.rxBytes + t.txBytes }

// since returns the increase; ok is false when a counter went backwards,
// which means that it started again.
func (t traffic) since(o traffic) (d traffic, ok bool) {
	if t.rxPackets < o.rxPackets || t.rxBytes < o.rxBytes || t.txPackets < o.txPackets || t.txBytes < o.txBytes {
		return traffic{}, false
	}
	return traffic{t.rxPackets - o.rxPackets, t.rxBytes - o.rxBytes, t.txPackets - o.txPackets, t.txBytes - o.txBytes}, true
}

// readCounters adds up the label-free counters of the programs that run.
func (k *kernel) readCounters(r *reading) error {
	m := k.set.Map("counters")
	if m == nil {
		return nil
	}
	sums, err := bpfload.Sums(m, slots)
	if err != nil {
		return fmt.Errorf("counters: %w", err)
	}
	put := func(program, metric string, v uint64) {
		if k.set.Running(program) {
			r.counters[metric] = v
		}
	}
	put("sock_state", "network.tcp_active_opens", sums[activeOpens])
	put("sock_state", "network.tcp_passive_opens", sums[passiveOpens])
	put("sock_state", "network.tcp_failed_opens", sums[failedOpens])
	put("sock_state", "network.tcp_established_resets", sums[establishedResets])
	put("sock_state", "network.tcp_closes", sums[closed])
	put("sock_end", "network.tcp_sent_bytes", sums[endsSent])
	put("sock_end", "network.tcp_received_bytes", sums[endsReceived])
	put("sock_end", "network.tcp_srtt", sums[srttSum])
	put("reset_in", "network.tcp_resets_in", sums[resetsIn])
	put("reset_out", "network.tcp_resets_out", sums[resetsOut])
	if k.set.Running("retransmit", "retransmit_synack") {
		r.counters["network.retransmit_segments"] = sums[retransmits] + sums[retransmitsSynack]
	}
	if k.set.Running("sock_end") {
		r.srtt = sums[srttBuckets:]
	}
	k.dropped, k.unseen = sums[dropsOverflow], sums[netnsOverflow]
	return nil
}

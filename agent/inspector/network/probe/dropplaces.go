package probe

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// shownPlaces is how many other interfaces a note names.
const shownPlaces = 5

// hidden tells where the drops were that pass every filter but the one by
// interface; "" when that filter let something pass or hid nothing.
func (d *dropTask) hidden(tr *trace, r *inspector.TaskResult) (string, error) {
	wanted := tr.args.Text(network.ArgInterface)
	n := tr.counts[countHidden]
	if wanted == "" || n == 0 || r.Totals["packets"] > 0 {
		return "", nil
	}
	type place struct {
		dropsTaskPlace
		drops uint64
	}
	var places []place
	var p place
	it := tr.set.Map("elsewhere").Iterate()
	for it.Next(&p.dropsTaskPlace, &p.drops) {
		places = append(places, p)
	}
	if err := it.Err(); err != nil {
		return "", fmt.Errorf("drops elsewhere: %w", err)
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Or(cmp.Compare(b.drops, a.drops), cmp.Compare(a.Ifindex, b.Ifindex)) })
	peer := peerOf(tr.cfg.Sys, wanted)
	var where []string
	for _, p := range places[:min(shownPlaces, len(places))] {
		labels := map[string]string{}
		if name := cString(p.Ifname[:]); name != "" {
			put(labels, "interface", name)
		} else if p.Ifindex != 0 {
			d.putInterface(tr, labels, p.Netns, p.Ifindex)
		}
		text := cmp.Or(labels["interface"], "no interface")
		if labels["ifindex"] != "" {
			text = "ifindex " + labels["ifindex"]
		}
		if p.Netns != 0 && p.Netns != tr.facts.netns {
			text += fmt.Sprintf(" of network namespace %d", p.Netns)
		}
		if peer != 0 && p.Ifindex == peer && p.Netns != tr.facts.netns {
			text += ", which may be the other end of " + wanted
		}
		where = append(where, fmt.Sprintf("%s (%d)", text, p.drops))
	}
	return fmt.Sprintf("%d drops that pass the other filters were not on %s and are left out: %s. What a veth sends is dropped at its other end: look there, or ask without interface", n, wanted, strings.Join(where, "; ")), nil
}

// peerOf is the index of a veth's other end, in whatever namespace; 0: it has
// none.
func peerOf(sys, name string) uint32 {
	read := func(file string) uint64 {
		b, err := os.ReadFile(filepath.Join(sys, "class/net", filepath.Base(name), file))
		if err != nil {
			return 0
		}
		n, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
		return n
	}
	if link := read("iflink"); link != read("ifindex") {
		return uint32(link)
	}
	return 0
}

// putInterface names an interface of which the kernel gave the index alone.
func (d *dropTask) putInterface(tr *trace, labels map[string]string, netns, index uint32) {
	name := ""
	if netns == tr.facts.netns {
		name = d.here[index]
	} else if netns != 0 && tr.naming != nil {
		if d.there == nil {
			d.there = map[uint32]map[uint32]string{}
		}
		if d.there[netns] == nil {
			d.there[netns] = interfacesOf(tr.cfg.Proc, netns)
		}
		name = d.there[netns][index]
	}
	if name != "" {
		put(labels, "interface", name)
		return
	}
	labels["ifindex"] = strconv.FormatUint(uint64(index), 10)
}

// maxSought bounds the processes among which one of a namespace is sought.
const maxSought = 4096

// interfacesOf lists what /proc tells of the interfaces of a namespace that
// some process is in: those with an address.
func interfacesOf(proc string, netns uint32) map[uint32]string {
	out := map[uint32]string{}
	dir, err := os.Open(proc)
	if err != nil {
		return out
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxSought)
	for _, pid := range names {
		if pid[0] < '1' || pid[0] > '9' {
			continue
		}
		if in, err := netnsInode(filepath.Join(proc, pid, "ns/net")); err != nil || in != netns {
			continue
		}
		net := filepath.Join(proc, pid, "net")
		// "6\teth0      :     1      V3", and lines of groups that begin with tabs
		addInterfaces(out, filepath.Join(net, "igmp"), 0, 1, 10)
		// "fe80…01 06 40 20 80     eth0"
		addInterfaces(out, filepath.Join(net, "if_inet6"), 1, 5, 16)
		break
	}
	return out
}

func addInterfaces(out map[uint32]string, path string, index, name, base int) {
	b, err := os.ReadFile(path)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) <= max(index, name) || line[0] == '\t' {
			continue
		}
		if n, err := strconv.ParseUint(f[index], base, 32); err == nil {
			out[uint32(n)] = strings.TrimSuffix(f[name], ":")
		}
	}
}

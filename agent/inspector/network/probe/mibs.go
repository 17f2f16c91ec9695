package probe

import (
	"fmt"
	"os"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// mibs follows the kernel's own counters of each network namespace. A
// namespace is known by its cookie, which is never used twice, and one that
// appears later is charged from its birth.
type mibs struct {
	round    uint32
	last     map[uint64]networkMib
	partial  bool   // the last look did not see every namespace
	cut      uint64 // looks that ended before the list did
	overflow uint64
	drops    uint64
}

// How a walk over the namespaces ended; it mirrors enum ending in
// bpf/network.bpf.c.
const (
	walkTooMany = iota
	walkComplete
	walkBroken
	walkNoRoom
)

// walks is how often a walk is tried that a vanishing namespace broke off or
// that dead ones left no room for.
const walks = 4

// readMIBs lets the program look at every namespace and turns the absolute
// counters into increases since the first look.
func (k *kernel) readMIBs(r *reading) error {
	m := &k.mibs
	var now map[uint64]networkMib
	var ending uint32
	for range walks {
		var freed int
		var err error
		if now, freed, ending, err = k.walkNamespaces(); err != nil {
			return err
		}
		if ending == walkComplete || ending == walkTooMany || ending == walkNoRoom && freed == 0 {
			break
		}
	}
	if ending == walkBroken {
		return fmt.Errorf("read_mibs: network namespaces go away faster than they can be read")
	}
	if ending == walkTooMany {
		m.cut++
	}
	if len(now) == 0 {
		return fmt.Errorf("read_mibs saw no network namespace")
	}
	r.counters["network.listen_overflows"], r.counters["network.listen_drops"] = m.step(now, ending != walkComplete)
	var established int64
	for _, v := range now {
		established += int64(v.Established) // summed as signed: it goes up and down
	}
	level := float64(max(established, 0))
	r.established = &level
	return nil
}

// walkNamespaces runs the program once. freed counts the entries of dead
// namespaces that made room.
func (k *kernel) walkNamespaces() (now map[uint64]networkMib, freed int, ending uint32, err error) {
	m := &k.mibs
	m.round++
	if ending, err = k.set.Program("read_mibs").Run(&ebpf.RunOptions{Context: networkRun{Round: m.round}}); err != nil {
		return nil, 0, 0, fmt.Errorf("run read_mibs: %w", err)
	}
	table := k.set.Map("mibs")
	now = map[uint64]networkMib{}
	var gone []uint64
	var cookie uint64
	var v networkMib
	it := table.Iterate()
	for it.Next(&cookie, &v) {
		if v.Round == m.round {
			now[cookie] = v
		} else {
			gone = append(gone, cookie)
		}
	}
	if err := it.Err(); err != nil {
		return nil, 0, 0, fmt.Errorf("walk mibs: %w", err)
	}
	if ending != walkBroken { // or else they may only not have been reached
		for _, c := range gone {
			_ = table.Delete(c) // only frees room
		}
	}
	return now, len(gone), ending, nil
}

// step takes one look and returns the increases since the first. What a
// namespace counted before it was first seen is charged only when the look
// before saw them all, so that it was born since. A counter never steps back:
// the numbers of a namespace that died were charged while it lived.
func (m *mibs) step(now map[uint64]networkMib, partial bool) (overflow, drops uint64) {
	for c, v := range now {
		p, known := m.last[c]
		if m.last == nil || !known && m.partial {
			continue
		}
		m.overflow += max(v.ListenOverflows, p.ListenOverflows) - p.ListenOverflows
		m.drops += max(v.ListenDrops, p.ListenDrops) - p.ListenDrops
	}
	m.last, m.partial = now, partial
	return m.overflow, m.drops
}

// netnsInode identifies a network namespace as the kernel's ns.inum does.
func netnsInode(path string) (uint32, error) {
	st, err := os.Stat(path)
	if err != nil {
		return 0, fmt.Errorf("find the network namespace: %w", err)
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("find the network namespace: %s has no inode", path)
	}
	return uint32(sys.Ino), nil
}

// params counts the parameters of a tracepoint's callback, context included.
func params(kspec *btf.Spec, callback string) int {
	var t *btf.Typedef
	if err := kspec.TypeByName(callback, &t); err != nil {
		return 0
	}
	p, ok := t.Type.(*btf.Pointer)
	if !ok {
		return 0
	}
	f, ok := p.Target.(*btf.FuncProto)
	if !ok {
		return 0
	}
	return len(f.Params)
}

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
	overflow uint64
	drops    uint64
}

// readMIBs lets the program look at every namespace and turns the absolute
// counters into increases since the first look.
func (k *kernel) readMIBs(r *reading) error {
	m := &k.mibs
	m.round++
	if _, err := k.set.Program("read_mibs").Run(&ebpf.RunOptions{Context: networkRun{Round: m.round}}); err != nil {
		return fmt.Errorf("run read_mibs: %w", err)
	}
	table := k.set.Map("mibs")
	now := map[uint64]networkMib{}
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
		return fmt.Errorf("walk mibs: %w", err)
	}
	for _, c := range gone {
		_ = table.Delete(c) // only frees room
	}
	if len(now) == 0 {
		return fmt.Errorf("read_mibs saw no network namespace")
	}
	var established int64
	for c, v := range now {
		established += int64(v.Established) // summed as signed: it goes up and down
		if m.last != nil {
			p := m.last[c]
			m.overflow += max(v.ListenOverflows, p.ListenOverflows) - p.ListenOverflows
			m.drops += max(v.ListenDrops, p.ListenDrops) - p.ListenDrops
		}
	}
	m.last = now
	r.counters["network.listen_overflows"] = m.overflow
	r.counters["network.listen_drops"] = m.drops
	level := float64(max(established, 0))
	r.established = &level
	return nil
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

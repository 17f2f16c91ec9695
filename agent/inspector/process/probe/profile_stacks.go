package probe

import (
	"cmp"
	"context"
	"slices"

	"github.com/telltale-dev/telltale/agent/symbols"
)

// The keys of stacks that are none: NO_STACK and LOST_STACK of profile.bpf.c.
const (
	noStack   = 0
	lostStack = 1
	maxDepth  = 127 // DEPTH
)

// sampled is one distinct stack of one process.
type sampled struct {
	process profileProcessKey
	count   uint64
	lost    bool     // a part of it had no room
	kernel  []uint64 // innermost first
	user    []uint64
}

// stacks reads what the program counted, the most frequent first. Stacks that
// several have in common are in memory once.
func (s *sampling) stacks() ([]sampled, error) {
	var out []sampled
	var key profileSampleKey
	var count uint64
	read := map[uint64][]uint64{}
	it := s.set.Map(profileMapCounts).Iterate()
	for it.Next(&key, &count) {
		out = append(out, sampled{
			process: profileProcessKey{Start: key.Start, Program: key.Program, Tgid: key.Tgid},
			count:   count, lost: key.Kernel == lostStack || key.User == lostStack,
			kernel: s.stack(key.Kernel, read), user: s.stack(key.User, read),
		})
	}
	slices.SortFunc(out, func(a, b sampled) int { return cmp.Compare(b.count, a.count) })
	return out, it.Err()
}

func (s *sampling) stack(key uint64, read map[uint64][]uint64) []uint64 {
	if key == noStack || key == lostStack {
		return nil
	}
	if _, ok := read[key]; !ok {
		var st profileStack
		if s.set.Map(profileMapStacks).Lookup(key, &st) == nil {
			read[key] = slices.Clone(st.Ip[:min(st.Depth, maxDepth)])
		}
	}
	return read[key]
}

// frame is a named place in a stack.
type frame struct {
	function, module string
	kernel, golang   bool
	named            bool
}

// namer holds the names of all that was sampled.
type namer struct {
	kernel    map[uint64]string
	user      map[profileProcessKey]map[uint64]symbols.Frame
	noKernel  error    // why the kernel has no names
	bare      []string // files without a table of symbols
	unread    []string // files that could not be read
	unwatched uint64   // samples of processes that were gone when looked at
	hidden    uint64   // samples of processes that the agent may not look into
}

// caller is the address to name for a frame that called another: the return
// address may already belong to the next function.
func caller(i int, addr uint64) uint64 {
	if i > 0 {
		return addr - 1
	}
	return addr
}

// maxAddresses bounds what is looked up. What is beyond, in the least
// frequent stacks, has no name.
const maxAddresses = 32 << 10

// name looks every address up once, as long as ctx lasts.
func name(ctx context.Context, all []sampled, known map[profileProcessKey]*symbols.Process, kallsyms string) *namer {
	n := &namer{user: map[profileProcessKey]map[uint64]symbols.Frame{}}
	type place struct {
		process profileProcessKey // zero: the kernel
		addr    uint64
	}
	asked := map[place]bool{}
	var kernel []uint64
	user := map[profileProcessKey][]uint64{}
	fresh := func(p place) bool {
		if asked[p] || len(asked) >= maxAddresses {
			return false
		}
		asked[p] = true
		return true
	}
	for _, e := range all {
		for i, a := range e.kernel {
			if a = caller(i, a); fresh(place{addr: a}) {
				kernel = append(kernel, a)
			}
		}
		if known[e.process] == nil {
			n.unwatched += e.count
			continue
		}
		if known[e.process].Hidden {
			n.hidden += e.count
		}
		for i, a := range e.user {
			if a = caller(i, a); fresh(place{e.process, a}) {
				user[e.process] = append(user[e.process], a)
			}
		}
	}
	if len(kernel) > 0 {
		table, err := symbols.KernelAt(kallsyms)
		if n.noKernel = err; err == nil {
			n.kernel = table.Names(ctx, kernel)
		}
	}
	for key, addrs := range user {
		n.user[key] = known[key].Names(ctx, addrs)
		bare, unread := known[key].Modules()
		n.bare, n.unread = append(n.bare, bare...), append(n.unread, unread...)
	}
	slices.Sort(n.bare)
	slices.Sort(n.unread)
	n.bare, n.unread = slices.Compact(n.bare), slices.Compact(n.unread)
	return n
}

// frames names a stack, outermost frame first.
func (n *namer) frames(e sampled) []frame {
	out := make([]frame, 0, len(e.user)+len(e.kernel)+1)
	user := e.user[:len(e.user)-n.astray(e)]
	for i, a := range slices.Backward(user) {
		f := n.user[e.process][caller(i, a)]
		out = append(out, frame{function: f.Function, module: f.Module, golang: f.Go, named: f.Function != ""})
	}
	for i, a := range slices.Backward(e.kernel) {
		name := n.kernel[caller(i, a)]
		out = append(out, frame{function: name, module: kernelModule, kernel: true, named: name != ""})
	}
	if e.lost {
		out = append(out, frame{function: "[stack lost]"})
	}
	if len(e.user) == 0 && len(e.kernel) == 0 && !e.lost {
		out = append(out, frame{}) // user code that left no stack at all
	}
	return out
}

// astray counts the outermost frames that are no code at all: code without
// frame pointers keeps other things where they would be.
func (n *namer) astray(e sampled) int {
	frames := n.user[e.process]
	if frames == nil {
		return 0
	}
	for i := 1; i < len(e.user); i++ {
		if f, asked := frames[caller(i, e.user[i])]; asked && f.Module == "" {
			return len(e.user) - i
		}
	}
	return 0
}

// reachesRoot says whether a stack goes all the way to where a thread begins.
func (n *namer) reachesRoot(e sampled) bool {
	for i, a := range e.user {
		switch n.user[e.process][caller(i, a)].Function {
		case "main", "_start", "__libc_start_main", "__libc_start_call_main", "start_thread", "thread_start", "clone", "clone3", "__clone", "__clone3":
			return true
		}
	}
	return false
}

// kernelModule is the module of kernel functions.
const kernelModule = "kernel"

// Package symbols gives code addresses their function names: the kernel's
// from its own list, a process's from the files it has mapped, Go and C.
//
// It keeps no table: every batch of addresses is looked up in one pass over
// the list or file, so memory grows with the question alone. What cannot be
// named stays unnamed; nothing is guessed. It must not know who asks. Start
// reading at Kernel and at Open.
package symbols

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// ErrHidden says that the kernel shows this process no addresses.
var ErrHidden = errors.New("the kernel hides its addresses (kernel.kptr_restrict)")

// KernelTable names addresses of the running kernel. It is safe for
// concurrent use and holds no more than the names it was asked for last.
type KernelTable struct {
	path string

	mu    sync.Mutex
	known map[uint64]string // what Lookup found; "" for nothing
}

// maxKnown bounds what Lookup remembers.
const maxKnown = 1024

// Kernel opens the running kernel's list of symbols. The error is ErrHidden,
// or says why the list cannot be read.
func Kernel() (*KernelTable, error) { return KernelAt("/proc/kallsyms") }

// KernelAt opens a list in the form of /proc/kallsyms.
func KernelAt(path string) (*KernelTable, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's symbols: %w", err)
	}
	defer f.Close()
	// The first symbols may lie at 0 in earnest: per-CPU ones did.
	lines := bufio.NewReader(io.LimitReader(f, 1<<20))
	for {
		line, err := lines.ReadSlice('\n')
		if s, ok := parseSymbol(line); ok && s.addr != 0 {
			return &KernelTable{path: path, known: map[uint64]string{}}, nil
		}
		if err != nil {
			return nil, ErrHidden
		}
	}
}

// Lookup names one address, remembering a number of answers. Names is better
// for many.
func (t *KernelTable) Lookup(addr uint64) (name string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name, asked := t.known[addr]
	if !asked {
		name = t.Names(context.Background(), []uint64{addr})[addr]
		if len(t.known) >= maxKnown {
			clear(t.known)
		}
		t.known[addr] = name
	}
	return name, name != ""
}

// maxKernelFunction is more than any function of a kernel is long; an address
// further from the symbol before it lies in something that has none.
const maxKernelFunction = 1 << 20

// lookUp is after how many symbols a pass over a table looks whether its time
// is over.
const lookUp = 1024

// Names names a batch of addresses in one pass over the list: "tcp_v4_rcv",
// or "nf_hook [nf_tables]" inside a module. What has no name is not in the
// result. A list that cannot be read gives none, nor does one that is not
// through when ctx ends: what is nearest is known at its end only.
func (t *KernelTable) Names(ctx context.Context, addrs []uint64) map[uint64]string {
	found := newNearest(addrs)
	// Of a sorted list every symbol is the nearest for a moment: what is kept
	// of it is its bytes, and only the last ones become a name.
	best := make([]kernelSymbol, len(found.addrs))
	f, err := os.Open(t.path)
	if err != nil {
		return nil
	}
	defer f.Close()
	lines := bufio.NewReaderSize(f, 64<<10)
	for n := 0; ; n++ {
		if n%lookUp == 0 && ctx.Err() != nil {
			return nil
		}
		line, err := lines.ReadSlice('\n')
		if s, ok := parseSymbol(line); ok && s.addr != 0 {
			// Data takes part, so that nothing beyond the code is named after
			// its last function. Of several names the plainest wins.
			if i, better := found.offer(s.addr, !s.code); better || i >= 0 && plainer(s.name, best[i].name) {
				best[i].name, best[i].module = append(best[i].name[:0], s.name...), append(best[i].module[:0], s.module...)
			}
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			break
		}
	}
	out := make(map[uint64]string, len(found.addrs))
	found.each(func(addr uint64, i int) {
		if !found.barred[i] && addr-found.at[i] < maxKernelFunction && string(best[i].name) != "_etext" {
			out[addr] = best[i].text()
		}
	})
	return out
}

// kernelSymbol is one line of the list; it points into the line.
type kernelSymbol struct {
	addr         uint64
	code         bool
	name, module []byte
}

func (s kernelSymbol) text() string {
	name := inspector.CleanText(string(s.name))
	if len(s.module) > 0 {
		name += " " + inspector.CleanText(string(s.module))
	}
	return name
}

// parseSymbol reads "ffffffff81000000 T _text\t[module]".
func parseSymbol(line []byte) (kernelSymbol, bool) {
	hex, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok || len(hex) > 16 || len(rest) < 3 || rest[1] != ' ' {
		return kernelSymbol{}, false
	}
	var addr uint64
	for _, c := range hex {
		switch {
		case c >= '0' && c <= '9':
			addr = addr<<4 | uint64(c-'0')
		case c >= 'a' && c <= 'f':
			addr = addr<<4 | uint64(c-'a'+10)
		default:
			return kernelSymbol{}, false
		}
	}
	s := kernelSymbol{addr: addr, code: bytes.IndexByte([]byte("tTwW"), rest[0]) >= 0}
	s.name, s.module, _ = bytes.Cut(bytes.TrimRight(rest[2:], "\n"), []byte{'\t'})
	return s, len(s.name) > 0
}

// plainer prefers the name with fewer underscores in front: of aliases the
// one that people know.
func plainer(name, than []byte) bool {
	lead := func(s []byte) int { return len(s) - len(bytes.TrimLeft(s, "_")) }
	return len(than) > 0 && lead(name) < lead(than)
}

// nearest finds for each of a batch of addresses the last symbol at or before
// it, from symbols that come in any order, remembering one for each address.
type nearest struct {
	addrs  []uint64 // sorted, each once
	at     []uint64 // the greatest symbol seen between the address before and this one
	barred []bool   // what lies there is no code
	seen   []bool
}

func newNearest(addrs []uint64) *nearest {
	n := &nearest{addrs: slices.Clone(addrs)}
	slices.Sort(n.addrs)
	n.addrs = slices.Compact(n.addrs)
	n.at = make([]uint64, len(n.addrs))
	n.barred = make([]bool, len(n.addrs))
	n.seen = make([]bool, len(n.addrs))
	return n
}

// offer takes a symbol. i is the address it stands before, or -1; better says
// that it is nearer than what was there, and false with i >= 0 that it is at
// the very same place.
func (n *nearest) offer(sym uint64, barred bool) (i int, better bool) {
	i, _ = slices.BinarySearch(n.addrs, sym)
	if i == len(n.addrs) || n.seen[i] && sym < n.at[i] {
		return -1, false
	}
	if n.seen[i] && sym == n.at[i] {
		if barred && !n.barred[i] {
			return -1, false
		}
		better = n.barred[i] && !barred
		n.barred[i] = n.barred[i] && barred
		return i, better
	}
	n.at[i], n.barred[i], n.seen[i] = sym, barred, true
	return i, true
}

// each visits the addresses that have a symbol, with the place it is kept at.
func (n *nearest) each(visit func(addr uint64, i int)) {
	last := -1
	for i, addr := range n.addrs {
		if n.seen[i] {
			last = i
		}
		if last >= 0 {
			visit(addr, last)
		}
	}
}

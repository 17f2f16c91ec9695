package symbols

import (
	"bytes"
	"context"
	"io"
	"os"
	"slices"
	"strings"
)

// Frame is what is known of one address of a process.
type Frame struct {
	Function string // "" when it has no name
	Module   string // name of the file, "[vdso]", "[anonymous]"; "" for what is not mapped
	Go       bool
}

// place is an address as the file's own tables have it.
type place struct {
	module string
	image  *Image
	debug  *Image
	addr   uint64
}

// Names names a batch of the process's addresses. Every address is in the
// result, unnamed ones with an empty Function: when ctx ends, that is what was
// not looked up by then.
func (p *Process) Names(ctx context.Context, addrs []uint64) map[uint64]Frame {
	out := make(map[uint64]Frame, len(addrs))
	places := map[uint64]place{}
	ask := map[*Image][]uint64{}
	var kernels *Image
	for _, a := range addrs {
		m, ok := p.find(a)
		if !ok {
			out[a] = Frame{}
			continue
		}
		pl := place{module: m.module()}
		if m.name == vdso {
			if kernels == nil {
				kernels = ownVDSO()
			}
			pl.image = kernels
		} else if h := p.files.open[m.file]; h != nil {
			pl.image, pl.debug = h.image, h.debug
		}
		out[a] = Frame{Module: pl.module}
		if pl.image == nil {
			continue
		}
		if pl.addr, ok = pl.image.Address(a - m.start + m.offset); ok {
			places[a] = pl
			ask[pl.image] = append(ask[pl.image], pl.addr)
			if pl.debug != nil {
				ask[pl.debug] = append(ask[pl.debug], pl.addr)
			}
		}
	}
	names := map[*Image]map[uint64]string{}
	for im, list := range ask {
		slices.Sort(list)
		names[im] = im.Names(ctx, slices.Compact(list))
	}
	for a, pl := range places {
		name := names[pl.image][pl.addr]
		if better := names[pl.debug][pl.addr]; pl.debug != nil && better != "" {
			name = better
		}
		out[a] = Frame{Function: name, Module: pl.module, Go: pl.image.Go}
	}
	return out
}

// find returns the mapping that holds an address.
func (p *Process) find(addr uint64) (mapping, bool) {
	i, found := slices.BinarySearchFunc(p.maps, addr, func(m mapping, a uint64) int { return compare(m.start, a) })
	if !found {
		i--
	}
	if i < 0 || addr >= p.maps[i].end {
		return mapping{}, false
	}
	return p.maps[i], true
}

// maxVDSO is more than any kernel's.
const maxVDSO = 64 << 10

// ownVDSO reads the kernel's page of code from this process: it is the same
// for all of the machine's word size.
func ownVDSO() *Image {
	b, err := readProc("/proc/self/maps")
	if err != nil {
		return nil
	}
	for _, m := range parseMaps(b) {
		if m.name != vdso || m.end-m.start > maxVDSO {
			continue
		}
		mem, err := os.Open("/proc/self/mem")
		if err != nil {
			return nil
		}
		defer mem.Close()
		code := make([]byte, m.end-m.start)
		if _, err := io.ReadFull(io.NewSectionReader(mem, int64(m.start), int64(len(code))), code); err != nil {
			return nil
		}
		im, err := NewImage(bytes.NewReader(code))
		if err != nil {
			return nil
		}
		return im
	}
	return nil
}

// Modules names the files without a table of symbols, of which nothing but
// exported names can be known, and those that could not be read at all.
func (p *Process) Modules() (bare, unread []string) {
	for _, m := range p.maps {
		h, name := p.files.open[m.file], m.module()
		switch {
		case h == nil || strings.HasPrefix(name, "["):
		case h.f == nil && !slices.Contains(unread, name):
			unread = append(unread, name)
		case h.image != nil && !h.image.HasSymbols() && h.debug == nil && !slices.Contains(bare, name):
			bare = append(bare, name)
		}
	}
	return bare, unread
}

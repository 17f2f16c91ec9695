package symbols

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"io"
	"sort"
)

// goTable is the function table that every Go program carries, stripped or
// not (runtime/symtab.go, debug/gosym). It is read in place.
type goTable struct {
	im      *Image
	at      int64 // of the table, in the file
	size    int64
	order   binary.ByteOrder
	ptr     int64
	count   int64
	text    uint64 // address that the entries count from
	names   int64  // offset of the names in the table
	entries int64  // offset of the entries in the table
	narrow  bool   // entries are 32 bits each, counted from text (since 1.18)
	legacy  bool   // one table without parts (before 1.16)
}

// The magic numbers of the table's versions.
const (
	go12  = 0xfffffffb
	go116 = 0xfffffffa
	go118 = 0xfffffff0
	go120 = 0xfffffff1
)

func (im *Image) goTable() *goTable {
	sec := im.elf.Section(".gopclntab")
	if sec == nil {
		sec = im.elf.Section(".data.rel.ro.gopclntab")
	}
	if sec == nil || sec.Type == elf.SHT_NOBITS {
		return nil
	}
	t := &goTable{im: im, at: int64(sec.Offset), size: int64(sec.FileSize), order: im.elf.ByteOrder}
	head := make([]byte, 8+8*8)
	if _, err := im.file.ReadAt(head, t.at); err != nil {
		return nil
	}
	t.ptr = int64(head[7])
	if head[4] != 0 || head[5] != 0 || t.ptr != 4 && t.ptr != 8 {
		return nil
	}
	word := func(i int64) int64 { return int64(t.pointer(head[8+i*t.ptr:])) }
	t.count = word(0)
	switch t.order.Uint32(head) {
	case go118, go120:
		t.narrow = true
		t.names, t.entries = word(3), word(7)
		if t.text = im.goText(sec, uint64(word(2))); t.text == 0 {
			return nil
		}
	case go116:
		t.names, t.entries = word(2), word(6)
	case go12:
		t.legacy = true
		t.names, t.entries = 0, 8+t.ptr
	default:
		return nil
	}
	if t.count <= 0 || t.count > maxSymbols || t.names < 0 || t.names >= t.size || t.entries < 0 || t.entries+t.count*2*t.field() > t.size {
		return nil
	}
	return t
}

// goText finds the address that a table since 1.18 counts from, runtime.text.
// Where C code is linked in it is not the section's begin. The header had it
// up to 1.25, the module's own record has it always (field text), and in a
// program that can be loaded anywhere both may be there as a relocation only.
func (im *Image) goText(sec *elf.Section, header uint64) uint64 {
	ptr := uint64(8)
	if im.elf.Class == elf.ELFCLASS32 {
		ptr = 4
	}
	if im.inText(header) {
		return header
	}
	if a, ok := im.relocated(sec.Addr + 8 + 2*ptr); ok && im.inText(a) {
		return a
	}
	if m := im.elf.Section(".go.module"); m != nil {
		b := make([]byte, 8)
		if _, err := m.ReadAt(b[:ptr], int64(22*ptr)); err == nil {
			a := uint64(im.elf.ByteOrder.Uint32(b))
			if ptr == 8 {
				a = im.elf.ByteOrder.Uint64(b)
			}
			if im.inText(a) {
				return a
			}
		}
		if a, ok := im.relocated(m.Addr + 22*ptr); ok && im.inText(a) {
			return a
		}
	}
	if im.elf.Section(".dynsym") != nil && im.elf.Section(".init") != nil {
		return 0 // linked with C: the section begins with something else
	}
	if text := im.elf.Section(".text"); text != nil {
		return text.Addr
	}
	return 0
}

func (im *Image) inText(addr uint64) bool {
	text := im.elf.Section(".text")
	return text != nil && addr >= text.Addr && addr-text.Addr < text.Size
}

// relocated returns what the loader will write at an address, relative to
// where it loads the file.
func (im *Image) relocated(addr uint64) (uint64, bool) {
	for _, s := range im.elf.Sections {
		if s.Type != elf.SHT_RELA || s.Flags&elf.SHF_ALLOC == 0 || im.elf.Class != elf.ELFCLASS64 {
			continue
		}
		const size = 24
		chunk := make([]byte, size<<10)
		for at := int64(0); at < int64(min(s.FileSize, maxSymbols*size)); at += int64(len(chunk)) {
			n, _ := io.NewSectionReader(im.file, int64(s.Offset), int64(s.FileSize)).ReadAt(chunk, at)
			if n < size {
				break
			}
			for b := chunk[:n-n%size]; len(b) > 0; b = b[size:] {
				if im.elf.ByteOrder.Uint64(b) == addr {
					return im.elf.ByteOrder.Uint64(b[16:]), true
				}
			}
		}
	}
	return 0, false
}

func (t *goTable) pointer(b []byte) uint64 {
	if t.ptr == 4 {
		return uint64(t.order.Uint32(b))
	}
	return t.order.Uint64(b)
}

// field is the size of half an entry.
func (t *goTable) field() int64 {
	if t.narrow {
		return 4
	}
	return t.ptr
}

func (t *goTable) read(at, size int64) []byte {
	b := make([]byte, size)
	if at < 0 || at+size > t.size {
		return make([]byte, size)
	}
	if _, err := t.im.file.ReadAt(b, t.at+at); err != nil {
		clear(b)
	}
	return b
}

// value reads half an entry: where a function begins, or where its record is.
func (t *goTable) value(i, half int64) uint64 {
	b := t.read(t.entries+(2*i+half)*t.field(), t.field())
	switch {
	case !t.narrow:
		return t.pointer(b)
	case half == 0:
		return t.text + uint64(t.order.Uint32(b))
	}
	return uint64(t.order.Uint32(b))
}

// goNames names addresses from the table; the last entry is its end.
func (im *Image) goNames(ctx context.Context, addrs []uint64) map[uint64]string {
	t := im.goTable()
	if t == nil {
		return nil
	}
	out := map[uint64]string{}
	first, end := t.value(0, 0), t.value(t.count, 0)
	for _, addr := range addrs {
		if ctx.Err() != nil {
			break
		}
		if addr < first || addr >= end {
			continue
		}
		i := int64(sort.Search(int(t.count), func(i int) bool { return t.value(int64(i), 0) > addr })) - 1
		if i < 0 {
			continue
		}
		record := int64(t.value(i, 1))
		if !t.legacy {
			record += t.entries
		}
		skip := t.field() // the entry point again
		name := int64(t.order.Uint32(t.read(record+skip, 4)))
		if n := im.text(t.at+t.names, t.size-t.names, name); n != "" {
			out[addr] = n
		}
	}
	return out
}

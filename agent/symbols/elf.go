package symbols

import (
	"bufio"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// Image is one file of machine code.
type Image struct {
	// BuildID is what its builder wrote into it, in hexadecimal, or "".
	BuildID string
	// Go says that the Go compiler made it.
	Go bool

	file   io.ReaderAt
	elf    *elf.File
	source string // where Names found most: ".symtab", ".gopclntab", ".dynsym"
}

// errBroken is what a file that lies about itself gives.
var errBroken = errors.New("the file is no sound ELF file")

// NewImage reads the headers of an ELF file. Nothing else is kept in memory.
func NewImage(file io.ReaderAt) (im *Image, err error) {
	defer func() {
		if recover() != nil { // the file is anybody's
			im, err = nil, errBroken
		}
	}()
	if err := modest(file); err != nil {
		return nil, err
	}
	f, err := elf.NewFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBroken, err)
	}
	text := 0
	for _, s := range f.Sections {
		text += len(s.Name)
	}
	if text > maxNames {
		return nil, errBroken
	}
	im = &Image{file: file, elf: f, Go: f.Section(".gopclntab") != nil || f.Section(".data.rel.ro.gopclntab") != nil}
	im.BuildID = buildID(f)
	return im, nil
}

// Bounds of a file's headers: debug/elf reads and keeps as much as they say,
// and a program that somebody else chose may say anything. Files that are
// mapped as code have some dozens of sections.
const (
	maxSections = 512
	maxSegments = 128
	maxNames    = 16 << 10 // bytes of the names of all sections
	maxNote     = 4096     // bytes of a note section
)

// modest refuses a file whose headers ask for more memory than those of a
// program do. What else is wrong with them, elf.NewFile finds.
func modest(file io.ReaderAt) error {
	head := make([]byte, 64)
	if _, err := file.ReadAt(head, 0); err != nil {
		return errBroken
	}
	var order binary.ByteOrder = binary.LittleEndian
	if elf.Data(head[elf.EI_DATA]) == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	table, counts, segment, section := order.Uint64(head[40:]), head[54:], uint16(56), uint16(64)
	if elf.Class(head[elf.EI_CLASS]) == elf.ELFCLASS32 {
		table, counts, segment, section = uint64(order.Uint32(head[32:])), head[42:], 32, 40
	}
	number := func(i int) uint16 { return order.Uint16(counts[2*i:]) } // phentsize, phnum, shentsize, shnum, shstrndx
	if number(1) > maxSegments || number(1) > 0 && number(0) != segment || number(3) > maxSections {
		return errBroken
	}
	if table == 0 {
		return nil
	}
	if number(2) != section || number(4) >= number(3) || table > 1<<62 {
		return errBroken // also numbers that are too large for their fields: 65280 sections and more
	}
	names := make([]byte, section)
	if _, err := file.ReadAt(names, int64(table)+int64(number(4))*int64(section)); err != nil {
		return errBroken
	}
	flags, size := order.Uint64(names[8:]), uint64(0)
	if section == 40 {
		flags, size = uint64(order.Uint32(names[8:])), uint64(order.Uint32(names[20:]))
	} else {
		size = order.Uint64(names[32:])
	}
	if size > maxNames || elf.SectionFlag(flags)&elf.SHF_COMPRESSED != 0 {
		return errBroken
	}
	return nil
}

func buildID(f *elf.File) string {
	s := f.Section(".note.gnu.build-id")
	if s == nil || s.FileSize > maxNote {
		return ""
	}
	note := make([]byte, s.FileSize)
	if _, err := s.ReadAt(note, 0); err != nil || len(note) < 16 {
		return ""
	}
	size, desc := f.ByteOrder.Uint32(note), f.ByteOrder.Uint32(note[4:])
	at := 12 + (uint64(size)+3)&^3
	if uint64(desc) > 64 || at+uint64(desc) > uint64(len(note)) {
		return ""
	}
	return fmt.Sprintf("%x", note[at:at+uint64(desc)])
}

// Address turns an offset in the file into the address that the file's own
// tables use.
func (im *Image) Address(offset uint64) (uint64, bool) {
	for _, p := range im.elf.Progs {
		if p.Type == elf.PT_LOAD && offset >= p.Off && offset-p.Off < p.Filesz {
			return offset - p.Off + p.Vaddr, true
		}
	}
	return 0, false
}

// Names names a batch of the file's addresses: from .symtab, for a stripped
// Go program from .gopclntab, and from .dynsym. What has no name is not in
// the result, nor is what a table that was not through when ctx ended has.
func (im *Image) Names(ctx context.Context, addrs []uint64) (names map[uint64]string) {
	names = map[uint64]string{}
	defer func() { _ = recover() }() // the file is anybody's; what was found stays
	take := func(source string, read func([]uint64) map[uint64]string) {
		var open []uint64
		for _, a := range addrs {
			if _, ok := names[a]; !ok {
				open = append(open, a)
			}
		}
		if len(open) == 0 || ctx.Err() != nil {
			return
		}
		found := read(open)
		if len(found) > 0 && im.source == "" {
			im.source = source
		}
		for a, n := range found {
			names[a] = n
		}
	}
	take(".symtab", func(a []uint64) map[uint64]string { return im.table(ctx, elf.SHT_SYMTAB, a) })
	if im.Go {
		take(".gopclntab", func(a []uint64) map[uint64]string { return im.goNames(ctx, a) })
	}
	take(".dynsym", func(a []uint64) map[uint64]string { return im.table(ctx, elf.SHT_DYNSYM, a) })
	return names
}

// HasSymbols tells whether the file has its full table of symbols.
func (im *Image) HasSymbols() bool {
	return im.elf.SectionByType(elf.SHT_SYMTAB) != nil || im.Go
}

// Bounds of one table: a browser has a million symbols.
const (
	maxSymbols = 8 << 20
	maxName    = 512
)

// symbol is an entry of a table, as far as it matters here.
type symbol struct {
	name        uint32
	value, size uint64
}

// table reads a symbol table once, front to back.
func (im *Image) table(ctx context.Context, kind elf.SectionType, addrs []uint64) map[uint64]string {
	sec := im.elf.SectionByType(kind)
	if sec == nil || sec.Type == elf.SHT_NOBITS || int(sec.Link) >= len(im.elf.Sections) {
		return nil
	}
	found := newNearest(addrs)
	best := make([]symbol, len(found.addrs))
	size, parse := int64(24), im.symbol64
	if im.elf.Class == elf.ELFCLASS32 {
		size, parse = 16, im.symbol32
	}
	in := bufio.NewReaderSize(io.NewSectionReader(im.file, int64(sec.Offset), int64(min(sec.FileSize, maxSymbols*24))), 64<<10)
	entry := make([]byte, size)
	for n := 0; ; n++ {
		if n%lookUp == 0 && ctx.Err() != nil {
			return nil
		}
		if _, err := io.ReadFull(in, entry); err != nil {
			break
		}
		s, ok := parse(entry)
		if !ok {
			continue
		}
		// Of several at one place the longer one holds the address more surely.
		if i, better := found.offer(s.value, false); better || i >= 0 && s.size > best[i].size {
			best[i] = s
		}
	}
	strs := im.elf.Sections[sec.Link]
	out := map[uint64]string{}
	found.each(func(addr uint64, i int) {
		s := best[i]
		if s.size > 0 && addr-s.value >= s.size {
			return // between functions: that of a static one that was stripped
		}
		if name := im.text(int64(strs.Offset), int64(strs.FileSize), int64(s.name)); name != "" {
			out[addr] = name
		}
	})
	return out
}

func (im *Image) symbol64(b []byte) (symbol, bool) {
	o := im.elf.ByteOrder
	return symbol{o.Uint32(b), o.Uint64(b[8:]), o.Uint64(b[16:])}, isCode(b[4], o.Uint16(b[6:]))
}

func (im *Image) symbol32(b []byte) (symbol, bool) {
	o := im.elf.ByteOrder
	return symbol{o.Uint32(b), uint64(o.Uint32(b[4:])), uint64(o.Uint32(b[8:]))}, isCode(b[12], o.Uint16(b[14:]))
}

func isCode(info byte, section uint16) bool {
	t := elf.ST_TYPE(info)
	return (t == elf.STT_FUNC || t == elf.STT_GNU_IFUNC) && section != uint16(elf.SHN_UNDEF)
}

// text reads a name out of a string table.
func (im *Image) text(table, size, at int64) string {
	if at >= size {
		return ""
	}
	b := make([]byte, min(maxName, size-at))
	n, _ := im.file.ReadAt(b, table+at)
	name, _, ended := strings.Cut(string(b[:n]), "\x00")
	if !ended && len(name) == maxName {
		name += "…"
	}
	return inspector.CleanText(name)
}

package symbols

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// sparse is a file of any size: some bytes, and zeros up to its end. It counts
// what is read of it.
type sparse struct {
	parts map[int64][]byte
	size  int64
	read  int64
}

func (s *sparse) ReadAt(b []byte, at int64) (int, error) {
	if at >= s.size {
		return 0, io.EOF
	}
	n := int(min(int64(len(b)), s.size-at))
	clear(b[:n])
	for from, part := range s.parts {
		for i, c := range part {
			if p := from + int64(i) - at; p >= 0 && p < int64(n) {
				b[p] = c
			}
		}
	}
	if s.read += int64(n); n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func packed(order binary.ByteOrder, v ...any) []byte {
	var b bytes.Buffer
	for _, v := range v {
		if err := binary.Write(&b, order, v); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

// A program may say that its headers are of any size: a profile of it is no
// way to fill the agent's memory.
func TestHeadersThatLie(t *testing.T) {
	const size, at, far = 1 << 31, 1 << 12, 1 << 20
	head64 := func(change func(*elf.Header64)) []byte {
		h := elf.Header64{Type: 2, Machine: 62, Version: 1, Shoff: at, Ehsize: 64, Phentsize: 56, Shentsize: 64, Shnum: 2, Shstrndx: 1}
		copy(h.Ident[:], "\x7fELF\x02\x01\x01")
		change(&h)
		return packed(binary.LittleEndian, h)
	}
	head32 := func(order binary.ByteOrder, data elf.Data, change func(*elf.Header32)) []byte {
		h := elf.Header32{Type: 2, Machine: 3, Version: 1, Shoff: at, Ehsize: 52, Phentsize: 32, Shentsize: 40, Shnum: 2, Shstrndx: 1}
		copy(h.Ident[:], "\x7fELF\x01\x00\x01")
		h.Ident[elf.EI_DATA] = byte(data)
		change(&h)
		return packed(order, h)
	}
	names64 := func(s elf.Section64) []byte {
		s.Type, s.Off = uint32(elf.SHT_STRTAB), 2*at
		return packed(binary.LittleEndian, s)
	}
	names32 := func(order binary.ByteOrder, s elf.Section32) []byte {
		s.Type, s.Off = uint32(elf.SHT_STRTAB), 2*at
		return packed(order, s)
	}
	same64, same32 := func(*elf.Header64) {}, func(*elf.Header32) {}
	long := bytes.Repeat([]byte{'x'}, maxNames-1)
	many := bytes.Repeat(packed(binary.LittleEndian, elf.Section64{Type: uint32(elf.SHT_PROGBITS)}), maxSections-2)
	for name, c := range map[string]struct {
		parts map[int64][]byte
		ok    bool
	}{
		"an honest one":          {map[int64][]byte{0: head64(same64), at + 64: names64(elf.Section64{Size: 64})}, true},
		"an honest one, 32 bits": {map[int64][]byte{0: head32(binary.BigEndian, elf.ELFDATA2MSB, same32), at + 40: names32(binary.BigEndian, elf.Section32{Size: 64})}, true},
		"without sections":       {map[int64][]byte{0: head64(func(h *elf.Header64) { h.Shoff, h.Shnum, h.Shstrndx = 0, 0, 0 })}, true},
		"names without end":      {map[int64][]byte{0: head64(same64), at + 64: names64(elf.Section64{Size: size / 2})}, false},
		"the same, 32 bits":      {map[int64][]byte{0: head32(binary.LittleEndian, elf.ELFDATA2LSB, same32), at + 40: names32(binary.LittleEndian, elf.Section32{Size: size / 2})}, false},
		"names to unpack": {map[int64][]byte{0: head64(same64), at + 64: names64(elf.Section64{Size: 64, Flags: uint64(elf.SHF_COMPRESSED)}),
			2 * at: packed(binary.LittleEndian, elf.Chdr64{Type: uint32(elf.COMPRESS_ZLIB), Size: 1 << 40, Addralign: 1})}, false},
		"sections in the first section": {map[int64][]byte{0: head64(func(h *elf.Header64) { h.Shnum, h.Shstrndx = 0, 0 }), at: packed(binary.LittleEndian, elf.Section64{Size: 16 << 20, Link: 1})}, false},
		"sections that share a name": {map[int64][]byte{0: head64(func(h *elf.Header64) { h.Shnum = maxSections }),
			at + 64: packed(binary.LittleEndian, elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: far, Size: maxNames}), at + 128: many, far: long}, false},
		"many sections":  {map[int64][]byte{0: head64(func(h *elf.Header64) { h.Shnum = 0xfeff }), at + 64: names64(elf.Section64{Size: 64})}, false},
		"many segments":  {map[int64][]byte{0: head64(func(h *elf.Header64) { h.Phnum = 0xffff }), at + 64: names64(elf.Section64{Size: 64})}, false},
		"large segments": {map[int64][]byte{0: head64(func(h *elf.Header64) { h.Phnum, h.Phentsize = 128, 0xffff }), at + 64: names64(elf.Section64{Size: 64})}, false},
		"far away":       {map[int64][]byte{0: head64(func(h *elf.Header64) { h.Shoff = 1<<64 - 64 })}, false},
	} {
		f := &sparse{parts: c.parts, size: size}
		im, err := NewImage(f)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, errBroken) {
			t.Errorf("%s: %v, %v", name, im, err)
		}
		if f.read > 1<<20 {
			t.Errorf("%s: %d bytes were read", name, f.read)
		}
	}
	own, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if im, err := NewImage(own); err != nil || !im.Go {
		t.Errorf("this program itself: %v", err)
	}
}

// Tables may say that they have any size, and there may be any number of
// them: what is read for one task is bounded.
func TestReadingIsBounded(t *testing.T) {
	const at, table = 1 << 12, 1 << 26
	parts := map[int64][]byte{}
	h := elf.Header64{Type: 2, Machine: 62, Version: 1, Shoff: at, Ehsize: 64, Phentsize: 56, Shentsize: 64, Shnum: maxSections, Shstrndx: 1}
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	parts[0] = packed(binary.LittleEndian, h)
	parts[at+64] = packed(binary.LittleEndian, elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: 1 << 20, Size: 64})
	parts[at+128] = packed(binary.LittleEndian, elf.Section64{Type: uint32(elf.SHT_SYMTAB), Off: 1 << 21, Size: table, Link: 1},
		elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Flags: uint64(elf.SHF_ALLOC), Off: 1<<20 + 64, Size: 1 << 10})
	parts[at+256] = bytes.Repeat(packed(binary.LittleEndian, elf.Section64{Type: uint32(elf.SHT_RELA), Flags: uint64(elf.SHF_ALLOC), Off: 1 << 21, Size: table}), maxSections-4)
	parts[1<<20] = []byte("\x00.gopclntab")
	parts[1<<20+64] = packed(binary.LittleEndian, uint32(go120), uint16(0), byte(1), byte(8), uint64(1))
	f := &sparse{parts: parts, size: 1 << 31}
	held := NewFiles("")
	held.left = 4 * table
	im, err := NewImage(metered{f, &held.left})
	if err != nil || !im.Go {
		t.Fatal(im, err)
	}
	if names := im.Names(t.Context(), []uint64{1, 2}); len(names) != 0 || !held.Spent() || f.read > 5*table {
		t.Errorf("%v after %d bytes, spent %v", names, f.read, held.Spent())
	}
	if _, err := NewImage(metered{f, &held.left}); err == nil {
		t.Error("the next file is read")
	}
}

// A path that somebody else chose opens regular files only, and leads nowhere
// but below that one's root: opening a device is an act by itself.
func TestOpensRegularFilesOnly(t *testing.T) {
	dir := t.TempDir()
	fifo, root := filepath.Join(dir, "fifo"), filepath.Join(dir, "root")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(root, "lib"), 0o755))
	must(unix.Mkfifo(fifo, 0o644))
	must(os.WriteFile(filepath.Join(dir, "host"), []byte("host"), 0o644))
	must(os.WriteFile(filepath.Join(root, "lib/inside"), []byte("inside"), 0o644))
	must(os.Symlink(fifo, filepath.Join(dir, "to-fifo")))
	must(os.Symlink("/lib/inside", filepath.Join(root, "lib/absolute")))
	must(os.Symlink(filepath.Join(dir, "host"), filepath.Join(root, "lib/out")))
	must(os.Symlink("../../host", filepath.Join(root, "lib/up")))
	must(os.Symlink("/proc/self/root"+filepath.Join(dir, "host"), filepath.Join(root, "lib/proc")))
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	must(err)
	defer unix.Close(watch)
	_, err = unix.InotifyAddWatch(watch, fifo, unix.IN_OPEN)
	must(err)
	for _, name := range []string{fifo, filepath.Join(dir, "to-fifo"), "/dev/null", dir, filepath.Join(dir, "none")} {
		if f := openRegular(name); f != nil {
			t.Errorf("%s is open", name)
		}
	}
	if n, err := unix.Read(watch, make([]byte, 64)); err != unix.EAGAIN {
		t.Errorf("the pipe was opened: %d, %v", n, err)
	}
	for _, name := range []string{"/lib/out", "/lib/up", "/lib/proc", "../host", "/lib"} {
		if f := openInside(root, name); f != nil {
			t.Errorf("%s leads to %s", name, f.Name())
		}
	}
	f := openInside(root, "/lib/absolute")
	if f == nil {
		t.Fatal("a link within is not followed")
	}
	defer f.Close()
	if b, err := io.ReadAll(f); err != nil || string(b) != "inside" {
		t.Errorf("%q, %v", b, err)
	}
}

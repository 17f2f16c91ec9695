package probe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
)

var errBTF = errors.New("the kernel's BTF is cut short or malformed")

// enumConstants finds constants of the kernel's anonymous enums, which
// nothing in BTF's index leads to. It walks the raw types instead of decoding
// them all, which would cost tens of megabytes.
func enumConstants(path string, names ...string) ([]uint32, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the kernel offers no BTF: %w", err)
	}
	return scanEnums(b, names)
}

func scanEnums(b []byte, names []string) ([]uint32, error) {
	le := binary.LittleEndian
	const header = 24
	if len(b) < header || le.Uint16(b) != 0xeb9f {
		return nil, errBTF
	}
	section := func(at int) ([]byte, bool) {
		start := uint64(le.Uint32(b[4:])) + uint64(le.Uint32(b[at:]))
		end := start + uint64(le.Uint32(b[at+4:]))
		if end > uint64(len(b)) {
			return nil, false
		}
		return b[start:end], true
	}
	types, ok1 := section(8)
	strs, ok2 := section(16)
	if !ok1 || !ok2 {
		return nil, errBTF
	}
	wanted := map[uint32]int{} // string offset: index in names
	for i, n := range names {
		at := bytes.Index(strs, []byte("\x00"+n+"\x00"))
		if at < 0 {
			return nil, fmt.Errorf("the kernel's BTF has no constant %s", n)
		}
		wanted[uint32(at+1)] = i
	}
	out, found := make([]uint32, len(names)), 0
	for len(types) >= 12 && found < len(names) {
		info := le.Uint32(types[4:])
		kind, n := info>>24&0x1f, int(info&0xffff)
		extra, ok := btfExtra(kind, n)
		if !ok || len(types) < 12+extra {
			return nil, errBTF
		}
		if kind == 6 {
			for v := types[12 : 12+extra]; len(v) > 0; v = v[8:] {
				if i, ok := wanted[le.Uint32(v)]; ok {
					out[i] = le.Uint32(v[4:])
					found++
				}
			}
		}
		types = types[12+extra:]
	}
	if found < len(names) {
		return nil, fmt.Errorf("the kernel's BTF has no value for one of %v", names)
	}
	return out, nil
}

// btfExtra is how many bytes follow a type's 12 common ones, by kind and
// number of members (uapi/linux/btf.h).
func btfExtra(kind uint32, n int) (int, bool) {
	switch kind {
	case 2, 7, 8, 9, 10, 11, 12, 16, 18: // pointer, forward, typedef, qualifiers, function, float, type tag
		return 0, true
	case 1, 14, 17: // integer, variable, declaration tag
		return 4, true
	case 3: // array
		return 12, true
	case 4, 5, 15, 19: // struct, union, section, 64-bit enum
		return 12 * n, true
	case 6, 13: // enum, function prototype
		return 8 * n, true
	}
	return 0, false
}

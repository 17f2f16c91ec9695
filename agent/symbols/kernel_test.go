package symbols

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const someSymbols = `0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000100 t __helper
ffffffff81000100 T helper
ffffffff81000200 T last
ffffffff81000300 T _etext
ffffffff81000400 D data
ffffffffc0001000 t hook	[some_module]
ffffffff81000180 t between
`

func TestKernelNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kallsyms")
	if err := os.WriteFile(path, []byte(someSymbols), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := KernelAt(path)
	if err != nil {
		t.Fatal(err)
	}
	want := map[uint64]string{
		0xffffffff81000105: "helper",  // the plainer of two names
		0xffffffff8100017f: "helper",  // up to the next
		0xffffffff81000180: "between", // out of order
		0xffffffff810002ff: "last",
		0xffffffffc0001234: "hook [some_module]",
	}
	asked := []uint64{0x10, 0xffffffff80ffffff, 0xffffffff81000301, 0xffffffff81000500, 0xffffffffc0201234, 0xffffffffffffffff}
	for a := range want {
		asked = append(asked, a, a)
	}
	if d := cmp.Diff(want, k.Names(t.Context(), asked)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if got := k.Names(t.Context(), nil); len(got) != 0 {
		t.Errorf("%v", got)
	}
	if name, ok := k.Lookup(0xffffffff81000200); !ok || name != "last" {
		t.Errorf("%q, %v", name, ok)
	}
	if name, ok := k.Lookup(0x10); ok || name != "" {
		t.Errorf("%q, %v", name, ok)
	}
}

func TestHiddenKernelSaysSo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kallsyms")
	if err := os.WriteFile(path, []byte("0000000000000000 T _stext\n0000000000000000 T helper\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := KernelAt(path); !errors.Is(err, ErrHidden) {
		t.Errorf("%v, want hidden", err)
	}
	if _, err := KernelAt(path + "-absent"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, want that it is not there", err)
	}
}

func BenchmarkKernelNames(b *testing.B) {
	k, err := Kernel()
	if err != nil {
		b.Skip(err)
	}
	addrs := make([]uint64, 500)
	for i := range addrs {
		addrs[i] = 0xffffffff81000000 + uint64(i)*4096
	}
	b.ReportAllocs()
	for b.Loop() {
		k.Names(b.Context(), addrs)
	}
}

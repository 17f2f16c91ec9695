package symbols

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func run(t *testing.T, name string, arg ...string) {
	t.Helper()
	if out, err := exec.Command(name, arg...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(arg, " "), err, out)
	}
}

// waiting starts a test program that prints the addresses of two functions
// and waits.
func waiting(t *testing.T, program string) (pid int, hot, cool uint64, end func()) {
	t.Helper()
	cmd := exec.Command(program, "wait")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = in.Close()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(end)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(line, "0x%x 0x%x", &hot, &cool); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return cmd.Process.Pid, hot, cool, end
}

func TestNamesOfRealPrograms(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	cc := "gcc"
	if _, err := exec.LookPath(cc); err != nil {
		cc = "clang-14"
	}
	run(t, cc, "-O2", "-o", at("c-pie"), "-fPIE", "-pie", "testdata/spin.c")
	run(t, cc, "-O2", "-o", at("c-fixed"), "-no-pie", "testdata/spin.c")
	run(t, cc, "-O2", "-s", "-rdynamic", "-o", at("c-dynsym"), "testdata/spin.c")
	run(t, cc, "-O2", "-s", "-o", at("c-stripped"), "testdata/spin.c")
	gobuild := func(name string, arg ...string) {
		run(t, "go", append(append([]string{"build", "-o", at(name)}, arg...), "./testdata/gospin")...)
	}
	gobuild("go")
	gobuild("go-stripped", "-ldflags=-s -w")
	gobuild("go-pie", "-ldflags=-s -w", "-buildmode=pie")
	// Linked by the C linker, code of C comes first.
	gobuild("go-external", "-ldflags=-s -w -linkmode=external")
	gobuild("go-external-pie", "-ldflags=-s -w -linkmode=external", "-buildmode=pie")
	tests := []struct{ program, hot, cool string }{
		{"c-pie", "hot", "cool"},
		{"c-fixed", "hot", "cool"},
		{"c-dynsym", "", "cool"}, // a static function is not exported, and its neighbour's name is not its own
		{"c-stripped", "", ""},
		{"go", "main.hot", "main.cool"},
		{"go-stripped", "main.hot", "main.cool"},
		{"go-pie", "main.hot", "main.cool"},
		{"go-external", "main.hot", "main.cool"},
		{"go-external-pie", "main.hot", "main.cool"},
	}
	for _, tt := range tests {
		t.Run(tt.program, func(t *testing.T) {
			pid, hot, cool, end := waiting(t, at(tt.program))
			files := NewFiles("")
			defer files.Close()
			if err := os.Rename(at(tt.program), at(tt.program)+".old"); err != nil { // replaced while it runs
				t.Fatal(err)
			}
			if err := os.WriteFile(at(tt.program), []byte("#!/bin/false\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(at(tt.program) + ".old"); err != nil { // and deleted
				t.Fatal(err)
			}
			p, err := files.Open(pid)
			if err != nil {
				t.Fatal(err)
			}
			end() // what was seen can be named afterwards
			got := p.Names(t.Context(), []uint64{hot + 4, cool, 1})
			if got[hot+4].Function != tt.hot || got[cool].Function != tt.cool {
				t.Errorf("hot is %+v, cool %+v", got[hot+4], got[cool])
			}
			if module := got[hot+4].Module; !strings.HasPrefix(module, tt.program) || strings.Contains(module, "deleted") {
				t.Errorf("module %q", module)
			}
			if got[hot+4].Go != strings.HasPrefix(tt.program, "go") {
				t.Errorf("%+v", got[hot+4])
			}
			if got[1] != (Frame{}) || len(got) != 3 {
				t.Errorf("address 1 is %+v", got[1])
			}
			if err := p.Refresh(); !errors.Is(err, ErrGone) {
				t.Errorf("refresh after the end: %v", err)
			}
		})
	}
}

func TestVDSO(t *testing.T) {
	files := NewFiles("")
	defer files.Close()
	p, err := files.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	im := ownVDSO()
	if im == nil {
		t.Fatal("no vdso")
	}
	sy, err := im.elf.DynamicSymbols()
	if err != nil || len(sy) == 0 {
		t.Fatal(err)
	}
	for _, m := range p.maps {
		if m.name != vdso {
			continue
		}
		at := m.start + sy[0].Value
		if f := p.Names(t.Context(), []uint64{at})[at]; f.Function == "" || f.Module != vdso {
			t.Errorf("%s is %+v", sy[0].Name, f)
		}
		return
	}
	t.Error("no vdso is mapped")
}

func TestNoSuchProcess(t *testing.T) {
	files := NewFiles("")
	defer files.Close()
	cmd := exec.Command("/bin/true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for _, pid := range []int{cmd.Process.Pid, 1 << 22} {
		if _, err := files.Open(pid); !errors.Is(err, ErrGone) {
			t.Errorf("%d: %v", pid, err)
		}
	}
}

// FuzzImage feeds files that lie: there is no panic and no endless read.
func FuzzImage(f *testing.F) {
	self, err := os.ReadFile("/bin/true")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(self)
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, b []byte) {
		im, err := NewImage(readerAt(b))
		if err != nil {
			return
		}
		im.Address(0x1000)
		im.Names(t.Context(), []uint64{0, 0x1000, 0x401000, 1 << 63})
	})
}

type readerAt []byte

func (b readerAt) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= int64(len(b)) {
		return 0, io.EOF
	}
	n := copy(p, b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

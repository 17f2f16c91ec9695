package probe

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPeer is the other process of the tests below: they run this binary
// again with words after "--". Without them it has nothing to do.
func TestPeer(t *testing.T) {
	if flag.NArg() != 4 {
		return
	}
	// A process may call itself anything.
	if err := os.WriteFile("/proc/self/comm", []byte("pe\xff\xfeer"), 0); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(os.Stdin)
	what, at := flag.Arg(0), sockaddr(flag.Arg(1))
	times, _ := strconv.Atoi(flag.Arg(2))
	size, _ := strconv.Atoi(flag.Arg(3))
	fmt.Println("ready")
	for {
		if _, err := in.ReadString('\n'); err != nil {
			return // the parent is done with it
		}
		for range times {
			if err := peerOnce(what, at, size); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Println("done")
	}
}

func peerOnce(what string, at *unix.SockaddrInet4, size int) error {
	kind := unix.SOCK_STREAM
	if what == "send" {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if what == "send" {
		_ = unix.Sendto(fd, make([]byte, size), 0, at) // a filter refuses it
		return nil
	}
	if err := unix.Connect(fd, at); err != nil {
		return err
	}
	_, err = unix.Write(fd, make([]byte, size))
	return err
}

// peer is a running TestPeer.
type peer struct {
	t    *testing.T
	pid  int
	in   io.WriteCloser
	out  *bufio.Scanner
	wait func() error
}

// peer starts a process in the namespace that connects to an address and
// writes size bytes ("connect"), or sends a datagram ("send"), so many times
// for each go.
func (n *netns) peer(what, addr string, times, size int) *peer {
	n.t.Helper()
	p := &peer{t: n.t}
	n.do(func() {
		cmd := exec.Command(os.Args[0], "-test.run=^TestPeer$", "--", what, addr, strconv.Itoa(times), strconv.Itoa(size))
		cmd.Stderr = n.t.Output()
		p.in, _ = cmd.StdinPipe()
		out, _ := cmd.StdoutPipe()
		p.out = bufio.NewScanner(out)
		p.wait = cmd.Wait
		if err := cmd.Start(); err != nil {
			n.t.Error(err)
			return
		}
		p.pid = cmd.Process.Pid
	})
	if p.pid == 0 {
		n.t.FailNow()
	}
	n.t.Cleanup(p.end)
	p.expect("ready")
	return p
}

func (p *peer) expect(word string) {
	p.t.Helper()
	for p.out.Scan() {
		if p.out.Text() == word {
			return
		}
	}
	p.t.Fatalf("the other process ended before it was %s", word)
}

// act lets it do its work once.
func (p *peer) act() {
	p.t.Helper()
	if _, err := io.WriteString(p.in, "go\n"); err != nil {
		p.t.Fatal(err)
	}
	p.expect("done")
}

func (p *peer) end() {
	_ = p.in.Close()
	for p.out.Scan() {
	}
	_ = p.wait()
}

// group makes a cgroup below a mount, named as a runtime names a container's,
// and returns its path there and the container's id; it goes with the test.
func group(t *testing.T, root string) (name, container string) {
	t.Helper()
	var id [32]byte
	_, _ = rand.Read(id[:])
	container = hex.EncodeToString(id[:])
	dir := root + "/telltale-" + container + ".scope"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		until(t, "the group is empty", func() bool { return os.Remove(dir) == nil })
	})
	return strings.TrimPrefix(dir, root), container
}

func (p *peer) join(root, group string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(root, group, "cgroup.procs"), []byte(strconv.Itoa(p.pid)), 0); err != nil {
		p.t.Fatal(err)
	}
}

// cgroupRoots are the mounts of this machine: by version.
func cgroupRoots(t *testing.T) map[string]string {
	t.Helper()
	const top = "/sys/fs/cgroup"
	roots := map[string]string{}
	for _, dir := range []string{top, top + "/unified"} {
		if _, err := os.Stat(dir + "/cgroup.controllers"); err == nil {
			roots["v2"] = dir
		}
	}
	if _, err := os.Stat(top + "/memory/cgroup.procs"); err == nil {
		roots["v1"] = top + "/memory"
	}
	if len(roots) == 0 {
		t.Skip("no cgroups are mounted here")
	}
	return roots
}

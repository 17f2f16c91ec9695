package probe

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// The tests use bare sockets: the namespace belongs to a thread, and package
// net gives no word on which thread it makes a socket.

func sockaddr(addr string) *unix.SockaddrInet4 {
	ap := netip.MustParseAddrPort(addr)
	return &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}
}

// socket makes a socket that gives up after some seconds.
func (n *netns) socket(kind int) int {
	n.t.Helper()
	var fd int
	var err error
	n.do(func() { fd, err = unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0) })
	if err != nil {
		n.t.Fatal(err)
	}
	limit := unix.NsecToTimeval(int64(10 * time.Second))
	for _, opt := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, opt, &limit); err != nil {
			n.t.Fatal(err)
		}
	}
	n.check(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	return fd
}

func (n *netns) check(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *netns) listen(addr string, backlog int) int {
	n.t.Helper()
	fd := n.socket(unix.SOCK_STREAM)
	n.check(unix.Bind(fd, sockaddr(addr)))
	n.check(unix.Listen(fd, backlog))
	return fd
}

func (n *netns) accept(listener int) int {
	n.t.Helper()
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		n.check(err)
		return fd
	}
}

// connect returns the connected socket.
func (n *netns) connect(addr string) int {
	n.t.Helper()
	fd := n.socket(unix.SOCK_STREAM)
	n.check(unix.Connect(fd, sockaddr(addr)))
	return fd
}

// refused connects where nobody listens.
func (n *netns) refused(addr string) {
	n.t.Helper()
	fd := n.socket(unix.SOCK_STREAM)
	if err := unix.Connect(fd, sockaddr(addr)); !errors.Is(err, unix.ECONNREFUSED) {
		n.t.Fatalf("connect to a closed port: %v", err)
	}
	n.check(unix.Close(fd))
}

// begin starts to connect and does not wait.
func (n *netns) begin(addr string) int {
	n.t.Helper()
	fd := n.socket(unix.SOCK_STREAM)
	n.check(unix.SetNonblock(fd, true))
	if err := unix.Connect(fd, sockaddr(addr)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		n.t.Fatal(err)
	}
	return fd
}

// abort closes a connection with a reset.
func (n *netns) abort(fd int) {
	n.t.Helper()
	n.check(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
	n.check(unix.Close(fd))
}

// stream sends size bytes from one connected socket to another.
func (n *netns) stream(from, to, size int) {
	n.t.Helper()
	sent := make(chan error, 1)
	go func() {
		block := make([]byte, 64<<10)
		for left := size; left > 0; {
			k, err := unix.Write(from, block[:min(left, len(block))])
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				sent <- err
				return
			}
			left -= k
		}
		sent <- nil
	}()
	block := make([]byte, 64<<10)
	for left := size; left > 0; {
		k, err := unix.Read(to, block)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		n.check(err)
		if k == 0 {
			n.t.Fatalf("stream ended with %d bytes missing", left)
		}
		left -= k
	}
	n.check(<-sent)
}

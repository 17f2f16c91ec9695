package load

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Overflow sends datagrams to a socket that is full: the kernel drops each of
// them, and does little else. The result counts datagrams.
func Overflow(length time.Duration) (Rate, error) {
	to, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Rate{}, err
	}
	defer unix.Close(to)
	from, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Rate{}, err
	}
	defer unix.Close(from)
	if err := errors.Join(unix.SetsockoptInt(to, unix.SOL_SOCKET, unix.SO_RCVBUF, 1), unix.Bind(to, loopback(0))); err != nil {
		return Rate{}, err
	}
	at, err := unix.Getsockname(to)
	if err != nil {
		return Rate{}, err
	}
	message := make([]byte, 64)
	var r Rate
	<-OnThread(0, func() {
		r, err = Repeat(length, func() error { return unix.Sendto(from, message, 0, at) })
	})
	return r, err
}

// Resets connects to a port where nobody listens: each attempt is reset. The
// result counts attempts.
func Resets(length time.Duration) (Rate, error) {
	l, port, err := listen()
	if err != nil {
		return Rate{}, err
	}
	unix.Close(l)
	var r Rate
	<-OnThread(0, func() {
		r, err = Repeat(length, func() error {
			if c, err := dial(port); err == nil {
				return errors.Join(unix.Close(c), errors.New("somebody listens"))
			} else if !errors.Is(err, unix.ECONNREFUSED) {
				return err
			}
			return nil
		})
	})
	return r, err
}

// Spin computes; the result counts some thousands of operations as one. Its
// Wall is of all of the time, and CPU of the thread's own.
func Spin(length time.Duration) (Rate, error) {
	var r Rate
	var err error
	<-OnThread(0, func() {
		start := time.Now()
		cpu, e := threadTime()
		sink, n := uint64(1), 0
		for ; time.Since(start) < length; n++ {
			for range 20_000 {
				sink = sink*6364136223846793005 + 1442695040888963407
			}
		}
		used, f := threadTime()
		if err = errors.Join(e, f); sink == 0 {
			err = errors.New("unlikely")
		}
		r = Rate{Wall: float64(n) / time.Since(start).Seconds(), CPU: float64(n) / (used - cpu).Seconds()}
	})
	return r, err
}

func threadTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}

// Lossy is a TCP stream in a network namespace of its own, on whose loopback
// every hundredth segment is dropped.
type Lossy struct {
	work chan func()
}

const (
	lossyPort = 4791
	netLimit  = 10 * time.Second
)

// NewLossy makes the namespace. It needs root and nft. The caller calls Close.
func NewLossy() (*Lossy, error) {
	n := &Lossy{work: make(chan func())}
	ready := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		for _, command := range [][]string{
			{"ip", "link", "set", "lo", "up"},
			{"nft", fmt.Sprintf("add table inet lab; add chain inet lab in { type filter hook input priority 0; }; add rule inet lab in tcp dport %d tcp flags & (syn|fin|rst) == 0 numgen inc mod 100 0 drop", lossyPort)},
		} {
			if err == nil {
				err = inThisNamespace(command)
			}
		}
		ready <- err
		for f := range n.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func inThisNamespace(command []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), netLimit)
	defer cancel()
	if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", command[0], err, out)
	}
	return nil
}

// Close lets the namespace go.
func (n *Lossy) Close() error {
	close(n.work)
	return nil
}

// Stream writes as fast as it can; the result counts writes of 4 KiB.
func (n *Lossy) Stream(length time.Duration) (Rate, error) {
	var l, from int
	done := make(chan error, 1)
	n.work <- func() { // a socket belongs to the namespace it is made in
		done <- func() (err error) {
			if l, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
				return err
			}
			if from, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
				unix.Close(l)
				return err
			}
			return errors.Join(
				unix.SetsockoptInt(l, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(l, loopback(lossyPort)), unix.Listen(l, 4), limit(l),
				limit(from), unix.SetsockoptInt(from, unix.IPPROTO_TCP, unix.TCP_MAXSEG, 1460), retry(func() error { return unix.Connect(from, loopback(lossyPort)) }))
		}()
	}
	if err := <-done; err != nil {
		return Rate{}, fmt.Errorf("lossy stream: %w", err)
	}
	defer unix.Close(l)
	defer unix.Close(from)
	to, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
	if err != nil {
		return Rate{}, err
	}
	read := OnThread(1, func() {
		defer unix.Close(to)
		for b := make([]byte, 256<<10); ; {
			if got, err := unix.Read(to, b); got == 0 || err != nil && !errors.Is(err, unix.EINTR) {
				return
			}
		}
	})
	message := make([]byte, block)
	var r Rate
	<-OnThread(0, func() {
		r, err = Repeat(length, func() error {
			return retry(func() error { _, err := unix.Write(from, message); return err })
		})
	})
	_ = unix.SetsockoptLinger(from, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.Shutdown(from, unix.SHUT_RDWR)
	_ = unix.Shutdown(to, unix.SHUT_RDWR)
	<-read
	return r, err
}

// Package load is the work that programs are measured with: it owns sockets,
// pipes and threads of its own, stays on loopback and ends by itself.
package load

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// The workloads use bare blocking sockets on threads of their own: Go's
// network poller would cost more than what is measured.

func loopback(port int) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
}

// listen returns a listening socket and its port.
func listen() (fd, port int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, 0, fmt.Errorf("socket: %w", err)
	}
	if err := errors.Join(unix.Bind(fd, loopback(0)), unix.Listen(fd, 64), limit(fd)); err != nil {
		unix.Close(fd)
		return -1, 0, fmt.Errorf("listen: %w", err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		unix.Close(fd)
		return -1, 0, fmt.Errorf("listen: %w", err)
	}
	return fd, at.(*unix.SockaddrInet4).Port, nil
}

// limit makes every wait of a socket end.
func limit(fd int) error {
	t := unix.NsecToTimeval(int64(5 * time.Second))
	return errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &t))
}

func dial(port int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	if err := errors.Join(limit(fd), retry(func() error { return unix.Connect(fd, loopback(port)) })); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("connect: %w", err)
	}
	return fd, nil
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// PingPong sends one byte to and fro; the result counts round trips.
func PingPong(length time.Duration) (Rate, error) {
	l, port, err := listen()
	if err != nil {
		return Rate{}, err
	}
	defer unix.Close(l)
	client, err := dial(port)
	if err != nil {
		return Rate{}, err
	}
	server, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
	if err != nil {
		unix.Close(client)
		return Rate{}, fmt.Errorf("accept: %w", err)
	}
	echoed := OnThread(1, func() { defer unix.Close(server); echo(server, server) })
	var r Rate
	<-OnThread(0, func() { r, err = Repeat(length, roundTrip(client, client)) })
	unix.Close(client)
	<-echoed
	return r, err
}

// PipePingPong sends one byte to and fro between two threads on one CPU: each
// round trip is two wake-ups and two switches, the worst case for the process
// module.
func PipePingPong(length time.Duration) (Rate, error) {
	var there, back [2]int
	if err := unix.Pipe2(there[:], unix.O_CLOEXEC); err != nil {
		return Rate{}, fmt.Errorf("pipe: %w", err)
	}
	defer unix.Close(there[0])
	if err := unix.Pipe2(back[:], unix.O_CLOEXEC); err != nil {
		unix.Close(there[1])
		return Rate{}, fmt.Errorf("pipe: %w", err)
	}
	defer unix.Close(back[0])
	echoed := OnThread(0, func() { defer unix.Close(back[1]); echo(there[0], back[1]) })
	var r Rate
	var err error
	<-OnThread(0, func() { r, err = Repeat(length, roundTrip(there[1], back[0])) })
	unix.Close(there[1])
	<-echoed
	return r, err
}

// echo writes what it reads until the other end closes.
func echo(in, out int) {
	b := make([]byte, 1)
	for {
		n, err := unix.Read(in, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		if err := retry(func() error { _, err := unix.Write(out, b); return err }); err != nil {
			return
		}
	}
}

func roundTrip(out, in int) func() error {
	b := [1]byte{}
	return func() error {
		if err := retry(func() error { _, err := unix.Write(out, b[:]); return err }); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		if err := retry(func() error { _, err := unix.Read(in, b[:]); return err }); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		return nil
	}
}

// ConnectClose opens and resets connections, which leaves no TIME_WAIT
// behind; the result counts connections.
func ConnectClose(length time.Duration) (Rate, error) {
	l, port, err := listen()
	if err != nil {
		return Rate{}, err
	}
	defer unix.Close(l)
	var r Rate
	<-OnThread(0, func() { r, err = Repeat(length, connectCloseOnce(l, port)) })
	return r, err
}

func connectCloseOnce(l, port int) func() error {
	return func() error {
		c, err := dial(port)
		if err != nil {
			return err
		}
		s, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
		if err != nil {
			unix.Close(c)
			return fmt.Errorf("accept: %w", err)
		}
		return errors.Join(unix.SetsockoptLinger(c, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}), unix.Close(c), unix.Close(s))
	}
}

// OnThread runs f on a thread of its own, pinned to the n-th CPU that this
// process may use: where the scheduler puts two ends of a ping-pong matters
// far more than what is measured. The thread ends with f.
func OnThread(n int, f func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so that the pinned thread is not used again
		var may, one unix.CPUSet
		if unix.SchedGetaffinity(0, &may) == nil {
			left := n % may.Count()
			for cpu := range 1024 {
				if !may.IsSet(cpu) {
					continue
				}
				if left--; left < 0 {
					one.Set(cpu)
					break
				}
			}
			_ = unix.SchedSetaffinity(0, &one) // unpinned works too, with more noise
		}
		f()
	}()
	return done
}

// Rate is what a workload achieved.
type Rate struct {
	Wall float64 // operations a second in the quicker slices
	CPU  float64 // operations a second of this process's processor time
}

// slice is the piece of a workload that is timed on its own.
const slice = 10 * time.Millisecond

// Repeat calls work for a while. The upper quartile of the slices counts: a
// slice in which another process took the CPU says nothing about the programs.
func Repeat(length time.Duration, work func() error) (Rate, error) {
	cpu, start := processorTime(), time.Now()
	total := 0
	var speeds []float64
	for time.Since(start) < length {
		began, n := time.Now(), 0
		for time.Since(began) < slice {
			for range 16 {
				if err := work(); err != nil {
					return Rate{}, err
				}
			}
			n += 16
		}
		speeds = append(speeds, float64(n)/time.Since(began).Seconds())
		total += n
	}
	slices.Sort(speeds)
	return Rate{speeds[len(speeds)*3/4], float64(total) / (processorTime() - cpu).Seconds()}, nil
}

func processorTime() time.Duration {
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

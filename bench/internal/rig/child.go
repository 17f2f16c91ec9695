package rig

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Child is a process of the product that this one started. It ends with this
// process at the latest.
type Child struct {
	PID   int
	Ended chan struct{} // closed when it has ended

	cmd    *exec.Cmd
	output tail
}

// tail keeps the last piece of what a process says.
type tail struct {
	mu sync.Mutex
	b  bytes.Buffer
}

const tailKept = 8 << 10

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b.Write(p)
	if n := t.b.Len(); n > 2*tailKept {
		t.b.Next(n - tailKept)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// Spawn starts a program with more environment than this process has.
func Spawn(env []string, path string, args ...string) (*Child, error) {
	c := &Child{cmd: exec.Command(path, args...), Ended: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.Stdout, c.cmd.Stderr = &c.output, &c.output
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the kernel ties the child's death signal to this thread
		err := c.cmd.Start()
		started <- err
		if err == nil {
			_ = c.cmd.Wait() // how it ended shows in its output
			close(c.Ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	c.PID = c.cmd.Process.Pid
	return c, nil
}

// Output is the last of what it said.
func (c *Child) Output() string { return c.output.String() }

// Stop ends it as Ctrl-C does; one that does not listen is killed with its group.
func (c *Child) Stop() error {
	_ = c.cmd.Process.Signal(syscall.SIGINT) // fails only when it has ended
	select {
	case <-c.Ended:
		return nil
	case <-time.After(stopTimeout):
		_ = syscall.Kill(-c.PID, syscall.SIGKILL)
		<-c.Ended
		return fmt.Errorf("%s did not stop within %v", c.cmd.Path, stopTimeout)
	}
}

// ports hands out loopback addresses below the range that the kernel gives to
// clients, so that nobody is given one before its server listens.
type ports struct{ next int }

const (
	firstPort = 20_000
	lastPort  = 32_000
)

func (p *ports) free() (string, error) {
	if p.next == 0 {
		p.next = firstPort + os.Getpid()*16%(lastPort-firstPort)
	}
	for range 1000 {
		if p.next++; p.next >= lastPort {
			p.next = firstPort
		}
		addr := fmt.Sprintf("127.0.0.1:%d", p.next)
		if l, err := net.Listen("tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", errors.New("no free port")
}

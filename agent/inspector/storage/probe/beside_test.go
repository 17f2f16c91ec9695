package probe

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// peer is another tracer that runs beside ours.
type peer struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

// beside starts a tracer with tracefs mounted for it alone and waits until it
// says that it looks.
func beside(t *testing.T, ready string, command ...string) *peer {
	t.Helper()
	if _, err := exec.LookPath(command[0]); err != nil {
		t.Fatalf("%v: `make test` installs it", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"-m", "/bin/sh", "-c",
		`mount -t tracefs tracefs /sys/kernel/tracing && mount -t debugfs debugfs /sys/kernel/debug; exec stdbuf -oL "$@"`, "sh"}, command...)...)
	out, in := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &peer{cmd: cmd, lines: bufio.NewScanner(out)}
	go func() {
		_ = cmd.Wait() // how it ends when it is told to does not matter
		in.Close()
	}()
	for p.lines.Scan() {
		if strings.Contains(p.lines.Text(), ready) {
			return p
		}
	}
	t.Fatalf("%s does not start", command[0])
	return nil
}

// end interrupts it and returns what it says. A tracer can miss an interrupt,
// so it gets another one every second.
func (p *peer) end(t *testing.T) string {
	t.Helper()
	if err := p.cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	ended, quiet := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(quiet)
		for again := time.NewTicker(time.Second); ; {
			select {
			case <-again.C:
				_ = p.cmd.Process.Signal(unix.SIGINT) // it may just have ended
			case <-ended:
				again.Stop()
				return
			}
		}
	}()
	defer func() { close(ended); <-quiet }()
	var b strings.Builder
	for p.lines.Scan() {
		b.WriteString(p.lines.Text() + "\n")
	}
	return b.String()
}

// Other tracers at the same tracepoints see the same requests.
func TestBesideOtherTracers(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	dev := diskOf(t, l.name).dev
	bpftrace := beside(t, "ready", "bpftrace", "-e", fmt.Sprintf(
		`BEGIN { printf("ready\n"); } tracepoint:block:block_rq_complete /args->dev == %d/ { @requests = count(); @sectors = sum(args->nr_sector); } tracepoint:block:block_rq_error /args->dev == %d/ { @errors = count(); }`, dev, dev))
	biolatency := beside(t, "Tracing block", "biolatency", "-Q", "-d", l.name)
	r := perform(t, newTasks(t), storage.MonitorDeviceIO, map[string]any{"device": l.name}, func() {
		l.read(t, 123)
		l.write(t, 45)
		if err := os.Truncate(l.file, 0); err != nil {
			t.Fatal(err)
		}
		l.read(t, 7)
	})
	trace, latency := bpftrace.end(t), biolatency.end(t)
	t.Logf("bpftrace:\n%s\nbiolatency:\n%s\ntotals: %v", trace, latency, r.Totals)
	requests := r.Totals["read_requests"] + r.Totals["write_requests"]
	bytes := r.Totals["read_bytes"] + r.Totals["write_bytes"]
	for name, ours := range map[string]uint64{"requests": requests, "sectors": bytes / sectorBytes, "errors": r.Totals["read_errors"]} {
		if theirs := number(t, trace, `@`+name+`: (\d+)`); theirs != ours {
			t.Errorf("%s: bpftrace counts %d, the task %d", name, theirs, ours)
		}
	}
	var theirs uint64
	for _, m := range regexp.MustCompile(`\s+\d+ -> \d+\s+: (\d+)`).FindAllStringSubmatch(latency, -1) {
		n, err := strconv.ParseUint(m[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		theirs += n
	}
	if theirs != requests || requests != 123+45+7 {
		t.Errorf("biolatency counts %d, the task %d", theirs, requests)
	}
}

func number(t *testing.T, s, pattern string) uint64 {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(s)
	if m == nil {
		t.Fatalf("no %s in %q", pattern, s)
	}
	n, err := strconv.ParseUint(m[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

package collectors

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/telltale-dev/telltale/agent/runner"
)

// openAll opens the probe's modules.
func openAll(t testing.TB) []runner.Collector {
	t.Helper()
	return openList(t, List(Config{}, slog.New(slog.DiscardHandler)))
}

func openList(t testing.TB, list []runner.Module) []runner.Collector {
	t.Helper()
	var out []runner.Collector
	for _, m := range list {
		c, err := m.Open()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// Switching modules off and on for ever keeps nothing.
func TestSwitchingLeaksNothing(t *testing.T) {
	rounds := 8
	if n, err := strconv.Atoi(os.Getenv("TELLTALE_TEST_ROUNDS")); err == nil {
		rounds = n
	}
	var files, used []int
	list := List(Config{}, slog.New(slog.DiscardHandler)) // what it shares, it keeps for a while
	for range rounds {
		for _, c := range openList(t, list) {
			if _, err := c.Collect(t.Context(), time.Now()); err != nil {
				t.Error(err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		files, used = append(files, openFiles(t)), append(used, int(m.HeapAlloc>>10))
	}
	last := rounds - 1
	t.Logf("open files %v, heap %v KiB", files, used)
	if files[last] > files[1] {
		t.Errorf("from %d to %d open files", files[1], files[last])
	}
	if used[last] > used[1]+512 {
		t.Errorf("the heap grows from %d to %d KiB", used[1], used[last])
	}
	if n := bpfDescriptors(t); n != 0 {
		t.Errorf("%d BPF descriptors", n)
	}
}

const killedChild = "TELLTALE_TEST_KILLED"

var bpfID = regexp.MustCompile(`(?m)^(prog_id|map_id|link_id):\s+(\d+)$`)

// An agent that is killed leaves nothing in the kernel: no program, map or
// link of it is pinned.
func TestKilledAgentLeavesNothing(t *testing.T) {
	if os.Getenv(killedChild) != "" {
		openAll(t)
		fmt.Println("ready")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // until it is killed
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: it looks for programs by their ids")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^TestKilledAgentLeavesNothing$")
	cmd.Env = append(os.Environ(), killedChild+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || !strings.Contains(line, "ready") {
		t.Fatalf("the child says %q: %v", line, err)
	}
	ids := map[string]uint64{} // "prog_id 12"
	infos, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range infos {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for _, m := range bpfID.FindAllStringSubmatch(string(b), -1) {
			n, err := strconv.ParseUint(m[2], 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			ids[m[1]+" "+m[2]] = n
		}
	}
	if len(ids) < 20 {
		t.Fatalf("the child has %d programs, maps and links", len(ids))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	// The kernel frees them a moment later.
	waitFor(t, "all programs and maps are gone", func() bool {
		for name, id := range ids {
			var err error
			switch {
			case strings.HasPrefix(name, "prog"):
				var p *ebpf.Program
				if p, err = ebpf.NewProgramFromID(ebpf.ProgramID(id)); err == nil {
					p.Close()
				}
			case strings.HasPrefix(name, "map"):
				var m *ebpf.Map
				if m, err = ebpf.NewMapFromID(ebpf.MapID(id)); err == nil {
					m.Close()
				}
			default:
				continue // a link holds its program
			}
			if err == nil {
				return false
			}
			if !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("%s: %v", name, err)
			}
		}
		return true
	})
	t.Logf("%d programs, maps and links are gone", len(ids))
}

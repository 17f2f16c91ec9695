package probe

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"

	"github.com/telltale-dev/telltale/agent/inspector/process"
)

// stormScript makes short-lived processes, each under a name of its own. $1
// is how many.
const stormScript = `echo ready; read go; i=0
while [ $i -lt "$1" ]; do (echo "storm$i" >/proc/self/comm; exit $((i%2))); i=$((i+1)); done
echo done; read end`

// Every one of very many short-lived processes is counted, and none is
// remembered.
func TestStormIsCountedAndNotRemembered(t *testing.T) {
	needRoot(t)
	n := 4000
	if v, err := strconv.Atoi(os.Getenv("TELLTALE_TEST_STORM")); err == nil {
		n = v
	}
	cmd := exec.Command("/bin/sh", "-c", stormScript, "sh", strconv.Itoa(n))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer in.Close()
	out := bufio.NewReader(pipe)
	say := func(word, answer string) {
		t.Helper()
		if word != "" {
			if _, err := io.WriteString(in, word+"\n"); err != nil {
				t.Fatal(err)
			}
		}
		if line, err := out.ReadString('\n'); err != nil || line != answer+"\n" {
			t.Fatalf("the storm says %q: %v", line, err)
		}
	}
	say("", "ready")
	c := start(t, cmd.Process.Pid, Config{})
	first := window(t, c)
	layout := c.shown.layout
	before := heap()
	say("go", "done")
	got := window(t, c)
	after := heap()
	want := map[string]uint64{process.Forks: uint64(n), process.Exits: uint64(n), process.ExitsFailed: uint64(n / 2), process.Execs: 0}
	wantDeltas(t, got, want)
	if len(first) != len(got) || c.shown.layout != layout {
		t.Error("the storm made another layout")
	}
	if after > before+256<<10 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
	t.Logf("%d processes; heap %d to %d KiB", n, before>>10, after>>10)
	fmt.Fprintln(in, "end")
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

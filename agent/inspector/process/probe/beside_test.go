package probe

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
)

// bpftrace samples the same process in the same seconds: the same function is
// on top, with the same share as far as so many samples can tell.
func TestProfileBesideBpftrace(t *testing.T) {
	needRoot(t)
	if _, err := exec.LookPath("bpftrace"); err != nil {
		t.Fatalf("%v: `make test` installs it", err)
	}
	p := spin(t, buildC(t, "beside", "-fno-omit-frame-pointer"), nil)
	script := fmt.Sprintf(`BEGIN { printf("ready\n"); } profile:hz:99 /pid == %d/ { @[ustack(1)] = count(); } interval:s:20 { exit(); }`, p.Pid)
	cmd := exec.CommandContext(t.Context(), "bpftrace", "-e", script)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewScanner(pipe)
	for out.Scan() && out.Text() != "ready" {
	}
	r, err := profile(t, map[string]any{"pid": p.Pid, "duration_s": 3})
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Signal(os.Interrupt)
	var rest bytes.Buffer
	for out.Scan() {
		rest.WriteString(out.Text() + "\n")
	}
	_ = cmd.Wait()
	theirs := map[string]float64{}
	for _, m := range regexp.MustCompile(`@\[\s*(\w+)\+\d+\s*\]: (\d+)`).FindAllStringSubmatch(rest.String(), -1) {
		n, _ := strconv.ParseFloat(m[2], 64)
		theirs[m[1]] += n
	}
	n, ours := theirs["hot"]+theirs["cool"], top(r, "hot")
	if n < 40 {
		t.Fatalf("bpftrace says\n%s", rest.String())
	}
	mine := float64(ours.Self) / float64(ours.Self+top(r, "cool").Self)
	noise := 4 * math.Sqrt(0.75*0.25*(1/n+1/float64(r.Profile.Samples)))
	t.Logf("hot: bpftrace %.3f of %.0f samples, we %.3f of %d; noise %.3f", theirs["hot"]/n, n, mine, r.Profile.Samples, noise)
	if theirs["hot"] <= theirs["cool"] || r.Profile.Top[0].Function != "hot" || math.Abs(theirs["hot"]/n-mine) > noise {
		t.Errorf("bpftrace %v, we %+v", theirs, r.Profile.Top)
	}
}

package probe

import (
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// unprivileged names the variable that marks the child process below.
const unprivileged = "TELLTALE_TEST_UNPRIVILEGED"

// An ordinary user gets what /proc has, each signal saying so. As root the
// test runs itself again as another user.
func TestWithoutPrivileges(t *testing.T) {
	if os.Getenv(unprivileged) == "" && os.Geteuid() == 0 {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestWithoutPrivileges$", "-test.v")
		cmd.Env = append(os.Environ(), unprivileged+"=1")
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestWithoutPrivileges") {
			t.Fatalf("as an ordinary user: %v\n%s", err, out)
		}
		return
	}
	c, err := New(Config{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, cp := range c.Capabilities() {
		want := inspector.Capability{Level: inspector.Off}
		if _, ok := fallbacks[cp.Signal]; ok {
			want = inspector.Capability{Level: inspector.Degraded, Source: inspector.SourceProc}
		}
		if cp.Level != want.Level || cp.Source != want.Source || !strings.Contains(cp.Reason, "CAP_") {
			t.Errorf("%+v", cp)
		}
	}
	here := &netns{t: t, work: make(chan func())}
	go func() {
		for f := range here.work {
			f()
		}
	}()
	defer close(here.work)
	fd := here.socket(unix.SOCK_STREAM)
	_ = unix.Connect(fd, sockaddr("127.0.0.1:1")) // refused or not, it is an attempt
	here.check(unix.Close(fd))
	windows, err := c.Collect(t.Context(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w := windows[0]
	value := func(s inspector.Series) inspector.Value { return w.Values[w.Layout.Find(s)] }
	if v := value(inspector.Series{Metric: "network.tcp_active_opens"}); !v.OK || v.Delta == 0 {
		t.Errorf("active opens from /proc: %+v", v)
	}
	if v := value(inspector.Series{Metric: "network.tcp_closes"}); v.OK {
		t.Errorf("/proc does not count closes, and yet: %+v", v)
	}
	lo := []inspector.Label{{Key: "interface", Value: "lo"}}
	if v := value(inspector.Series{Metric: "network.if_rx_bytes", Labels: lo}); !v.OK {
		t.Errorf("loopback traffic from /proc: %+v", v)
	}
}

func TestDisabledSignalsDoNotFallBack(t *testing.T) {
	c := &Collector{off: map[string]string{network.Opens: "off"}, signals: []string{network.Opens}}
	if cp := c.Capabilities()[0]; cp.Level != inspector.Off || cp.Source != inspector.SourceNone {
		t.Errorf("%+v", cp)
	}
}

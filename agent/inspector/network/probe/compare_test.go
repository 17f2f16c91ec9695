package probe

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// peerTool is a running bpftrace. It sees the whole machine, so that its
// programs look for addresses and ports of the lab only.
type peerTool struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
}

// bpftrace runs a program until stop. The tracepoints need tracefs, which is
// mounted in a namespace of its own.
func bpftrace(t *testing.T, program string) *peerTool {
	t.Helper()
	needRoot(t)
	path, err := exec.LookPath("bpftrace")
	if err != nil {
		t.Fatal("bpftrace is missing: deploy/deps.sh test installs it")
	}
	const mount = `mount -t tracefs none /sys/kernel/tracing && exec "$0" -e "$1"`
	p := &peerTool{t: t, cmd: exec.Command("unshare", "-m", "sh", "-c", mount, path, program), lines: make(chan string, 1000)}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = p.cmd.Stdout
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() })
	go func() {
		defer close(p.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			select {
			case p.lines <- in.Text():
			default: // more than anybody reads
			}
		}
	}()
	return p
}

// awaken stirs until the program says ready.
func (p *peerTool) awaken(stir func()) {
	p.t.Helper()
	until(p.t, "bpftrace sees the lab", func() bool {
		stir()
		for {
			select {
			case line, open := <-p.lines:
				if !open {
					p.t.Fatal("bpftrace ended")
				}
				if line == "ready" {
					return true
				}
				p.t.Log(line)
			default:
				return false
			}
		}
	})
}

var counted = regexp.MustCompile(`^@(\w+): (\d+)$`)

// stop ends it and returns what it counted. bpftrace can miss an interrupt, so
// it gets another one every second.
func (p *peerTool) stop() map[string]uint64 {
	p.t.Helper()
	late := time.After(30 * time.Second)
	again := time.NewTicker(time.Second)
	defer again.Stop()
	interrupt := func() {
		if err := p.cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
			p.t.Fatal(err)
		}
	}
	interrupt()
	counts := map[string]uint64{}
	for {
		select {
		case line, open := <-p.lines:
			if !open {
				return counts
			}
			if m := counted.FindStringSubmatch(line); m != nil {
				counts[m[1]], _ = strconv.ParseUint(m[2], 10, 64)
			} else {
				p.t.Log(line)
			}
		case <-again.C:
			interrupt()
		case <-late:
			p.t.Fatal("bpftrace does not end")
		}
	}
}

// The same packets, counted by bpftrace in the same run.
func TestDropsEqualBpftrace(t *testing.T) {
	n := newNetns(t)
	n.run("nft", "add table inet lab; add chain inet lab in { type filter hook input priority 0; }; add rule inet lab in udp dport 7777 counter drop")
	// 127.91.7.1 is the lab's, 127.91.7.2 says hello.
	tool := bpftrace(t, `tracepoint:skb:kfree_skb {
		$skb = (struct sk_buff *)args->skbaddr;
		$ip = (struct iphdr *)($skb->head + $skb->network_header);
		if ($ip->daddr == 0x01075b7f && $ip->protocol == 17) { @drops = count(); }
		if ($ip->daddr == 0x02075b7f && $ip->protocol == 17) { printf("ready\n"); }
	}`)
	fd := n.socket(unix.SOCK_DGRAM)
	send := func(host, times int) {
		for range times {
			n.check(unix.Sendto(fd, []byte("x"), 0, sockaddr(fmt.Sprintf("127.91.7.%d:7777", host))))
		}
	}
	tool.awaken(func() { send(2, 1) })
	task := start(t, Config{}, network.TraceDrops, map[string]any{"address": "127.91.7.1"})
	const packets = 5000
	send(1, packets)
	r, theirs := task.end(), tool.stop()
	if r.Totals["packets"] != packets || theirs["drops"] != packets {
		t.Errorf("%d packets: we counted %d, bpftrace %d", packets, r.Totals["packets"], theirs["drops"])
	}
	n.check(unix.Close(fd))
}

func TestRetransmitsEqualBpftrace(t *testing.T) {
	a, b := newNetns(t), newNetns(t)
	join(a, b)
	b.run("nft", "add table inet lab; add chain inet lab in { type filter hook input priority 0; }; "+
		"add rule inet lab in tcp dport 61741 tcp flags & (syn|fin) == 0 numgen inc mod 50 0 counter drop; add rule inet lab in tcp dport 61742 drop")
	facts, err := readFacts(Config{Proc: "/proc", Sys: "/sys"})
	a.check(err)
	sent := ""
	if facts.retransmitErr { // attempts that never left pass there too
		sent = " && args->err != -11 && args->err != -12 && args->err != -16 && args->err != -22 && args->err != -113"
	}
	tool := bpftrace(t, `tracepoint:tcp:tcp_retransmit_skb {
		if (args->dport == 61741`+sent+`) { @events = count(); }
		if (args->dport == 61742) { printf("ready\n"); }
	}`)
	l := b.listen("10.99.0.2:61741", 1)
	from := a.connect("10.99.0.2:61741")
	to := b.accept(l)
	var hello []int
	tool.awaken(func() {
		if len(hello) < 20 {
			hello = append(hello, a.begin("10.99.0.2:61742")) // sent again after a second
		}
	})
	for _, fd := range hello {
		a.check(unix.Close(fd))
	}
	task := start(t, Config{}, network.TraceRetransmits, map[string]any{"port": 61741})
	a.stream(from, to, 16<<20)
	for _, fd := range []int{from, to, l} {
		a.check(unix.Close(fd))
	}
	var last uint64
	until(t, "the connection is over", func() bool {
		now := a.fields()["Tcp.RetransSegs"]
		quiet := now == last && a.fields()["Tcp.CurrEstab"] == 0
		last = now
		return quiet
	})
	r, theirs := task.end(), tool.stop()
	if r.Totals["events"] == 0 || r.Totals["events"] != theirs["events"] {
		t.Errorf("we counted %d events, bpftrace %d", r.Totals["events"], theirs["events"])
	}
	t.Logf("%d events both, %d segments", r.Totals["events"], r.Totals["segments"])
}

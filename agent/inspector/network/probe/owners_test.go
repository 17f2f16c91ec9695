package probe

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"testing"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// badName is what the other process calls itself, made safe to show.
const badName = "pe\uFFFD\\xff\uFFFD\\xfeer"

// Packets and connections of one process or cgroup, of version 1 and 2, are
// told from all others, in a network namespace that is not the agent's.
func TestTasksTellOwnersApart(t *testing.T) {
	roots := cgroupRoots(t)
	for version, root := range roots {
		t.Run(version, func(t *testing.T) {
			n := newNetns(t)
			n.run("nft", "add table inet lab; add chain inet lab out { type filter hook output priority 0; }; add rule inet lab out udp dport 7777 counter drop")
			l := n.listen("127.0.0.1:7001", 512)
			inside, outside := n.peer("send", "127.0.0.1:7777", 40, 10), n.peer("send", "127.0.0.1:7777", 25, 10)
			caller, stranger := n.peer("connect", "127.0.0.1:7001", 12, 1000), n.peer("connect", "127.0.0.1:7001", 9, 1000)
			name, container := group(t, root)
			for _, p := range []*peer{inside, caller} {
				t.Cleanup(p.end) // before the group can go
				p.join(root, name)
			}
			cfg := Config{Netns: n.inode}
			refs := []map[string]any{{"cgroup": name}, {"cgroup": root + name}, {"cgroup": fmt.Sprint(mustInode(t, root+name))}, {"container": container[:12]}}
			var drops, opens []*runningTask
			for _, ref := range refs {
				drops = append(drops, start(t, cfg, network.TraceDrops, maps.Clone(ref)))
				opens = append(opens, start(t, cfg, network.MonitorTCP, maps.Clone(ref)))
			}
			drops = append(drops, start(t, cfg, network.TraceDrops, map[string]any{"pid": inside.pid}))
			opens = append(opens, start(t, cfg, network.MonitorTCP, map[string]any{"pid": caller.pid}))
			all := start(t, cfg, network.TraceDrops, map[string]any{"port": 7777})
			for _, p := range []*peer{inside, outside, caller, stranger} {
				p.act()
			}
			if got := n.filtered(); got != 65 {
				t.Fatalf("the lab failed: %d packets filtered", got)
			}
			if got := sum(all.end(), nil); got != 65 {
				t.Errorf("%d drops in all, the filter counted 65", got)
			}
			for i, task := range drops {
				r := task.end()
				want := map[string]string{"pid": strconv.Itoa(inside.pid), "process": badName, "reason": "NETFILTER_DROP"}
				if i < len(refs) {
					want["cgroup"] = name
				}
				if r.Totals["packets"] != 40 || sum(r, want) != 40 {
					show(t, r)
					t.Errorf("task %d: %v, want 40 of %v", i, r.Totals, want)
				}
				if _, err := json.Marshal(r); err != nil {
					t.Error(err)
				}
			}
			for i, task := range opens {
				r := task.end()
				want := map[string]string{"pid": strconv.Itoa(caller.pid), "process": badName, "direction": "out", "remote": "127.0.0.1", "port": "7001"}
				if r.Totals["active_opens"] != 12 || r.Totals["passive_opens"] != 0 || len(rowsWith(r, want)) != 1 || rowsWith(r, want)[0].Values["opened"] != 12 {
					show(t, r)
					t.Errorf("task %d: %v, want 12 opens of %v", i, r.Totals, want)
				}
			}
			for range 21 {
				n.accept(l)
			}
		})
	}
}

func mustInode(t *testing.T, dir string) uint32 {
	t.Helper()
	ino, err := netnsInode(dir)
	if err != nil {
		t.Fatal(err)
	}
	return ino
}

func show(t *testing.T, r *inspector.TaskResult) {
	t.Helper()
	b, _ := json.MarshalIndent(r, "", " ")
	t.Logf("%.4000s", b)
}

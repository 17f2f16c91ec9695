package probe

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

func everything() map[string]bool {
	on := map[string]bool{}
	for s := range needs {
		on[s] = true
	}
	return on
}

func valuesOf(o *rows) map[string]inspector.Value {
	layout, values := o.close(nil)
	out := map[string]inspector.Value{}
	for i, s := range layout.Series {
		out[s.String()] = values[i]
	}
	return out
}

func TestManyRowsFoldIntoOther(t *testing.T) {
	from := &reading{drops: map[dropRow]uint64{}, interfaces: map[ifaceKey]iface{}}
	to := &reading{drops: map[dropRow]uint64{}, interfaces: map[ifaceKey]iface{}}
	const many = 1000
	for i := range many {
		to.drops[dropRow{reason: fmt.Sprintf("R%d", i)}] = uint64(many - i)
		to.interfaces[ifaceKey{index: uint32(i + 1)}] = iface{name: fmt.Sprintf("v%d", i), traffic: traffic{rxBytes: uint64(many - i), rxPackets: 1}}
	}
	o := increase(from, to, everything(), newChoices(), time.Now())
	layout, _ := o.close(nil)
	if err := layout.Check(); err != nil {
		t.Fatal(err)
	}
	if len(layout.Series) > 250 {
		t.Errorf("%d series; the bound does not hold", len(layout.Series))
	}
	got := valuesOf(o)
	var drops, bytes uint64
	for s, v := range got {
		if strings.HasPrefix(s, "network.drops{") {
			drops += v.Delta
		}
		if strings.HasPrefix(s, "network.if_rx_bytes{") {
			bytes += v.Delta
		}
	}
	const total = many * (many + 1) / 2
	if drops != total || bytes != total || got["network.packets_dropped"].Delta != total || got["network.rx_bytes"].Delta != total {
		t.Errorf("folding lost something: drops %d, bytes %d of %d", drops, bytes, total)
	}
	if o.truncated != 2*(many-maxRows) {
		t.Errorf("truncated %d, want %d", o.truncated, 2*(many-maxRows))
	}
}

func TestLayoutStaysWhileSeriesDo(t *testing.T) {
	r := &reading{counters: map[string]uint64{}, interfaces: map[ifaceKey]iface{{index: 1}: {name: "lo", traffic: traffic{rxBytes: 1}}}, drops: map[dropRow]uint64{}}
	chosen, now := newChoices(), time.Now()
	first, _ := increase(r, r, everything(), chosen, now).close(nil)
	second, _ := increase(r, r, everything(), chosen, now).close(first)
	if first != second {
		t.Error("the same series made another layout")
	}
	r.interfaces[ifaceKey{index: 2}] = iface{name: "eth0"}
	third, _ := increase(r, r, everything(), chosen, now).close(second)
	if third == second {
		t.Error("a new interface did not make another layout")
	}
}

func TestCountersThatWentBackAreUnknown(t *testing.T) {
	from := &reading{counters: map[string]uint64{"network.tcp_resets_out": 1_000_000}, interfaces: map[ifaceKey]iface{{name: "eth0"}: {name: "eth0", traffic: traffic{rxBytes: 9}}}}
	to := &reading{counters: map[string]uint64{"network.tcp_resets_out": 5}, interfaces: map[ifaceKey]iface{{name: "eth0"}: {name: "eth0", traffic: traffic{rxBytes: 3}}, {name: "wg0"}: {name: "wg0", traffic: traffic{rxBytes: 1 << 40}}}}
	got := valuesOf(increase(from, to, everything(), newChoices(), time.Now()))
	for _, s := range []string{"network.tcp_resets_out", `network.if_rx_bytes{interface="eth0"}`, `network.if_rx_bytes{interface="wg0"}`} {
		if v, ok := got[s]; !ok || v.OK {
			t.Errorf("%s = %+v, want an unknown value", s, v)
		}
	}
	if v := got["network.rx_bytes"]; v.Delta != 0 {
		t.Errorf("an interface's past was charged: %+v", v)
	}
}

// Every series a window can hold is announced by the component's words.
func TestSeriesMatchTheWords(t *testing.T) {
	var words inspector.Registry
	network.Register(&words)
	r := &reading{
		drops:      map[dropRow]uint64{{reason: "NO_SOCKET", benign: true}: 1, {reason: "NOT_SPECIFIED", location: "f"}: 1},
		interfaces: map[ifaceKey]iface{{index: 1}: {name: "lo", traffic: traffic{rxBytes: 1}}},
	}
	layout, _ := increase(r, r, everything(), newChoices(), time.Now()).close(nil)
	seen := map[string]bool{}
	for _, s := range layout.Series {
		m, ok := words.Metric(s.Metric)
		if !ok || m.Kind != s.Kind || m.Unit != s.Unit {
			t.Errorf("%s is not what the words say: %+v", s, m)
		}
		for _, l := range s.Labels {
			if !strings.Contains(strings.Join(m.Labels, " "), l.Key) {
				t.Errorf("%s has a label that its words do not announce", s)
			}
		}
		seen[s.Metric] = true
	}
	c, _ := words.Component(network.Name)
	for _, m := range c.Metrics {
		if !seen[m.Name] {
			t.Errorf("no window holds %s", m.Name)
		}
	}
	for _, s := range c.Signals {
		if len(needs[s]) == 0 {
			t.Errorf("signal %s has no program", s)
		}
	}
}

func TestPlaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kallsyms")
	list := "ffffffff81000000 T _text\nffffffff81000100 t tcp_v4_rcv\nffffffff81000200 t mod_fn\t[nf_tables]\n"
	if err := os.WriteFile(path, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	p := places{path: path}
	p.resolve([]uint64{0xffffffff81000150, 0xffffffff81000200, 0x10})
	for a, want := range map[uint64]string{0xffffffff81000150: "tcp_v4_rcv", 0xffffffff81000200: "mod_fn [nf_tables]", 0x10: "unknown"} {
		if got := p.name(a); got != want {
			t.Errorf("%x is %q, want %q", a, got, want)
		}
	}
	if err := os.WriteFile(path, []byte("0000000000000000 T _text\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p = places{path: path}
	if p.resolve([]uint64{5}); !p.hidden || p.name(5) != "unknown" {
		t.Error("a list of zeros counts as readable")
	}
}

// smallBTF is one integer and one anonymous enum {ONE = 1, TWO = 7}.
func smallBTF() []byte {
	strs := "\x00int\x00ONE\x00TWO\x00"
	var types []byte
	for _, v := range []uint32{1, 1 << 24, 4, 0, 0, 6<<24 | 2, 4, 5, 1, 9, 7} {
		types = binary.LittleEndian.AppendUint32(types, v)
	}
	b := []byte{0x9f, 0xeb, 1, 0}
	for _, v := range []int{24, 0, len(types), len(types), len(strs)} {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return append(append(b, types...), strs...)
}

func TestScanEnums(t *testing.T) {
	got, err := scanEnums(smallBTF(), []string{"TWO", "ONE"})
	if d := cmp.Diff([]uint32{7, 1}, got); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	if _, err := scanEnums(smallBTF(), []string{"THREE"}); err == nil {
		t.Error("a constant that is not there was found")
	}
	if _, err := scanEnums(smallBTF()[:30], []string{"ONE"}); err == nil {
		t.Error("a cut-off file was accepted")
	}
}

package probe

import (
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector/network"
)

func TestReadSavedProc(t *testing.T) {
	all := map[string]bool{}
	for s := range fallbacks {
		all[s] = true
	}
	r := &reading{counters: map[string]uint64{}}
	if err := (procFiles{root: "testdata/proc"}).read(all, r); err != nil {
		t.Fatal(err)
	}
	want := map[string]uint64{
		"network.tcp_active_opens":       98,
		"network.tcp_passive_opens":      9221939555730002819,
		"network.tcp_failed_opens":       3,
		"network.tcp_established_resets": 4,
		"network.tcp_resets_out":         94,
		"network.retransmit_segments":    17,
		"network.listen_overflows":       5,
		"network.listen_drops":           6,
	}
	if d := cmp.Diff(want, r.counters); d != "" {
		t.Errorf("counters (-want +got):\n%s", d)
	}
	if r.established == nil || *r.established != 2 {
		t.Errorf("established: %v", r.established)
	}
	if got := r.drops[dropRow{reason: "NO_SOCKET"}]; got != 12+30 {
		t.Errorf("NO_SOCKET from UDP and UDP over IPv6: %d, want 42", got)
	}
	wantIf := map[ifaceKey]iface{
		{name: "lo"}:     {name: "lo", traffic: traffic{rxBytes: 100, rxPackets: 2, txBytes: 100, txPackets: 2}},
		{name: "eth0:1"}: {name: "eth0:1", traffic: traffic{rxBytes: 18446744073709551615, rxPackets: 3, txBytes: 7, txPackets: 4}},
	}
	if d := cmp.Diff(wantIf, r.interfaces, cmp.AllowUnexported(ifaceKey{}, iface{}, traffic{})); d != "" {
		t.Errorf("interfaces (-want +got):\n%s", d)
	}
}

func TestMissingProcIsUnknownNotZero(t *testing.T) {
	r := &reading{counters: map[string]uint64{}}
	err := procFiles{root: t.TempDir()}.read(map[string]bool{network.Opens: true, network.Drops: true}, r)
	if err == nil {
		t.Error("no error for a /proc that is not there")
	}
	o := increase(r, r, map[string]bool{network.Opens: true, network.Drops: true, network.Interfaces: true}, newChoices(), time.Now())
	for i, v := range o.values {
		if v.OK {
			t.Errorf("%s is known: %+v", o.series[i], v)
		}
	}
}

func FuzzParsePairs(f *testing.F) {
	for _, name := range []string{"snmp", "netstat", "dev"} {
		b, err := os.ReadFile("testdata/proc/net/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		parsePairs(b, map[string]uint64{})
		parseSNMP6(b, map[string]uint64{})
		parseDev(b, map[ifaceKey]iface{})
	})
}

func FuzzScanEnums(f *testing.F) {
	f.Add(smallBTF())
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = scanEnums(b, []string{"ONE", "TWO"})
	})
}

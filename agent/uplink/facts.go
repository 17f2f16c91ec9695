package uplink

import (
	"os"
	"runtime"
	"strings"

	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// Facts says what this machine is. An empty field is not known.
type Facts struct {
	MachineID    string // /etc/machine-id
	BootID       string // changes with every boot
	Hostname     string
	Kernel       string // release, as uname -r
	OS           string // "Debian GNU/Linux 12 (bookworm)"
	Arch         string // as GOARCH
	AgentVersion string
}

// ReadFacts asks the running machine. version is the agent's own.
func ReadFacts(version string) Facts {
	f := Facts{
		MachineID: firstLine("/etc/machine-id"), BootID: firstLine("/proc/sys/kernel/random/boot_id"),
		Kernel: firstLine("/proc/sys/kernel/osrelease"), OS: runtime.GOOS, Arch: runtime.GOARCH, AgentVersion: version,
	}
	if f.MachineID == "" {
		f.MachineID = firstLine("/var/lib/dbus/machine-id")
	}
	f.Hostname, _ = os.Hostname()
	raw, _ := os.ReadFile("/etc/os-release")
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			f.OS = strings.Trim(v, `"'`)
		}
	}
	return f
}

func firstLine(path string) string {
	raw, _ := os.ReadFile(path)
	line, _, _ := strings.Cut(string(raw), "\n")
	return strings.TrimSpace(line)
}

// Proto is the wire form.
func (f Facts) Proto() *pb.NodeFacts {
	return &pb.NodeFacts{
		MachineId: []byte(f.MachineID), BootId: []byte(f.BootID), Hostname: []byte(f.Hostname),
		Kernel: []byte(f.Kernel), Os: []byte(f.OS), Arch: []byte(f.Arch), AgentVersion: []byte(f.AgentVersion),
	}
}

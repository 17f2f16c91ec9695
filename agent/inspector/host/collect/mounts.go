package collect

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// maxMounts is how many filesystems are asked and reported.
const maxMounts = 64

// mount is one line of mountinfo (proc_pid_mountinfo(5)).
type mount struct {
	id     uint64 // unique in the kernel while mounted
	device string // major:minor, the same for every mount of one filesystem
	point  string // mount point, escapes undone
	fstype string
	source string
}

// pseudo lists the filesystems that hold no data of their own, or that a look
// would wake (autofs). Whatever else appears, fuse included, counts as a disk.
var pseudo = []string{
	"autofs", "binder", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devfs", "devpts", "devtmpfs",
	"efivarfs", "fuse.gvfsd-fuse", "fuse.lxcfs", "fuse.portal", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore",
	"ramfs", "rootfs", "rpc_pipefs", "securityfs", "selinuxfs", "squashfs", "sysfs", "tmpfs", "tracefs", "udev",
}

// parseMounts reads mountinfo. Lines that it does not understand are passed
// over and counted.
func parseMounts(text string) (out []mount, bad int) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		sep := slices.Index(f, "-")
		if sep < 6 || len(f) < sep+3 {
			bad++
			continue
		}
		id, err := strconv.ParseUint(f[0], 10, 64)
		if err != nil {
			bad++
			continue
		}
		out = append(out, mount{id: id, device: f[2], point: unescape(f[4]), fstype: f[sep+1], source: unescape(f[sep+2])})
	}
	return out, bad
}

// disksOf picks the mounts to ask: of stacked mounts on one point the last,
// which hides the others; of several mounts of one filesystem the one with
// the shortest point. left counts those beyond maxMounts.
func disksOf(all []mount) (out []mount, left int) {
	top := map[string]uint64{}
	for _, m := range all {
		top[m.point] = m.id
	}
	best := map[string]int{}
	for _, m := range all {
		if top[m.point] != m.id || slices.Contains(pseudo, m.fstype) || m.fstype == "overlay" && m.point != "/" {
			continue
		}
		key := m.device + "\x00" + m.source
		if i, ok := best[key]; ok {
			if len(m.point) < len(out[i].point) {
				out[i] = m
			}
			continue
		}
		best[key] = len(out)
		out = append(out, m)
	}
	slices.SortStableFunc(out, func(a, b mount) int { return strings.Compare(a.point, b.point) })
	if len(out) > maxMounts {
		left = len(out) - maxMounts
		out = out[:maxMounts]
	}
	return out, left
}

// unescape undoes the octal escapes of mountinfo, for example \040.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// virtual reports whether a file of /proc is a container's own view: lxcfs
// mounts its version over it.
func (c *Collector) virtual(file string) bool {
	point := filepath.Join("/proc", file)
	return slices.ContainsFunc(c.mounts, func(m mount) bool {
		return m.point == point && strings.HasPrefix(m.fstype, "fuse")
	})
}

// contained reports whether the agent runs in a container, by the marks that
// the usual container managers leave.
func (c *Collector) contained() bool {
	for _, mark := range []string{"/run/systemd/container", "/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Lstat(c.cfg.Root + mark); err == nil {
			return true
		}
	}
	return false
}

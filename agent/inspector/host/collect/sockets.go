package collect

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/host"
)

func (c *Collector) readSockets(context.Context, span) (string, error) {
	text, err := c.read("net/sockstat")
	if err != nil {
		return "", err
	}
	v4 := parseSockstat(text)
	used, ok := v4["sockets"]["used"]
	if !ok {
		return "", errors.New("/proc/net/sockstat has no count of sockets")
	}
	c.gauge(host.SocketsUsed, inspector.Count, float64(used), true)
	put := func(metric, proto, key string, unit inspector.Unit, scale float64, labels ...string) {
		v, ok := v4[proto][key]
		c.gauge(metric, unit, float64(v)*scale, ok, labels...)
	}
	inUse := func(kinds ...string) {
		for _, k := range kinds {
			put(host.SocketsInUse, strings.ToUpper(k), "inuse", inspector.Count, 1, host.LabelKind, k)
		}
	}
	inUse("tcp", "udp", "udplite", "raw")
	put(host.TCPOrphans, "TCP", "orphan", inspector.Count, 1)
	put(host.TCPTimeWait, "TCP", "tw", inspector.Count, 1)
	page := float64(os.Getpagesize())
	put(host.SocketMemory, "TCP", "mem", inspector.Bytes, page, host.LabelKind, "tcp")
	put(host.SocketMemory, "UDP", "mem", inspector.Bytes, page, host.LabelKind, "udp")

	text, err = c.read("net/sockstat6")
	if err != nil { // a kernel without IPv6 has none: absent, not 0
		if errors.Is(err, os.ErrNotExist) {
			return "IPv4 only: the kernel has no IPv6", nil
		}
		return "IPv6 sockets are unknown: " + err.Error(), errDegraded
	}
	for k, v := range parseSockstat(text) {
		v4[k] = v
	}
	inUse("tcp6", "udp6", "raw6")
	return "", nil
}

// parseSockstat reads lines such as "TCP: inuse 5 orphan 0 tw 3 alloc 7 mem 1".
func parseSockstat(text string) map[string]map[string]uint64 {
	out := map[string]map[string]uint64{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 3 {
			continue
		}
		row := map[string]uint64{}
		for i := 1; i+1 < len(f); i += 2 {
			if v, err := strconv.ParseUint(f[i+1], 10, 64); err == nil {
				row[f[i]] = v
			}
		}
		out[strings.TrimSuffix(f[0], ":")] = row
	}
	return out
}

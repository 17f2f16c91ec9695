package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/telltale-dev/telltale/agent/cgroups"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// Labels of the tasks' rows and samples.
const (
	labelRow       = "row" // what a row is about, where a result has several
	labelDevice    = "device"
	labelOperation = "operation"
	labelProcess   = "process"
	labelPid       = "pid"
	labelThread    = "thread"
	labelBy        = "by" // "process", "kernel", "unknown"
	labelCgroup    = "cgroup"
	labelCgroupID  = "cgroup_id"
)

// namer turns the kernel's ids into words.
type namer struct {
	names *cgroups.Names
	v1    bool // the blkio controller is on version 1
}

func newNamer(sys string) *namer {
	_, err := os.Stat(filepath.Join(sys, "fs/cgroup/blkio"))
	return &namer{names: cgroups.NewNames(sys), v1: err == nil}
}

// cgroup puts the label of a group: its path, or its id where it has none.
func (n *namer) cgroup(labels map[string]string, hierarchy uint8, id uint64) {
	if id == 0 {
		return
	}
	var path string
	switch {
	case hierarchy == 2:
		path = n.names.V1("memory", id)
	case hierarchy == 0 && n.v1:
		path = n.names.V1("blkio", id)
	default:
		path = n.names.Name(id)
	}
	if path != "" {
		labels[labelCgroup] = path
	} else {
		labels[labelCgroupID] = strconv.FormatUint(id, 10)
	}
}

// maker puts the labels that say whose a request is.
func (n *namer) maker(labels map[string]string, origin uint8, pid uint32, name []byte) {
	switch origin {
	case originProcess:
		labels[labelBy], labels[labelProcess] = "process", comm(name)
		if pid != 0 { // a process outside the agent's PID namespace has no number there
			labels[labelPid] = strconv.FormatUint(uint64(pid), 10)
		}
	case originKernel:
		labels[labelBy], labels[labelProcess] = "kernel", comm(name)
	default:
		labels[labelBy] = "unknown"
	}
}

// top puts the groups into the result, the greatest first.
func (t *tracer) top(r *inspector.TaskResult, s *seen, n *namer, row string, most int) {
	order := make([]int, len(s.groups))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := &s.groups[a].T, &s.groups[b].T
		if x.Requests != y.Requests {
			return cmpUint(y.Requests, x.Requests)
		}
		return cmpUint(y.SumNs, x.SumNs)
	})
	for at, i := range order {
		k, g := &s.keys[i], &s.groups[i]
		if at >= most {
			r.OtherRows++
			r.OtherCount += g.T.Requests
			continue
		}
		labels := map[string]string{labelDevice: text(g.Disk[:]), labelOperation: storage.Operations[k.Op&3]}
		if row != "" {
			labels[labelRow] = row
		}
		n.maker(labels, k.Origin, k.Tgid, g.Comm[:])
		n.cgroup(labels, k.Hierarchy, k.Cgroup)
		r.Rows = append(r.Rows, inspector.ResultRow{Labels: labels, Count: g.T.Requests, Values: g.T.values()})
	}
	r.OtherCount += s.counts[countUngrouped]
}

func cmpUint(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// samples puts the slowest records in, oldest first; only after the reader
// has ended.
func (t *tracer) samples(r *inspector.TaskResult, n *namer) {
	slices.SortFunc(t.slowest, func(a, b traceRecord) int { return cmpUint(a.At, b.At) })
	for i := range t.slowest {
		e := &t.slowest[i]
		labels := map[string]string{labelDevice: text(e.Disk[:]), labelOperation: storage.Operations[e.Op&3]}
		n.maker(labels, e.Origin, e.Tgid, e.Comm[:])
		n.cgroup(labels, e.Hierarchy, e.Cgroup)
		if e.Origin == originProcess && e.Tid != e.Tgid {
			labels[labelThread] = strconv.FormatUint(uint64(e.Tid), 10)
		}
		if e.Status != 0 {
			labels[storage.LabelErrno] = errnoOf(e.Status)
		}
		v := map[string]float64{"bytes": float64(e.Bytes)}
		if e.Latency > 0 {
			v["latency_ms"] = ms(time.Duration(e.Latency))
		}
		if e.Sector != ^uint64(0) {
			v["sector"] = float64(e.Sector)
		}
		r.Samples = append(r.Samples, inspector.ResultSample{At: t.timeOf(e.At), Labels: labels, Values: v})
	}
	r.Truncated += t.read - uint64(len(t.slowest))
}

// account puts in what is the same for every task: the loss and its meaning.
func (t *tracer) account(r *inspector.TaskResult, s *seen) {
	r.From, r.To = t.began, s.at
	r.Truncated += s.counts[countBeyond]
	r.Unknown = s.counts[countNobodys]
	r.Lost = s.counts[countLost] + t.missed
	if t.wanted.every > 1 {
		r.SampleRate = uint64(t.wanted.every)
	}
	note := func(n uint64, format string) {
		if n > 0 {
			r.Notes = append(r.Notes, fmt.Sprintf(format, n))
		}
	}
	note(s.counts[countLost], "%d single records found no room on their way; the counts are complete.")
	if t.wanted.narrow() {
		r.Lost += s.counts[countUnnoted]
	}
	note(s.counts[countUnnoted], "%d requests could not be followed to whose they are: more than 8192 were under way at once.")
	note(s.counts[countUngrouped], "%d requests are in the totals and in no row: there was room for 1024 rows.")
	note(s.counts[countUntimed], "%d requests have no known latency: they were made before the task began, with accounting (queue/iostats) off.")
	if !t.owners {
		r.Notes = append(r.Notes, "This kernel does not tell who makes a request (no block_io_start): processes are unknown.")
	}
	if slices.ContainsFunc(s.keys, func(k traceGroupKey) bool { return k.Origin == originKernel }) {
		r.Notes = append(r.Notes, "Rows by kernel are sent by kernel threads, mostly buffered writes of earlier; which process wrote them is not known, the cgroup may be.")
	}
}

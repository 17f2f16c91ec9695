package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
)

// Slots of the kernel's counts, as in trace.bpf.c.
const (
	countReached = iota
	countSampled
	countLost
	countBeyond
	countUngrouped
	countUnnoted
	countUntimed
	countNobodys
	countUnderWay
	countMostUnderWay
	counts
)

// Origins of a request, as in trace.bpf.c.
const (
	originUnknown = iota
	originProcess
	originKernel
)

// wanted is what a tracer looks at; zero values ask for everything.
type wanted struct {
	device    disk
	process   process
	blkio     uint64 // cgroup ids
	v2        uint64
	memory    uint64
	op        int // index of storage.Operations; -1: all
	threshold time.Duration
	byProcess bool // flushes belong to the process that asked
	every     uint32
	most      uint32
}

// narrow says that requests whose maker is not known are left out.
func (w wanted) narrow() bool { return w.process.pid != 0 || w.blkio|w.v2|w.memory != 0 }

// tracer is the loaded programs of one task.
type tracer struct {
	wanted wanted
	set    *bpfload.Set
	counts *ebpf.Map
	all    *ebpf.Map
	groups *ebpf.Map
	ring   *ebpf.Map
	owners bool // who made a request is known
	clock  time.Duration
	began  time.Time
	missed uint64

	// The reader's, until it has ended.
	read    uint64
	slowest []traceRecord
}

// openTracer loads the programs. A kernel that refuses them gives a *Refusal.
func openTracer(kernel *bpfload.Kernel, w wanted, ringBytes, pidns uint32, log *slog.Logger) (*tracer, error) {
	spec, err := loadTrace()
	if err != nil {
		return nil, fmt.Errorf("read the tracing programs: %w", err)
	}
	op := uint32(0xff)
	if w.op >= 0 {
		op = uint32(w.op)
	}
	byProcess := uint32(0)
	if w.byProcess {
		byProcess = 1
	}
	for name, v := range map[string]any{
		traceVarOwnPidns: pidns,
		traceVarWantDev:  w.device.dev, traceVarWantPart: w.device.part,
		traceVarWantTgid: w.process.pid, traceVarWantBorn: w.process.born,
		traceVarWantIo: w.blkio, traceVarWantV2: w.v2, traceVarWantMem: w.memory,
		traceVarWantOp: op, traceVarThresholdNs: uint64(w.threshold), traceVarByProcess: byProcess,
		traceVarSampleEvery: w.every, traceVarMaxSamples: w.most,
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	if ringBytes > 0 {
		spec.Maps[traceMapRing].MaxEntries = ringBytes
	}
	t := &tracer{wanted: w}
	// Ends before makings: no noted request is left without its end.
	t.set = kernel.Open(spec, []bpfload.Program{{Name: traceProgRqDone}, {Name: traceProgRqMerged}, {Name: traceProgRqMade}}, nil, log)
	needed := []string{traceProgRqDone}
	if w.narrow() {
		needed = append(needed, traceProgRqMade)
	}
	for _, p := range needed {
		if f := t.set.Failure(p); f != nil {
			_ = t.set.Close()
			return nil, off(f)
		}
	}
	t.owners = t.set.Running(traceProgRqMade)
	t.counts, t.all, t.groups, t.ring = t.set.Map(traceMapCounts), t.set.Map(traceMapAll), t.set.Map(traceMapGroups), t.set.Map(traceMapRing)
	t.clock, t.began = clockOffset(), time.Now()
	return t, nil
}

// off is the refusal for a program that does not run.
func off(f *bpfload.Failure) *inspector.Refusal {
	return &inspector.Refusal{Kind: "FAILED_PRECONDITION", Reason: inspector.ReasonFeatureOff, Msg: f.Reason,
		Next: "get_node tells what runs on this node; storage metrics may still answer"}
}

// clockOffset is what to add to the kernel's monotonic clock for the time of
// day.
func clockOffset() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return time.Duration(time.Now().UnixNano() - ts.Nano())
}

func (t *tracer) timeOf(ktime uint64) time.Time {
	return time.Unix(0, int64(ktime)+int64(t.clock))
}

// records reads the ring until ctx ends, and keeps the slowest.
func (t *tracer) records(ctx context.Context) error {
	return bpfload.ReadRing(ctx, t.ring, func(raw []byte) {
		if len(raw) < int(unsafe.Sizeof(traceRecord{})) {
			return
		}
		t.read++
		r := *(*traceRecord)(unsafe.Pointer(&raw[0]))
		if len(t.slowest) < inspector.MaxResultSamples {
			t.slowest = append(t.slowest, r)
			return
		}
		least := 0
		for i := range t.slowest {
			if t.slowest[i].Latency < t.slowest[least].Latency {
				least = i
			}
		}
		if r.Latency > t.slowest[least].Latency {
			t.slowest[least] = r
		}
	})
}

// detach stops the programs; what they counted stays.
func (t *tracer) detach() error {
	costs, err := t.set.Costs()
	for _, c := range costs {
		t.missed += c.Missed
	}
	for _, p := range []string{traceProgRqMade, traceProgRqMerged, traceProgRqDone} {
		err = errors.Join(err, t.set.Detach(p, "the task is over"))
	}
	return err
}

// seen is what the kernel has counted so far.
type seen struct {
	at     time.Time
	counts [counts]uint64
	all    [4]traceTotals
	groups []traceGroup
	keys   []traceGroupKey // parallel to groups
}

func (t *tracer) look() (*seen, error) {
	s := &seen{at: time.Now()}
	for i := range s.counts {
		if err := t.counts.Lookup(uint32(i), &s.counts[i]); err != nil {
			return nil, fmt.Errorf("read counts: %w", err)
		}
	}
	for i := range s.all {
		if err := t.all.Lookup(uint32(i), &s.all[i]); err != nil {
			return nil, fmt.Errorf("read totals: %w", err)
		}
	}
	var key traceGroupKey
	var g traceGroup
	it := t.groups.Iterate()
	for it.Next(&key, &g) {
		s.keys, s.groups = append(s.keys, key), append(s.groups, g)
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read groups: %w", err)
	}
	return s, nil
}

// text is a name from the kernel, fit to show.
func text(raw []byte) string {
	raw, _, _ = bytes.Cut(raw, []byte{0})
	s, _ := inspector.CleanLabel(strings.ReplaceAll(string(raw), "/", "!"))
	return s
}

// comm keeps slashes: kworker/0:1.
func comm(raw []byte) string {
	raw, _, _ = bytes.Cut(raw, []byte{0})
	s, _ := inspector.CleanLabel(string(raw))
	return s
}

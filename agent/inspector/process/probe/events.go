package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
)

// eventLoss is the kind that every probe reports for sightings it lost.
const eventLoss = "event_loss"

// Kinds of a record, as in events.bpf.c.
const (
	recordCrash = 1
	recordOOM   = 2
)

// tally is how often the counts of what came without a record are read.
const tally = time.Second

// watcher tells what the module's own ring reports, and which programs are
// new. It owns its programs and its goroutines, from open to close.
type watcher struct {
	set      *bpfload.Set
	programs map[string][]string // by signal
	emit     func(inspector.Occurrence)
	log      *slog.Logger
	proc     string

	stop context.CancelFunc
	done sync.WaitGroup

	fresh *deploys

	mu   sync.Mutex
	told eventsGate // what of the counts has been told
}

// openWatcher loads the programs and starts to read. prepare changes what is
// loaded, for tests; it may be nil.
func openWatcher(cfg Config, onlyParent int, prepare func(*eventsSizes), log *slog.Logger) (*watcher, error) {
	sizes := eventsSizes{recordsASecond: 100, settled: settled}
	if prepare != nil {
		prepare(&sizes)
	}
	spec, err := loadEvents()
	if err != nil {
		return nil, fmt.Errorf("read the event programs: %w", err)
	}
	for name, v := range map[string]any{
		eventsVarPidNamespace: pidNamespace(cfg.Proc), eventsVarOnlyParent: int32(onlyParent), eventsVarRecordsA_second: sizes.recordsASecond,
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	if sizes.ringBytes > 0 {
		spec.Maps[eventsMapEvents].MaxEntries = sizes.ringBytes
	}
	end := eventsProgOnEnd
	if !exitTellsLast(cfg.Kernel) {
		end = eventsProgOnEndLive
	}
	w := &watcher{emit: cfg.Emit, log: log, proc: cfg.Proc, programs: map[string][]string{
		process.SignalExit:    {eventsProgOnSignal, end},
		process.SignalOOMKill: {eventsProgOnVictim},
		process.SignalExec:    {eventsProgOnProgram, eventsProgOnChild, end},
	}}
	w.load(spec, cfg, sizes, log)
	ring := w.set.Map(eventsMapEvents)
	if ring == nil {
		return w, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	w.done.Go(func() {
		if err := bpfload.ReadRing(ctx, ring, w.event); err != nil {
			log.Error("process events are no longer read", "error", err)
		}
	})
	if w.set.Running(w.programs[process.SignalExec]...) {
		w.fresh = newDeploys(cfg, w.set.Map(eventsMapFresh), sizes.settled, log)
	}
	w.done.Go(func() { w.count(ctx) })
	return w, nil
}

// close unloads the programs, tells what is left and waits for the readers.
func (w *watcher) close() error {
	var errs []error
	for _, names := range w.programs {
		for _, p := range names {
			errs = append(errs, w.set.Detach(p, "the module is closed"))
		}
	}
	if w.stop != nil {
		w.stop()
		w.done.Wait()
		w.tally(time.Now())
	}
	return errors.Join(append(errs, w.set.Close())...)
}

// degrade lowers a signal that works but makes no events. A nil watcher was
// not asked for any.
func (w *watcher) degrade(cp *inspector.Capability) {
	if w == nil || cp.Level != inspector.Full {
		return
	}
	for _, p := range w.programs[cp.Signal] {
		if f := w.set.Failure(p); f != nil {
			cp.Level, cp.Reason = inspector.Degraded, "no events: "+f.Reason
			return
		}
	}
}

// count tells once a second what the records do not, and looks at the
// programs that have run long enough.
func (w *watcher) count(ctx context.Context) {
	if w.fresh != nil {
		w.fresh.begin(ctx, w.emit)
	}
	every := time.NewTicker(tally)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			if w.fresh != nil {
				w.fresh.save()
			}
			return
		case now := <-every.C:
			w.tally(now)
			if w.fresh != nil {
				w.fresh.look(now, w.emit)
			}
		}
	}
}

// tally tells what was lost since the last time.
func (w *watcher) tally(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var g eventsGate
	if err := w.set.Map(eventsMapGates).Lookup(uint32(0), &g); err != nil {
		w.log.Debug("process events: counts cannot be read", "error", err)
		return
	}
	lost := g.Lost - w.told.Lost + g.FreshLost - w.told.FreshLost
	w.told = g
	if lost > 0 {
		w.emit(inspector.Occurrence{Kind: eventLoss, At: now, Labels: map[string]string{"component": process.Name}, Count: lost})
	}
}

// event tells one record.
func (w *watcher) event(raw []byte) {
	if len(raw) < int(unsafe.Sizeof(eventsEvent{})) {
		return
	}
	e := (*eventsEvent)(unsafe.Pointer(&raw[0]))
	at, begun := sinceBoot(e.At), sinceBoot(e.Start)
	comm := text(e.Comm[:])
	exe := pathOf(e.Exe.Parts, e.Exe.Cut, func(i uint32) []byte { return e.Exe.Part[i%uint32(len(e.Exe.Part))][:] })
	cgroup := pathOf(e.CgroupParts, e.CgroupCut, func(i uint32) []byte { return e.Cgroup[i%uint32(len(e.Cgroup))][:] })
	s := &inspector.EventSample{At: at, Labels: map[string]string{
		process.LabelComm: comm, process.LabelCgroup: cgroup, "started": begun.UTC().Format(time.RFC3339Nano),
	}, Values: map[string]float64{"alive_s": (time.Duration(e.At - e.Start)).Seconds()}}
	put := func(key, value string) {
		if value != "" {
			s.Labels[key] = value
		}
	}
	put(process.LabelExe, exe)
	if e.Pid > 0 {
		s.Labels["pid"] = strconv.Itoa(int(e.Pid))
	}
	if e.Ppid > 0 {
		s.Labels["ppid"] = strconv.Itoa(int(e.Ppid))
	}
	o := inspector.Occurrence{At: at, Sample: s, Labels: map[string]string{process.LabelComm: comm, process.LabelCgroup: cgroup}}
	switch e.Kind {
	case recordOOM:
		o.Kind = process.OOMKill
		if page := float64(os.Getpagesize()); e.Limit != ^uint64(0) {
			s.Values["limit_bytes"], s.Values["usage_bytes"] = float64(e.Limit)*page, float64(e.Usage)*page
		}
	case recordCrash:
		o.Kind = process.ProcessCrash
		signal := int(e.Code & 0x7f)
		o.Labels[process.LabelSignal], s.Labels[process.LabelSignal] = signalName(signal), signalName(signal)
		if exe != "" { // one trouble, whatever its threads are called
			delete(o.Labels, process.LabelComm)
			o.Labels[process.LabelExe] = exe
		}
		s.Labels["core"] = strconv.FormatBool(e.Code&0x80 != 0)
		s.Values["exit_code"] = float64(e.Code)
		if e.HasInfo != 0 {
			s.Labels["cause"] = signalCause(signal, e.SiCode)
			if e.SiCode > 0 && e.SiCode != 0x80 {
				s.Labels["address"] = "0x" + strconv.FormatUint(e.Address, 16)
			}
		}
	default:
		return
	}
	w.emit(o)
}

// pathOf puts a path together from its names, the last one first. A name or
// path that had no room is marked.
func pathOf(n, cut uint32, part func(uint32) []byte) string {
	if n == 0 {
		if cut != 0 {
			return ""
		}
		return "/"
	}
	b := make([]byte, 0, 128)
	for i := int(n) - 1; i >= 0 && n <= 64; i-- {
		b = append(b, '/')
		b = append(b, unix.ByteSliceToString(part(uint32(i)))...)
	}
	path := string(b)
	if cut != 0 {
		path = "…" + path
	}
	// The end of a path tells more than its begin.
	if len(path) > inspector.MaxLabelBytes {
		path = "…" + path[len(path)-inspector.MaxLabelBytes+len("…"):]
	}
	path, _ = inspector.CleanLabel(path)
	return path
}

// text is a name as the kernel keeps it: bytes, cut where it pleases.
func text(b []byte) string {
	s, _ := inspector.CleanLabel(unix.ByteSliceToString(b))
	return s
}

// sinceBoot turns the boot clock's time into the wall clock's.
func sinceBoot(ns uint64) time.Time {
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return time.Now()
	}
	return time.Now().Add(time.Duration(int64(ns) - boot.Nano()))
}

package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// SlowIO is the time from which a request is an event of its own, unless
// Config says otherwise. A healthy disk, also a spinning one under load, stays
// far below; a drive that repeats reads of a bad sector, a throttled volume
// and a path that fails over are above, and all of them before a driver's own
// limit of some 30 s.
const SlowIO = 500 * time.Millisecond

// eventLoss is the kind that every probe reports for sightings it lost.
const eventLoss = "event_loss"

// Kinds of a gate, as in events.bpf.c.
const gateSlow = 0

// tally is how often the gates are read for what came without a record.
const tally = time.Second

// gateIdle is how long a gate stays without a sighting.
const gateIdle = 60 * time.Second

// watcher tells what the module's own ring reports. It owns its programs and
// one goroutine, from open to close.
type watcher struct {
	set     *bpfload.Set
	gates   *ebpf.Map
	ungated *ebpf.Map
	ring    *ebpf.Map
	emit    func(inspector.Occurrence)
	namer   *namer
	clock   time.Duration
	log     *slog.Logger

	stop context.CancelFunc
	done sync.WaitGroup

	mu     sync.Mutex
	told   map[eventsGateKey]told
	unseen uint64 // of ungated: reported
	missed uint64 // runs for errors that the kernel skipped: reported
}

// told is what of one gate's counts has been reported.
type told struct{ held, lost uint64 }

var eventPrograms = []bpfload.Program{{Name: eventsProgRqSlow}, {Name: eventsProgRqFailed}}

// openWatcher loads the programs and starts to read. ringBytes and gates are
// the sizes of the maps, 0 for the usual.
func openWatcher(cfg Config, ringBytes, gates uint32, log *slog.Logger) (*watcher, error) {
	spec, err := loadEvents()
	if err != nil {
		return nil, fmt.Errorf("read the event programs: %w", err)
	}
	threshold := cfg.SlowIO
	if threshold == 0 {
		threshold = SlowIO
	}
	if err := spec.Variables[eventsVarSlowNs].Set(uint64(threshold)); err != nil {
		return nil, err
	}
	if ringBytes > 0 {
		spec.Maps[eventsMapEvents].MaxEntries = ringBytes
	}
	if gates > 0 {
		spec.Maps[eventsMapGates].MaxEntries = gates
	}
	disable := map[string]string{}
	for _, signal := range cfg.Disable {
		disable[eventProgramOf[signal]] = switchedOff
	}
	w := &watcher{emit: cfg.Emit, namer: newNamer(cfg.Sys), clock: clockOffset(), log: log, told: map[eventsGateKey]told{}}
	w.set = cfg.Kernel.Open(spec, eventPrograms, disable, log)
	w.gates, w.ungated, w.ring = w.set.Map(eventsMapGates), w.set.Map(eventsMapUngated), w.set.Map(eventsMapEvents)
	if w.ring == nil {
		return w, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	w.done.Go(func() {
		if err := bpfload.ReadRing(ctx, w.ring, w.event); err != nil {
			log.Error("storage events are no longer read", "error", err)
		}
	})
	w.done.Go(func() { w.count(ctx) })
	return w, nil
}

// eventProgramOf says which program an event needs, by signal.
var eventProgramOf = map[string]string{
	storage.SignalLatency: eventsProgRqSlow,
	storage.SignalErrors:  eventsProgRqFailed,
}

// degrade lowers a signal that works but makes no events. A nil watcher was
// not asked for any.
func (w *watcher) degrade(cp *inspector.Capability) {
	program, ok := eventProgramOf[cp.Signal]
	if w == nil || !ok || cp.Level != inspector.Full {
		return
	}
	if f := w.set.Failure(program); f != nil {
		cp.Level, cp.Reason = inspector.Degraded, "no events: "+f.Reason
	}
}

// costs lists what the programs have cost.
func (w *watcher) costs() ([]bpfload.Cost, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.set.Costs()
}

// close unloads the programs, tells what is left and waits for the readers.
func (w *watcher) close() error {
	w.tally(time.Now()) // while the kernel still tells of skipped runs
	var err error
	w.mu.Lock()
	for _, p := range eventPrograms {
		err = errors.Join(err, w.set.Detach(p.Name, "the module is closed"))
	}
	w.mu.Unlock()
	if w.stop != nil {
		w.stop()
		w.done.Wait()
		w.tally(time.Now())
	}
	return errors.Join(err, w.set.Close())
}

func (w *watcher) count(ctx context.Context) {
	every := time.NewTicker(tally)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-every.C:
			w.tally(now)
		}
	}
}

// event tells one record.
func (w *watcher) event(raw []byte) {
	if len(raw) < int(unsafe.Sizeof(eventsEvent{})) {
		return
	}
	e := *(*eventsEvent)(unsafe.Pointer(&raw[0]))
	w.mu.Lock()
	defer w.mu.Unlock()
	o := occurrence(e.Gate, e.Disk[:], w.timeOf(e.At), 1)
	s := &inspector.EventSample{At: o.At, Values: map[string]float64{"bytes": float64(e.Bytes)},
		Labels: map[string]string{labelDevice: o.Labels[storage.LabelDevice], labelOperation: o.Labels[storage.LabelOp]}}
	if e.Sector != ^uint64(0) {
		s.Values["sector"] = float64(e.Sector)
	}
	if e.Timed != 0 {
		s.Values["latency_ms"] = ms(time.Duration(e.Latency))
	}
	w.namer.cgroup(s.Labels, 0, e.Cgroup)
	o.Sample = s
	w.emit(o)
}

func (w *watcher) timeOf(ktime uint64) time.Time { return time.Unix(0, int64(ktime)+int64(w.clock)) }

// tally tells what the gates counted beyond their records, and what was lost.
func (w *watcher) tally(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gates == nil {
		return
	}
	var idle []eventsGateKey
	var key eventsGateKey
	var g eventsGate
	var lost uint64
	it := w.gates.Iterate()
	for it.Next(&key, &g) {
		lost += w.settle(key, &g, now)
		if now.Sub(w.timeOf(g.Window)) > gateIdle {
			idle = append(idle, key)
		}
	}
	if err := it.Err(); err != nil {
		w.log.Debug("storage events: gates cannot be read", "error", err)
	}
	for _, k := range idle {
		lost += w.forget(k, now)
	}
	var ungated uint64
	if err := w.ungated.Lookup(uint32(0), &ungated); err == nil {
		lost += ungated - w.unseen
		w.unseen = ungated
	}
	// Each run of this program is an error; one that is interrupted by another
	// error on the same CPU is skipped.
	costs, err := w.set.Costs()
	if err != nil {
		w.log.Debug("storage events: skipped runs cannot be read", "error", err)
	}
	for _, c := range costs {
		if c.Program == eventsProgRqFailed && c.Missed > w.missed {
			lost += c.Missed - w.missed
			w.missed = c.Missed
		}
	}
	if lost > 0 {
		w.emit(inspector.Occurrence{Kind: eventLoss, At: now, Labels: map[string]string{"component": storage.Name}, Count: lost})
	}
}

// settle tells what a gate held back and returns what it lost.
func (w *watcher) settle(key eventsGateKey, g *eventsGate, now time.Time) (lost uint64) {
	t := w.told[key]
	w.told[key] = told{g.Held, g.Lost}
	if n := g.Held - t.held; n > 0 {
		w.emit(occurrence(key, g.Disk[:], now, n))
	}
	return g.Lost - t.lost
}

// forget gives an idle gate's place back.
func (w *watcher) forget(key eventsGateKey, now time.Time) (lost uint64) {
	var g eventsGate
	if err := w.gates.LookupAndDelete(key, &g); err != nil {
		return 0
	}
	lost = w.settle(key, &g, now)
	delete(w.told, key)
	return lost
}

func occurrence(key eventsGateKey, disk []byte, at time.Time, n uint64) inspector.Occurrence {
	o := inspector.Occurrence{Kind: storage.SlowIO, At: at, Count: n, Labels: map[string]string{
		storage.LabelDevice: text(disk), storage.LabelOp: storage.Operations[key.Op&3]}}
	if key.Kind != gateSlow {
		o.Kind = storage.IOError
		o.Labels[storage.LabelErrno] = errnoOf(key.Status)
	}
	return o
}

// errnos are the errors of the kernel's blk_status_t (block/blk-core.c).
var errnos = map[uint8]string{
	1: "EOPNOTSUPP", 2: "ETIMEDOUT", 3: "ENOSPC", 4: "ENOLINK", 5: "EREMOTEIO", 6: "EBADE", 7: "ENODATA", 8: "EILSEQ", 9: "ENOMEM", 10: "EIO",
	11: "EREMCHG", 12: "EAGAIN", 13: "EBUSY", 14: "ETOOMANYREFS", 15: "EOVERFLOW", 16: "ENODEV", 17: "ETIME", 19: "EINVAL",
}

func errnoOf(status uint8) string {
	if name, ok := errnos[status]; ok {
		return name
	}
	return "status_" + strconv.Itoa(int(status))
}

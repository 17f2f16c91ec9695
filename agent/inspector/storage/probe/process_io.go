package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strconv"
	"unsafe"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// account reads one process's I/O account, all threads at one go.
type account struct{ set *bpfload.Set }

func openAccount(kernel *bpfload.Kernel, pid, pidns uint32, log *slog.Logger) (*account, error) {
	spec, err := loadAccount()
	if err != nil {
		return nil, fmt.Errorf("read the accounting program: %w", err)
	}
	if err := errors.Join(spec.Variables[accountVarWantTgid].Set(pid), spec.Variables[accountVarOwnPidns].Set(pidns)); err != nil {
		return nil, err
	}
	a := &account{set: kernel.Open(spec, []bpfload.Program{{Name: accountProgEachThread, Attach: bpfload.Iterator}}, nil, log)}
	if f := a.set.Failure(accountProgEachThread); f != nil {
		_ = a.set.Close()
		return nil, off(f)
	}
	return a, nil
}

// read lists the process's threads; none when it is gone.
func (a *account) read() ([]accountThread, error) {
	it, err := a.set.Iterate(accountProgEachThread)
	if err != nil {
		return nil, err
	}
	defer it.Close()
	raw, err := io.ReadAll(it)
	if err != nil {
		return nil, fmt.Errorf("read the process's account: %w", err)
	}
	var out []accountThread
	size := int(unsafe.Sizeof(accountThread{}))
	for len(raw) >= size {
		var t accountThread
		if err := binary.Read(bytes.NewReader(raw[:size]), binary.NativeEndian, &t); err != nil {
			return nil, err
		}
		out, raw = append(out, t), raw[size:]
	}
	return out, nil
}

// clockTick is /proc's unit of start times in nanoseconds.
const clockTick = 10_000_000

// ledger is the increase of a process's account since its first reading.
type ledger struct {
	first   map[uint32]accountThread // by thread
	threads []accountThread          // the last reading
	left    accountSums              // of threads and children that ended, when the process was first read
	ended   bool
}

// enter takes in a reading; one that shows another process, or none, ends the
// ledger with what it had.
func (l *ledger) enter(p process, threads []accountThread) {
	same := slices.ContainsFunc(threads, func(t accountThread) bool { return t.ProcessBorn/clockTick == p.born })
	if !same || l.ended {
		l.ended = true
		return
	}
	if l.first == nil {
		l.first, l.left = map[uint32]accountThread{}, threads[0].Left
		for _, t := range threads {
			l.first[t.Tid] = t
		}
	}
	l.threads = threads
}

// increases returns each living thread's increase, and that of what ended.
func (l *ledger) increases() (threads []accountThread, ended accountSums) {
	if len(l.threads) == 0 {
		return nil, ended
	}
	ended = l.threads[0].Left
	ended.minus(&l.left)
	lives := map[uint32]bool{}
	for _, t := range l.threads {
		if old, ok := l.first[t.Tid]; ok && old.Born == t.Born {
			t.Own.minus(&old.Own)
			lives[t.Tid] = true
		}
		threads = append(threads, t)
	}
	for tid, old := range l.first {
		if !lives[tid] { // what it had before the task went along
			ended.minus(&old.Own)
		}
	}
	return threads, ended
}

func (s *accountSums) minus(o *accountSums) {
	for _, f := range [...][2]*uint64{{&s.Rchar, &o.Rchar}, {&s.Wchar, &o.Wchar}, {&s.Syscr, &o.Syscr}, {&s.Syscw, &o.Syscw},
		{&s.ReadBytes, &o.ReadBytes}, {&s.WriteBytes, &o.WriteBytes}, {&s.Cancelled, &o.Cancelled}} {
		*f[0] -= min(*f[0], *f[1])
	}
}

func (s *accountSums) plus(o *accountSums) {
	s.Rchar += o.Rchar
	s.Wchar += o.Wchar
	s.Syscr += o.Syscr
	s.Syscw += o.Syscw
	s.ReadBytes += o.ReadBytes
	s.WriteBytes += o.WriteBytes
	s.Cancelled += o.Cancelled
}

func (s *accountSums) values() map[string]float64 {
	return map[string]float64{
		"read_bytes": float64(s.ReadBytes), "write_bytes": float64(s.WriteBytes), "cancelled_write_bytes": float64(s.Cancelled),
		"read_chars": float64(s.Rchar), "write_chars": float64(s.Wchar), "read_syscalls": float64(s.Syscr), "write_syscalls": float64(s.Syscw),
	}
}

// threadRows and requestRows share the rows of a process's result.
const (
	threadRows  = inspector.MaxResultRows/2 - 1
	requestRows = inspector.MaxResultRows / 2
)

// processIO does monitor_process_io.
func (t *tasks) processIO(ctx context.Context, args inspector.Args, partial func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
	if err := t.allowed(storage.SignalRequests); err != nil {
		return nil, err
	}
	w := sampling(args)
	w.byProcess = true
	var err error
	if w.process, err = findProcess(t.cfg.Proc, args.Int(storage.ArgPid)); err != nil {
		return nil, err
	}
	acc, err := openAccount(t.cfg.Kernel, w.process.pid, pidNamespace(t.cfg.Proc), t.log)
	if err != nil {
		return nil, err
	}
	defer acc.set.Close()
	tr, err := openTracer(t.cfg.Kernel, w, t.ring, pidNamespace(t.cfg.Proc), t.log)
	if err != nil {
		return nil, err
	}
	book := &ledger{}
	look := func() error {
		threads, err := acc.read()
		if err == nil {
			book.enter(w.process, threads)
		}
		return err
	}
	if err := look(); err != nil || book.ended {
		_ = tr.set.Close()
		if err == nil {
			err = gone(int64(w.process.pid), fs.ErrNotExist)
		}
		return nil, err
	}
	n := newNamer(t.cfg.Sys)
	var blind error
	r, err := t.watch(ctx, tr, args, partial, func(s *seen, final bool) *inspector.TaskResult {
		if final {
			blind = look()
		}
		return t.processResult(tr, book, s, n, final)
	}, func() bool { blind = look(); return book.ended || blind != nil })
	return r, errors.Join(err, blind)
}

func (t *tasks) processResult(tr *tracer, book *ledger, s *seen, n *namer, final bool) *inspector.TaskResult {
	r := &inspector.TaskResult{Totals: map[string]uint64{}}
	threads, sum := book.increases()
	name := map[string]string{labelRow: "thread", labelProcess: tr.wanted.process.comm, labelThread: "ended", labelPid: strconv.FormatUint(uint64(tr.wanted.process.pid), 10)}
	ended := inspector.ResultRow{Labels: name, Count: sum.Syscr + sum.Syscw, Values: sum.values()}
	slices.SortFunc(threads, func(a, b accountThread) int {
		return cmpUint(b.Own.Syscr+b.Own.Syscw, a.Own.Syscr+a.Own.Syscw)
	})
	for i := range threads {
		th := &threads[i]
		sum.plus(&th.Own)
		if th.Own == (accountSums{}) {
			continue
		}
		if i >= threadRows {
			r.OtherRows++
			r.OtherCount += th.Own.Syscr + th.Own.Syscw
			continue
		}
		r.Rows = append(r.Rows, inspector.ResultRow{Count: th.Own.Syscr + th.Own.Syscw, Values: th.Own.values(), Labels: map[string]string{
			labelRow: "thread", labelProcess: comm(th.Comm[:]), labelPid: name[labelPid], labelThread: strconv.FormatUint(uint64(th.Tid), 10)}})
	}
	if ended.Count > 0 {
		r.Rows = append(r.Rows, ended)
		r.Notes = append(r.Notes, "The row of thread ended holds threads that ended and children that the process waited for, as /proc/PID/io does.")
	}
	for k, v := range sum.values() {
		r.Totals[k] = uint64(v)
	}
	r.Totals["syscalls"] = sum.Syscr + sum.Syscw
	var requests traceTotals
	for i := range s.all {
		requests.plus(&s.all[i])
	}
	r.Totals["requests"], r.Totals["request_bytes"], r.Totals["request_errors"] = requests.Requests, requests.Bytes, requests.Errors
	tr.top(r, s, n, "requests", requestRows)
	slices.SortStableFunc(r.Rows, func(a, b inspector.ResultRow) int { return cmpUint(b.Count, a.Count) })
	tr.account(r, s)
	if book.ended {
		r.Notes = append(r.Notes, "The process ended meanwhile: its account is that of the last look, up to a second before.")
	}
	r.Notes = append(r.Notes, "Buffered writes are sent to the disk later by the kernel: they are in write_bytes and in no row of requests.",
		"In rows of threads count is system calls, reads and writes together (totals.syscalls); in rows of requests it is requests to a disk (totals.requests). They do not add up.")
	if final {
		tr.samples(r, n)
		r.Next = processNext(r.Rows)
	}
	return r
}

// processNext suggests the device that the process uses the most.
func processNext(rows []inspector.ResultRow) []inspector.NextStep {
	by, all, device := map[string]uint64{}, uint64(0), ""
	for _, row := range rows {
		d := row.Labels[labelDevice]
		if d == "" {
			continue
		}
		all += row.Count
		if by[d] += row.Count; device == "" || by[d] > by[device] {
			device = d
		}
	}
	if device == "" {
		return nil
	}
	why := "the process uses this device the most: see who else does"
	if by[device] > all/2 {
		why = "most requests of the process go to this device: see who else uses it"
	}
	return []inspector.NextStep{{Tool: storage.MonitorDeviceIO, Args: map[string]any{storage.ArgDevice: device}, Why: why}}
}

// Package bpfload loads the eBPF programs of a probe module one by one and
// says of each whether it runs and, if not, why.
//
// It owns nothing but the loaded maps, programs and links of a Set, and pins
// none of them: they die with the process. It must not know what a program
// measures. Start reading at Open; failure.go holds the classification,
// read.go the per-CPU reads, kernel.go what sets share.
package bpfload

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// Attach makes the link that runs a loaded program.
type Attach func(*ebpf.Program) (io.Closer, error)

// Tracing attaches a tp_btf program to its tracepoint. No trampoline, tracefs
// or perf event is involved.
func Tracing(p *ebpf.Program) (io.Closer, error) {
	return link.AttachTracing(link.TracingOptions{Program: p, AttachType: ebpf.AttachTraceRawTp})
}

// Iterator attaches a BPF iterator; read it with Set.Iterate.
func Iterator(p *ebpf.Program) (io.Closer, error) {
	return link.AttachIter(link.IterOptions{Program: p})
}

// OnDemand attaches nothing: the module runs the program itself, through
// Set.Program.
func OnDemand(*ebpf.Program) (io.Closer, error) { return io.NopCloser(nil), nil }

// Program names one program of a collection and how it is attached; a nil
// Attach means Tracing.
type Program struct {
	Name   string
	Attach Attach
}

// Set is the running part of one module. Its methods may be called from one
// goroutine at a time, except Failure and Capability, which are always safe.
type Set struct {
	maps  map[string]*ebpf.Map
	progs map[string]*ebpf.Program
	links map[string]io.Closer
	took  time.Duration

	mu       sync.Mutex
	failures map[string]*Failure
}

// Open creates the maps of spec and then loads and attaches each program on
// its own. It never fails: what does not run has a Failure. Programs of spec
// that are not named in programs are not loaded; disable maps a program to
// the reason why it must stay off.
func Open(spec *ebpf.CollectionSpec, programs []Program, disable map[string]string, log *slog.Logger) *Set {
	var alone *Kernel
	return alone.Open(spec, programs, disable, log)
}

func open(spec *ebpf.CollectionSpec, programs []Program, disable map[string]string, cache *btf.Cache, log *slog.Logger) *Set {
	s := &Set{
		progs:    map[string]*ebpf.Program{},
		links:    map[string]io.Closer{},
		failures: map[string]*Failure{},
	}
	var wanted []Program
	for _, p := range programs {
		if reason, off := disable[p.Name]; off {
			s.fail(p.Name, &Failure{Class: Disabled, Reason: reason})
			continue
		}
		wanted = append(wanted, p)
	}
	if len(wanted) == 0 {
		return s
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		// Only kernels before 5.11 charge BPF memory to the limit.
		log.Debug("locked-memory limit not lifted", "error", err)
	}
	only := spec.Copy()
	only.Programs = map[string]*ebpf.ProgramSpec{}
	coll, err := ebpf.NewCollectionWithOptions(only, ebpf.CollectionOptions{Cache: cache})
	if err != nil {
		for _, p := range wanted {
			s.fail(p.Name, classify(atMap, err))
		}
		return s
	}
	s.maps = maps.Clone(coll.Maps)
	clear(coll.Maps) // the set owns them now
	coll.Close()
	for _, p := range wanted {
		if f := s.load(spec, p, cache); f != nil {
			s.fail(p.Name, f)
			log.Info("program is off", "program", p.Name, "class", f.Class.String(), "reason", f.Reason)
		}
	}
	return s
}

// Absent is the set of a module that cannot even be prepared, for example
// because the kernel offers no BTF: nothing runs, and err is why.
func Absent(programs []Program, disable map[string]string, err error) *Set {
	s := &Set{failures: map[string]*Failure{}}
	for _, p := range programs {
		if reason, off := disable[p.Name]; off {
			s.fail(p.Name, &Failure{Class: Disabled, Reason: reason})
		} else {
			s.fail(p.Name, &Failure{Class: Missing, Reason: oneLine(err.Error()), err: err})
		}
	}
	return s
}

func (s *Set) load(spec *ebpf.CollectionSpec, p Program, cache *btf.Cache) *Failure {
	ps, ok := spec.Programs[p.Name]
	if !ok {
		return &Failure{Class: Failed, Reason: "the object holds no program " + p.Name}
	}
	one := spec.Copy()
	one.Programs = map[string]*ebpf.ProgramSpec{p.Name: ps.Copy()}
	one.Variables = nil
	coll, err := ebpf.NewCollectionWithOptions(one, ebpf.CollectionOptions{MapReplacements: s.maps, Cache: cache})
	if err != nil {
		return classify(atLoad, err)
	}
	prog := coll.DetachProgram(p.Name)
	coll.Close()
	attach := p.Attach
	if attach == nil {
		attach = Tracing
	}
	l, err := attach(prog)
	if err != nil {
		_ = prog.Close()
		return classify(atAttach, err)
	}
	s.progs[p.Name], s.links[p.Name] = prog, l
	return nil
}

func (s *Set) fail(program string, f *Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.Program = program
	s.failures[program] = f
}

// Failure tells why a program does not run; nil means that it runs.
func (s *Set) Failure(program string) *Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures[program]
}

// Running reports whether all the named programs run.
func (s *Set) Running(programs ...string) bool {
	return !slices.ContainsFunc(programs, func(p string) bool { return s.Failure(p) != nil })
}

// Map returns a map of the set, or nil when the maps could not be made.
func (s *Set) Map(name string) *ebpf.Map { return s.maps[name] }

// Program returns a loaded program, or nil.
func (s *Set) Program(name string) *ebpf.Program { return s.progs[name] }

// Iterate runs an Iterator program once; the caller closes the result.
func (s *Set) Iterate(program string) (io.ReadCloser, error) {
	it, ok := s.links[program].(*link.Iter)
	if !ok {
		return nil, fmt.Errorf("iterator %s does not run", program)
	}
	return it.Open()
}

// Detach stops and unloads one program. What its maps hold stays, but moves
// no more. Detaching what does not run changes nothing.
func (s *Set) Detach(program, reason string) error {
	l, ok := s.links[program]
	if !ok {
		return nil
	}
	err := errors.Join(l.Close(), s.progs[program].Close())
	delete(s.links, program)
	delete(s.progs, program)
	s.fail(program, &Failure{Class: Disabled, Reason: reason})
	return err
}

// Close unloads everything.
func (s *Set) Close() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s.links)) {
		errs = append(errs, s.Detach(name, "the module is closed"))
	}
	for _, m := range s.maps {
		errs = append(errs, m.Close())
	}
	clear(s.maps)
	return errors.Join(errs...)
}

// Capability describes a signal that needs all the named programs. fallback
// says what /proc offers instead ("" for nothing); it is part of the reason.
func (s *Set) Capability(component, signal, fallback string, programs ...string) inspector.Capability {
	c := inspector.Capability{Component: component, Signal: signal, Level: inspector.Full, Source: inspector.SourceBPF}
	for _, p := range programs {
		f := s.Failure(p)
		if f == nil {
			continue
		}
		c.Level, c.Source, c.Reason = inspector.Off, inspector.SourceNone, f.Reason
		if fallback != "" && f.Class != Disabled {
			c.Level, c.Source, c.Reason = inspector.Degraded, inspector.SourceProc, f.Reason+"; "+fallback
		}
		break
	}
	return c
}

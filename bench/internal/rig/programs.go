package rig

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/telltale-dev/telltale/agent/bpfload"
)

// ErrNoPrograms: the process holds none, or has not loaded them yet.
var ErrNoPrograms = errors.New("the process holds no program")

// Programs are the BPF programs and maps that a process holds.
type Programs struct {
	MapBytes uint64 // what the kernel accounts for its maps

	progs   []*ebpf.Program
	measure io.Closer
}

// OpenPrograms finds what a process holds through its descriptors and makes
// the kernel measure the programs' time. Without the privilege for it the
// error says so, and there is nothing to close.
func OpenPrograms(pid int) (*Programs, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return nil, err
	}
	ids, maps := map[uint64]bool{}, map[uint64]uint64{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // closed meanwhile
		}
		has := fields(string(b))
		if id, ok := has["prog_id"]; ok {
			ids[id] = true
		}
		if id, ok := has["map_id"]; ok {
			maps[id] = has["memlock"]
		}
	}
	if len(ids) == 0 {
		return nil, ErrNoPrograms
	}
	p := &Programs{}
	for _, n := range maps {
		p.MapBytes += n
	}
	for id := range ids {
		prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
		p.progs = append(p.progs, prog)
	}
	if p.measure, err = bpfload.EnableStats(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Len is the number of programs.
func (p *Programs) Len() int { return len(p.progs) }

// Spent is the time of all programs since they are measured.
func (p *Programs) Spent() (total time.Duration, runs uint64, err error) {
	for _, prog := range p.progs {
		st, err := prog.Stats()
		if err != nil {
			return 0, 0, err
		}
		total, runs = total+st.Runtime, runs+st.RunCount
	}
	return total, runs, nil
}

// Costs is what each program that ran has taken since it is measured.
func (p *Programs) Costs() ([]bpfload.Cost, error) {
	var out []bpfload.Cost
	for _, prog := range p.progs {
		st, err := prog.Stats()
		if err != nil {
			return nil, err
		}
		info, err := prog.Info()
		if err != nil {
			return nil, err
		}
		if st.RunCount > 0 {
			out = append(out, bpfload.Cost{Program: info.Name, Runs: st.RunCount, Time: st.Runtime})
		}
	}
	return out, nil
}

// Close ends the measuring and lets go of the programs.
func (p *Programs) Close() error {
	var errs []error
	for _, prog := range p.progs {
		errs = append(errs, prog.Close())
	}
	if p.measure != nil {
		errs = append(errs, p.measure.Close())
	}
	return errors.Join(errs...)
}

// fields reads the "name: number" lines of an fdinfo file.
func fields(text string) map[string]uint64 {
	out := map[string]uint64{}
	for line := range strings.Lines(text) {
		k, v, _ := strings.Cut(line, ":")
		if n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 64); err == nil {
			out[k] = n
		}
	}
	return out
}

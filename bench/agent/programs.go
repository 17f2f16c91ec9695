package main

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

// programs are the BPF programs and maps that a process holds.
type programs struct {
	progs   []*ebpf.Program
	mapMem  uint64 // bytes the kernel accounts for its maps
	measure io.Closer
}

// openPrograms finds what a process holds through its descriptors and makes
// the kernel measure the programs' time. Without the privilege for it the
// error says so, and there is nothing to close.
func openPrograms(pid int) (*programs, error) {
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
		return nil, errors.New("the agent holds no program")
	}
	p := &programs{}
	for _, n := range maps {
		p.mapMem += n
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

// spent is the time of all programs since they are measured.
func (p *programs) spent() (total time.Duration, runs uint64, err error) {
	for _, prog := range p.progs {
		st, err := prog.Stats()
		if err != nil {
			return 0, 0, err
		}
		total, runs = total+st.Runtime, runs+st.RunCount
	}
	return total, runs, nil
}

// Close ends the measuring and lets go of the programs.
func (p *programs) Close() error {
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

package symbols

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// Process is the code that one process had mapped when it was looked at. It
// keeps the mapped files open, so that they can be read after the process
// ended. It belongs to one goroutine.
type Process struct {
	Pid   int
	Start uint64 // when it began, in clock ticks since boot, as in /proc/PID/stat
	// Program tells the programs apart that one process runs one after the
	// other: where its stack begins. 0 is unknown, or not to be seen.
	Program uint64
	Comm    string // its name, clean
	// Hidden says that this process may not see what the other one has mapped
	// (that needs CAP_SYS_PTRACE), so that nothing of it gets a name.
	Hidden bool

	dir   string // /proc/PID
	maps  []mapping
	files *Files
}

// mapping is one stretch of executable memory.
type mapping struct {
	start, end, offset uint64
	file               fileID
	name               string // as /proc shows it
}

type fileID struct {
	dev   string
	inode uint64
}

// Files are the mapped files of several processes, each held once. Close
// closes them.
type Files struct {
	proc string
	open map[fileID]*file
	left int64 // bytes that may still be read of them
}

// file is one mapped file; image is nil when it cannot be read as code.
type file struct {
	name  string
	f     *os.File
	image *Image
	debug *Image // its symbols, kept apart
	dbg   *os.File
}

// maxFiles bounds the files held open, and maxMaps the mappings of a process.
const (
	maxFiles = 512
	maxMaps  = 4096
	maxProc  = 8 << 20 // bytes of one file of /proc
	maxRead  = 2 << 30 // bytes read of all files: a table may say that it has any size
)

// NewFiles holds no file yet. proc is where procfs is mounted, "" for /proc.
func NewFiles(proc string) *Files {
	if proc == "" {
		proc = "/proc"
	}
	return &Files{proc: proc, open: map[fileID]*file{}, left: maxRead}
}

// Close closes every file.
func (held *Files) Close() error {
	var errs []error
	for _, f := range held.open {
		if f.f != nil {
			errs = append(errs, f.f.Close())
		}
		if f.dbg != nil {
			errs = append(errs, f.dbg.Close())
		}
	}
	clear(held.open)
	return errors.Join(errs...)
}

// ErrGone says that there is no such process, or that it has ended.
var ErrGone = errors.New("no such process")

// Open looks at a process. ErrGone means that it ended or never was.
func (held *Files) Open(pid int) (*Process, error) {
	p := &Process{Pid: pid, dir: filepath.Join(held.proc, strconv.Itoa(pid)), files: held}
	var err error
	for range openTries { // one that just starts another program is not gone
		var id identity
		if id, err = readIdentity(p.dir); err != nil {
			return nil, err
		}
		p.Start, p.Program, p.Comm = id.start, id.program, id.comm
		if err = p.Refresh(); !errors.Is(err, ErrGone) {
			break
		}
	}
	if errors.Is(err, fs.ErrPermission) {
		p.Hidden = true
	} else if err != nil {
		return nil, err
	}
	return p, nil
}

// openTries bounds how often a process is looked at that becomes another
// program meanwhile.
const openTries = 5

// identity is what tells a process, and what it runs, from others.
type identity struct {
	start, program uint64
	comm           string
}

func readIdentity(dir string) (id identity, err error) {
	b, err := readProc(filepath.Join(dir, "stat"))
	if err != nil {
		return id, gone(err)
	}
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return id, fmt.Errorf("%s/stat is malformed", dir)
	}
	f := strings.Fields(string(b[end+1:]))
	if len(f) < 26 {
		return id, fmt.Errorf("%s/stat is malformed", dir)
	}
	if (f[0] == "Z" || f[0] == "X") && lastThread(dir) {
		return id, ErrGone // ended, its parent has not asked for it yet
	}
	id.comm = inspector.CleanText(string(b[open+1 : end]))
	var errs [2]error
	id.start, errs[0] = strconv.ParseUint(f[19], 10, 64)
	id.program, errs[1] = strconv.ParseUint(f[25], 10, 64)
	return id, errors.Join(errs[:]...)
}

// lastThread says whether a process has no thread but the first.
func lastThread(dir string) bool {
	d, err := os.Open(filepath.Join(dir, "task"))
	if err != nil {
		return true
	}
	defer d.Close()
	names, _ := d.Readdirnames(2)
	return len(names) < 2
}

// Alive returns ErrGone when the process has ended, whoever has its number.
func (p *Process) Alive() error {
	id, err := readIdentity(p.dir)
	if err == nil && id.start != p.Start {
		return ErrGone
	}
	return err
}

func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return ErrGone
	}
	return err
}

// readProc reads a small file whole.
func readProc(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxProc))
}

// Refresh looks at the mappings again, for what was loaded since. What was
// unmapped stays known unless something else took its place. A process that
// ended or runs another program, or whose id another one has now, is left as
// it was: ErrGone.
func (p *Process) Refresh() error {
	b, err := readProc(filepath.Join(p.dir, "maps"))
	if err != nil {
		return gone(err)
	}
	if len(b) == 0 { // the first thread has ended before the others
		tasks, _ := filepath.Glob(filepath.Join(p.dir, "task/*/maps"))
		for i := 0; i < len(tasks) && i < 8 && len(b) == 0; i++ {
			b, _ = readProc(tasks[i])
		}
	}
	found := parseMaps(b)
	id, err := readIdentity(p.dir)
	if err != nil {
		return err
	}
	if id.start != p.Start || id.program != p.Program {
		return ErrGone
	}
	fresh := false
	for _, m := range found {
		if !slices.Contains(p.maps, m) {
			fresh = true
			p.files.hold(p.dir, m)
		}
	}
	if !fresh {
		return nil
	}
	for _, old := range p.maps {
		if !slices.ContainsFunc(found, func(m mapping) bool { return old.start < m.end && m.start < old.end }) && len(found) < maxMaps {
			found = append(found, old)
		}
	}
	slices.SortFunc(found, func(a, b mapping) int { return compare(a.start, b.start) })
	p.maps = found
	return nil
}

func compare(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// parseMaps picks the executable stretches of /proc/PID/maps.
func parseMaps(b []byte) []mapping {
	var out []mapping
	for line := range bytes.Lines(b) {
		f := bytes.SplitN(bytes.TrimRight(line, "\n"), []byte{' '}, 6)
		if len(f) < 5 || len(f[1]) < 3 || f[1][2] != 'x' || len(out) >= maxMaps {
			continue
		}
		from, to, _ := strings.Cut(string(f[0]), "-")
		var m mapping
		var errs [4]error
		m.start, errs[0] = strconv.ParseUint(from, 16, 64)
		m.end, errs[1] = strconv.ParseUint(to, 16, 64)
		m.offset, errs[2] = strconv.ParseUint(string(f[2]), 16, 64)
		m.file.dev = string(f[3])
		m.file.inode, errs[3] = strconv.ParseUint(string(f[4]), 10, 64)
		if errors.Join(errs[:]...) != nil {
			continue
		}
		if len(f) == 6 {
			m.name = strings.TrimLeft(string(f[5]), " ")
		}
		out = append(out, m)
	}
	return out
}

// vdso is the name of the code that the kernel maps into every process.
const vdso = "[vdso]"

// module is the short name of a mapping's file.
func (m mapping) module() string {
	name := strings.TrimSuffix(m.name, " (deleted)")
	if m.file.inode != 0 {
		name = path.Base(name)
	}
	if name == "" {
		name = "[anonymous]"
	}
	clean, _ := inspector.CleanLabel(name)
	return clean
}

package symbols

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// How the files of other processes are found and opened: they, their names and
// the links between them are anybody's.

// Spent says that as much was read of the files as may be: what is unnamed
// since then may have a name.
func (held *Files) Spent() bool { return held.left <= 0 }

// metered is one of the files; reading stops when all are read enough of.
type metered struct {
	file io.ReaderAt
	left *int64
}

func (m metered) ReadAt(b []byte, at int64) (int, error) {
	if *m.left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := m.file.ReadAt(b, at)
	*m.left -= int64(n)
	return n, err
}

// hold opens a mapping's file, once.
func (held *Files) hold(dir string, m mapping) {
	if m.file.inode == 0 || held.open[m.file] != nil || len(held.open) >= maxFiles {
		return
	}
	h := &file{name: m.module()}
	held.open[m.file] = h
	if h.f = openMapped(dir, m); h.f == nil {
		return
	}
	if h.image, _ = NewImage(metered{h.f, &held.left}); h.image != nil && !h.image.HasSymbols() {
		h.dbg, h.debug = held.separate(dir, h.image.BuildID)
	}
}

// openMapped opens the very file that is mapped: by the mapping, which works
// for one that was deleted or replaced, else by its path as the process sees
// it, if that is the same file still.
func openMapped(dir string, m mapping) *os.File {
	if f := openRegular(fmt.Sprintf("%s/map_files/%x-%x", dir, m.start, m.end)); f != nil {
		return f
	}
	tries := []func() *os.File{func() *os.File { return openRegular(filepath.Join(dir, "exe")) }}
	if name, deleted := strings.CutSuffix(m.name, " (deleted)"); !deleted {
		// The path as this process sees it needs no privilege.
		name = unescape(name)
		tries = append(tries, func() *os.File { return openInside(filepath.Join(dir, "root"), name) }, func() *os.File { return openRegular(name) })
	}
	for i, try := range tries {
		f := try()
		if f == nil {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(int(f.Fd()), &st) == nil && st.Ino == m.file.inode &&
			(i < 2 || m.file.dev == fmt.Sprintf("%02x:%02x", unix.Major(st.Dev), unix.Minor(st.Dev))) {
			return f
		}
		_ = f.Close()
	}
	return nil
}

// unescape undoes what /proc does to a line feed in a path.
func unescape(name string) string { return strings.ReplaceAll(name, `\012`, "\n") }

// openRegular opens a regular file and nothing else: what a link of somebody
// else's leads to, a pipe or a device, must not even be opened to find out.
func openRegular(name string) *os.File {
	at, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return openFound(at, name)
}

// openInside is openRegular for a path as a process sees it: links in it lead
// to places below root, its root, and not to this process's own.
func openInside(root, name string) *os.File {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(dir)
	at, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil
	}
	return openFound(at, filepath.Join(root, name))
}

// openFound opens what a descriptor points to for reading, and closes the
// descriptor.
func openFound(at int, name string) *os.File {
	defer unix.Close(at)
	var st unix.Stat_t
	if unix.Fstat(at, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(at), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), name)
}

// separate finds a program's symbols that are kept apart, by its build id:
// where the process sees them, or this machine.
func (held *Files) separate(dir, id string) (*os.File, *Image) {
	if len(id) < 4 {
		return nil, nil
	}
	at := path.Join("/usr/lib/debug/.build-id", id[:2], id[2:]+".debug")
	for _, root := range []string{filepath.Join(dir, "root"), "/"} {
		f := openInside(root, at)
		if f == nil {
			continue
		}
		if im, err := NewImage(metered{f, &held.left}); err == nil && im.BuildID == id {
			return f, im
		}
		_ = f.Close()
	}
	return nil, nil
}

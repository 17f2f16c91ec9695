package probe

import (
	"bufio"
	"container/list"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector/process"
)

// executable identifies a program's file.
type executable struct {
	Path     string `json:"path"`
	Inode    uint64 `json:"inode"`
	Modified int64  `json:"modified"` // ns since 1970
	Size     uint64 `json:"size"`
}

func (e executable) modified() string { return time.Unix(0, e.Modified).UTC().Format(time.RFC3339) }

// maxExecutables bounds what is remembered; the file that was not seen running
// anew for longest goes first.
const maxExecutables = 4096

// executables are the files that were seen. Several of one path may be known:
// containers have their own.
type executables struct {
	most   int
	order  *list.List // of executable, latest first
	files  map[executable]*list.Element
	paths  map[string]int
	moved  bool // since it was saved
	forgot uint64
}

func newExecutables(most int) *executables {
	return &executables{most: most, order: list.New(), files: map[executable]*list.Element{}, paths: map[string]int{}}
}

// see takes a file in and says what is new of it: process.ChangeNew,
// process.ChangeReplaced with the latest one of its path, or nothing.
func (x *executables) see(e executable) (change string, old *executable) {
	if at, ok := x.files[e]; ok {
		x.order.MoveToFront(at)
		return "", nil
	}
	change = process.ChangeNew
	if x.paths[e.Path] > 0 {
		change = process.ChangeReplaced
		for at := x.order.Front(); at != nil; at = at.Next() {
			if o := at.Value.(executable); o.Path == e.Path {
				old = &o
				break
			}
		}
	}
	x.files[e] = x.order.PushFront(e)
	x.paths[e.Path]++
	x.moved = true
	for x.order.Len() > x.most {
		last := x.order.Remove(x.order.Back()).(executable)
		delete(x.files, last)
		if x.paths[last.Path]--; x.paths[last.Path] == 0 {
			delete(x.paths, last.Path)
		}
		x.forgot++
	}
	return change, old
}

// maxStateBytes bounds the file that is read.
const maxStateBytes = 16 << 20

// load reads what was known before. False: there is no such file, or none
// that makes sense.
func (d *deploys) load() bool {
	if d.file == "" {
		return false
	}
	f, err := os.Open(d.file)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.log.Warn("known programs cannot be read; all that run now are taken as known", "error", err)
		}
		return false
	}
	defer f.Close()
	in := json.NewDecoder(bufio.NewReader(io.LimitReader(f, maxStateBytes)))
	n := 0
	for {
		var e executable
		if err := in.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			d.log.Warn("known programs are read in part; all that run now are taken as known", "error", err)
			return false
		}
		d.known.see(e)
		n++
	}
	d.known.moved = false
	return n > 0
}

// save writes what is known, the oldest first, if that changed.
func (d *deploys) save() {
	if d.file == "" || !d.known.moved {
		return
	}
	if err := d.write(); err != nil {
		d.log.Warn("known programs are not kept", "error", err)
		return
	}
	d.known.moved = false
}

func (d *deploys) write() (err error) {
	f, err := os.CreateTemp(filepath.Dir(d.file), ".executables-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	out := bufio.NewWriter(f)
	enc := json.NewEncoder(out)
	for at := d.known.order.Back(); at != nil && err == nil; at = at.Prev() {
		err = enc.Encode(at.Value)
	}
	if err = errors.Join(err, out.Flush(), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), d.file)
}

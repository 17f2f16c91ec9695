package uplink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Bounds of the list that is kept: the server must not be able to fill the
// disk, and no module has a longer name.
const (
	maxSwitches   = 1000
	maxSwitchName = 64
	maxSwitchFile = 256 << 10
)

// Switches remembers on disk which modules the server keeps off, so that a
// restart knows before it opens any. Set may be called from any goroutine and
// does not wait for the disk; Run writes.
type Switches struct {
	dir string
	log *slog.Logger

	wake chan struct{} // one token: want changed

	mu    sync.Mutex
	want  []string // sorted; the latest list
	known bool     // there is one
}

// switchJSON is the file. Sum guards the list: a name that decayed would be
// no module's, and switch nothing off.
type switchJSON struct {
	Off []string `json:"off"`
	Sum uint32   `json:"sum"` // CRC-32 (IEEE) of the names, each followed by a line feed
}

// NewSwitches keeps the list in the identity's directory. It starts nothing.
func NewSwitches(id *Identity, log *slog.Logger) *Switches {
	return &Switches{dir: id.dir, log: log, wake: make(chan struct{}, 1)}
}

// Saved reads the list of the server's that was written last; none was is an
// empty list. An error means that nobody knows what the server wants off:
// open no module until its list arrives.
func (s *Switches) Saved() ([]string, error) {
	path := filepath.Join(s.dir, switchFile)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var raw []byte
	if err == nil {
		defer f.Close()
		raw, err = io.ReadAll(io.LimitReader(f, maxSwitchFile))
	}
	if err != nil {
		return nil, fmt.Errorf("read the modules that the server keeps off: %w", err)
	}
	var j switchJSON
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&j); err != nil || j.Off == nil || j.Sum != sumOf(j.Off) {
		return nil, fmt.Errorf("%s is damaged", path)
	}
	return j.Off, nil
}

// Set takes the server's list, which replaces the one before.
func (s *Switches) Set(off []string) {
	kept := make([]string, 0, min(len(off), maxSwitches))
	for _, name := range off {
		if len(name) <= maxSwitchName && len(kept) < maxSwitches {
			kept = append(kept, name)
		}
	}
	slices.Sort(kept)
	s.mu.Lock()
	s.want, s.known = slices.Compact(kept), true
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run writes each new list until ctx ends. One that cannot be written is
// tried again until it can, and said once.
func (s *Switches) Run(ctx context.Context) error {
	wait, failed := saveAgainMin, false
	again := time.NewTimer(0)
	defer again.Stop()
	for stopping := false; !stopping; {
		select {
		case <-ctx.Done():
			stopping = true // after what has just come
		case <-s.wake:
		case <-again.C:
		}
		err := s.write()
		switch {
		case err == nil && failed:
			s.log.Info("the list of modules that the server keeps off is saved again")
		case err != nil && !failed:
			s.log.Warn("cannot save which modules the server keeps off; trying again", "error", err)
		}
		if failed = err != nil; failed {
			again.Reset(wait)
			wait = min(2*wait, saveAgainMax)
		} else {
			wait = saveAgainMin
		}
	}
	return nil
}

// write brings the file in line with the latest list, if it is not.
func (s *Switches) write() error {
	s.mu.Lock()
	want, known := s.want, s.known
	s.mu.Unlock()
	if !known {
		return nil
	}
	have, damaged := s.Saved()
	if damaged == nil && slices.Equal(have, want) {
		return nil // or none was ever written, and none is needed
	}
	raw, _ := json.Marshal(switchJSON{want, sumOf(want)})
	raw = append(raw, '\n')
	err := writeFile(s.dir, switchFile, raw, 0o600)
	if err == nil || damaged != nil || !slices.ContainsFunc(want, func(m string) bool { return !slices.Contains(have, m) }) {
		return err // what is on disk keeps off no less
	}
	// A full disk may still take the list in place of the old one. Where it
	// does not, it leaves a torn file, and a restart opens nothing.
	if overwrite(filepath.Join(s.dir, switchFile), raw) == nil {
		return nil
	}
	return err
}

// overwrite replaces a file's content in place, for want of room elsewhere.
func overwrite(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Truncate(int64(len(data))), f.Sync(), f.Close())
}

func sumOf(off []string) uint32 {
	sum := crc32.NewIEEE()
	for _, name := range off {
		io.WriteString(sum, name+"\n")
	}
	return sum.Sum32()
}

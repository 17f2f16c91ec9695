package runner

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"time"
)

// Bounds of heap snapshots.
const (
	heapFiles    = "heap-*.pprof"
	keptHeaps    = 2
	heapPause    = 10 * time.Minute
	maxHeapBytes = 8 << 20
)

// heapKeeper writes heap profiles while the agent is near its memory budget,
// for people to find after it was killed.
type heapKeeper struct {
	dir   string
	log   *slog.Logger
	write func(io.Writer) error
	tried time.Time
}

func newHeapKeeper(dir string, log *slog.Logger) *heapKeeper {
	return &heapKeeper{dir: dir, log: log, write: pprof.WriteHeapProfile}
}

// take writes a snapshot, unless there is one of the last heapPause, also from
// before a restart. The oldest beyond keptHeaps goes.
func (h *heapKeeper) take(now time.Time) {
	if h.dir == "" || !h.tried.IsZero() && now.Sub(h.tried) < heapPause {
		return
	}
	h.tried = now
	kept := HeapSnapshots(h.dir)
	if len(kept) > 0 {
		if info, err := os.Stat(kept[len(kept)-1]); err == nil && now.Sub(info.ModTime()).Abs() < heapPause {
			return
		}
	}
	path := filepath.Join(h.dir, "heap-"+now.UTC().Format("20060102T150405Z")+".pprof")
	if err := h.save(path, now); err != nil {
		h.log.Warn("cannot write a heap snapshot", "error", err)
		return
	}
	h.log.Warn("the agent is near its memory budget; a heap snapshot is written", "file", path)
	kept = HeapSnapshots(h.dir)
	for len(kept) > keptHeaps {
		_ = os.Remove(kept[0])
		kept = kept[1:]
	}
}

func (h *heapKeeper) save(path string, now time.Time) error {
	part := filepath.Join(h.dir, ".heap.part")
	f, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(h.write(&boundedWriter{f, maxHeapBytes}), f.Close())
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		_ = os.Remove(part)
		return err
	}
	return os.Chtimes(path, now, now)
}

// HeapSnapshots lists the snapshots in a directory, the oldest first.
func HeapSnapshots(dir string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, heapFiles))
	slices.Sort(files) // names carry their time
	return files
}

type boundedWriter struct {
	w    io.Writer
	left int
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, fmt.Errorf("more than %d bytes", maxHeapBytes)
	}
	return b.w.Write(p)
}

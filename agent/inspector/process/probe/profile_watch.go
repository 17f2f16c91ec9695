package probe

import (
	"context"

	"github.com/cilium/ebpf"

	"github.com/telltale-dev/telltale/agent/symbols"
)

// watch looks at the processes among the samples while they live: their
// files and where they have them.
type watch struct {
	files  *symbols.Files
	target *symbols.Process // nil: the target is a group
	seen   *ebpf.Map
	known  map[profileProcessKey]*symbols.Process // nil: it was gone when looked for
}

// maxWatched bounds the processes looked at, and maxRefreshed those whose
// mappings are read again.
const (
	maxWatched   = 256
	maxRefreshed = 32
)

// look opens the processes that are new, as long as ctx lasts.
func (w *watch) look(ctx context.Context) {
	var key profileProcessKey
	var n uint64
	for it := w.seen.Iterate(); ctx.Err() == nil && it.Next(&key, &n); {
		if _, known := w.known[key]; known || len(w.known) >= maxWatched {
			continue
		}
		if w.target != nil && same(key, w.target) {
			w.known[key] = w.target
			continue
		}
		w.known[key] = nil
		if key.Tgid <= 0 {
			continue // it has no number here
		}
		// Another process may have the number by now, or the process have
		// started another program.
		if p, err := w.files.Open(int(key.Tgid)); err == nil && same(key, p) {
			w.known[key] = p
		}
	}
}

// refresh looks again at the processes that are known.
func (w *watch) refresh(ctx context.Context) {
	n := 0
	for _, p := range w.known {
		if p == nil {
			continue
		}
		if n++; n > maxRefreshed || ctx.Err() != nil {
			return
		}
		_ = p.Refresh() // one that ended stays as it was
	}
}

// same says whether a process is the one that was sampled. A stack's begin of
// 0 is unknown: a thread that is past having memory, or one of the kernel's;
// or the agent may not see it.
func same(key profileProcessKey, p *symbols.Process) bool {
	return int(key.Tgid) == p.Pid && key.Start/tick == p.Start && (key.Program == p.Program || key.Program == 0 || p.Program == 0)
}

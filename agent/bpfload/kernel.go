package bpfload

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// Kernel keeps what the running kernel says of its types (BTF), parsed, for
// all that load programs. Parsing costs some 40 ms of CPU and the parsed form
// a few MiB, so it is shared by what loads at about the same time and given
// back when nobody asked for a while. Safe for concurrent use; a nil Kernel
// keeps nothing and parses each time.
type Kernel struct {
	mu    sync.Mutex
	cache *btf.Cache
	drop  *time.Timer // runs while cache is there
}

// NewKernel holds nothing yet.
func NewKernel() *Kernel { return &Kernel{} }

// keepKernel is how long the parsed types stay after they were last asked for.
const keepKernel = time.Minute

// Types are the kernel's types, only to be read.
func (k *Kernel) Types() (*btf.Spec, error) { return k.types().Kernel() }

// Open is the function Open with the types that k keeps.
func (k *Kernel) Open(spec *ebpf.CollectionSpec, programs []Program, disable map[string]string, log *slog.Logger) *Set {
	began := time.Now()
	s := open(spec, programs, disable, k.types(), log)
	s.took = time.Since(began)
	return s
}

func (k *Kernel) types() *btf.Cache {
	if k == nil {
		return btf.NewCache()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cache == nil {
		k.cache = btf.NewCache()
	}
	if k.drop == nil {
		k.drop = time.AfterFunc(keepKernel, k.forget)
	} else {
		k.drop.Reset(keepKernel)
	}
	return k.cache
}

func (k *Kernel) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cache, k.drop = nil, nil
}

// Took is how long the set took to load.
func (s *Set) Took() time.Duration { return s.took }

// slow is what takes no more than some tenths of it on a machine with time
// to spare.
const slow = time.Second

// Slow is a sentence for those who waited for a task: what ("loading the
// programs") and how long it took. It is "" when that was not long.
func Slow(what string, took time.Duration) string {
	if took < slow {
		return ""
	}
	return fmt.Sprintf("%s took %.1f s beside the time of looking: the machine is busy.", what, took.Seconds())
}

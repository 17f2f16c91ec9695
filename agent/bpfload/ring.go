package bpfload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
)

// ringPoll is how long records may lie in a ring before they are read, when
// the kernel side asks for no wake-up of its own.
const ringPoll = 200 * time.Millisecond

// ReadRing hands every record of a ring buffer to each, in order, until ctx
// ends; then it takes out what still lies there and returns nil. The slice is
// each's only during the call. A program that wakes the reader (BPF_RB_FORCE_WAKEUP
// for what is urgent, or the kernel's own choice) is served at once, and one
// that does not within ringPoll. each must be quick: what the ring cannot
// hold meanwhile is lost, and the program that finds no room counts it.
func ReadRing(ctx context.Context, m *ebpf.Map, each func(raw []byte)) error {
	r, err := ringbuf.NewReader(m)
	if err != nil {
		return fmt.Errorf("read ring buffer: %w", err)
	}
	defer r.Close()
	stop := context.AfterFunc(ctx, func() { _ = r.Flush() }) // ends a read that waits
	defer stop()
	var rec ringbuf.Record
	for {
		r.SetDeadline(time.Now().Add(ringPoll))
		switch err := r.ReadInto(&rec); {
		case err == nil:
			each(rec.RawSample)
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, ringbuf.ErrFlushed):
			if ctx.Err() == nil {
				continue
			}
			return drain(r, each)
		default:
			return fmt.Errorf("read ring buffer: %w", err)
		}
	}
}

// drain takes out what lies in the ring, and no more than it can hold.
func drain(r *ringbuf.Reader, each func([]byte)) error {
	var rec ringbuf.Record
	for left := r.BufferSize() / 8; left > 0; left-- {
		r.SetDeadline(time.Now())
		if err := r.ReadInto(&rec); err != nil {
			return nil
		}
		each(rec.RawSample)
	}
	return nil
}

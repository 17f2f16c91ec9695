package rig

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Live is the memory that a Go process cannot give back: what its heap holds
// right after a collection, and the stacks of its goroutines. Not in it are
// the garbage that the collector lets gather, up to as much again as the heap,
// and what the kernel keeps for connections.
type Live struct{ Heap, Stacks uint64 }

// Sum is heap and stacks.
func (l Live) Sum() uint64 { return l.Heap + l.Stacks }

// ReadLive lets a server collect its garbage and reads what is left, through
// the address for its own metrics and profiles.
func ReadLive(ctx context.Context, mgmt string) (l Live, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, mgmt+"/debug/pprof/heap?gc=1&debug=1", nil)
	if err != nil {
		return l, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return l, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return l, fmt.Errorf("the heap profile: %s", resp.Status)
	}
	return readLive(resp.Body)
}

// readLive takes the figures behind a heap profile in text.
func readLive(r io.Reader) (l Live, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " = ")
		if !ok {
			continue
		}
		switch name {
		case "# HeapAlloc":
			_, err = fmt.Sscan(value, &l.Heap)
		case "# Stack":
			_, err = fmt.Sscan(value, &l.Stacks) // in use / from the system
		}
		if err != nil {
			return l, fmt.Errorf("%q: %w", lines.Text(), err)
		}
	}
	if err := lines.Err(); err != nil {
		return l, err
	}
	if l.Heap == 0 || l.Stacks == 0 {
		return l, fmt.Errorf("the heap profile does not say what is live")
	}
	return l, nil
}

package uplink

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
)

// positionBlock is how many sequence numbers one write to disk reserves.
const positionBlock = 1000

// position hands out sequence numbers and keeps them from being used twice
// over a restart: a block is reserved on disk before its first number is
// used, and a restart goes on after the block. Safe for concurrent use.
type position struct {
	dir string
	log *slog.Logger

	mu       sync.Mutex
	epoch    uint64 // 0: none yet
	next     uint64
	reserved uint64 // numbers up to this are reserved on disk
}

type positionJSON struct {
	Epoch    uint64 `json:"epoch"`
	Reserved uint64 `json:"reserved"`
}

// openPosition reads the saved position. A missing or damaged file means
// none: the server then issues a new epoch.
func openPosition(dir string, log *slog.Logger) *position {
	p := &position{dir: dir, log: log, next: 1}
	raw, err := os.ReadFile(filepath.Join(dir, positionFile))
	if err != nil {
		return p
	}
	var j positionJSON
	if err := json.Unmarshal(raw, &j); err != nil || j.Epoch == 0 {
		log.Warn("the saved position is damaged; asking for a new epoch", "file", positionFile)
		return p
	}
	p.epoch, p.next, p.reserved = j.Epoch, j.Reserved+1, j.Reserved
	return p
}

// take returns the next number.
func (p *position) take() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.next
	p.next++
	if n > p.reserved {
		p.save(n + positionBlock - 1)
	}
	return n
}

// at returns the epoch and the number the next new report will get.
func (p *position) at() (epoch, next uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epoch, p.next
}

// begin takes an epoch of the server, with next as the first free number.
func (p *position) begin(epoch, next uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epoch, p.next = epoch, next
	p.save(next + positionBlock - 1)
}

// skip makes sure that the next number is above seq.
func (p *position) skip(seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next <= seq {
		p.next = seq + 1
		p.save(seq + positionBlock)
	}
}

// close writes the exact position, so that a clean restart leaves no gap.
func (p *position) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epoch != 0 {
		p.save(p.next - 1)
	}
}

// save writes the reservation. A failure is logged and no more: should the
// process restart then, Welcome's high_seq still keeps numbers apart.
func (p *position) save(reserved uint64) {
	raw, _ := json.Marshal(positionJSON{p.epoch, reserved})
	if err := writeFile(p.dir, positionFile, append(raw, '\n'), 0o600); err != nil {
		p.log.Warn("cannot save the position", "error", err)
	}
	p.reserved = reserved
}

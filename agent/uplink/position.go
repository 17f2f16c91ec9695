package uplink

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// positionBlock is how many sequence numbers one write to disk reserves. The
// next block is reserved when half of one is used, so that a disk in trouble
// shows before a number lacks its reservation.
const positionBlock = 1000

// positionAgain is how long a reservation that failed is not tried again.
const positionAgain = 10 * time.Second

// position hands out sequence numbers and keeps them from being used twice
// over a restart: a block is reserved on disk before its first number is
// used, and a restart goes on after the block.
//
// When no block can be reserved, the file is removed, so that a restart asks
// for a new epoch; if even that fails, a new epoch is wanted from the server
// as soon as nothing is unacknowledged, because one that the disk does not
// know is never taken up again. Safe for concurrent use.
type position struct {
	dir string
	log *slog.Logger

	mu    sync.Mutex
	epoch uint64 // 0: none yet
	next  uint64
	disk  positionJSON // what the file holds; zero: nothing that a restart would use
	again time.Time    // no reservation is tried before, after one failed
	sick  bool         // the last one failed, and that was logged
}

type positionJSON struct {
	Epoch    uint64 `json:"epoch"`
	Reserved uint64 `json:"reserved"` // numbers up to this may have been used
}

// openPosition reads the saved position. A missing or damaged file means
// none: the server then issues a new epoch.
func openPosition(dir string, log *slog.Logger) *position {
	p := &position{dir: dir, log: log, next: 1}
	raw, err := os.ReadFile(filepath.Join(dir, positionFile))
	if errors.Is(err, fs.ErrNotExist) {
		return p
	}
	var j positionJSON
	if err == nil {
		err = json.Unmarshal(raw, &j)
	}
	if err != nil || j.Epoch == 0 {
		log.Warn("the saved position is damaged; asking for a new epoch", "file", positionFile, "error", err)
		return p
	}
	p.epoch, p.next, p.disk = j.Epoch, j.Reserved+1, j
	return p
}

// take returns the next number.
func (p *position) take() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep()
	n := p.next
	p.next++
	return n
}

// at returns the epoch and the number the next new report will get. idle says
// that nothing is unacknowledged: then an epoch whose numbers cannot be
// reserved is given up, and 0 is returned.
func (p *position) at(idle bool) (epoch, next uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if idle {
		p.keep()
		if p.bare() {
			return 0, p.next
		}
	}
	return p.epoch, p.next
}

// spent reports whether a new epoch is wanted; see at.
func (p *position) spent() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bare()
}

// begin takes an epoch of the server, with next as the first free number.
func (p *position) begin(epoch, next uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epoch, p.next, p.again = epoch, next, time.Time{}
	p.keep()
}

// skip makes sure that the next number is above seq.
func (p *position) skip(seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next <= seq {
		p.next = seq + 1
		p.keep()
	}
}

// close writes the exact position, so that a clean restart leaves no gap.
func (p *position) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epoch != 0 && p.save(p.next-1) != nil {
		p.forget()
	}
}

// bare reports whether a restart would use the next number once more.
func (p *position) bare() bool {
	return p.epoch != 0 && p.disk.Epoch == p.epoch && p.next > p.disk.Reserved
}

// keep reserves the next block when it is time to, or else sees to it that no
// restart uses a number twice.
func (p *position) keep() {
	if p.epoch == 0 || p.disk.Epoch == p.epoch && p.next+positionBlock/2 <= p.disk.Reserved {
		return
	}
	if !time.Now().Before(p.again) {
		if err := p.save(p.next + positionBlock - 1); err == nil {
			if p.sick {
				p.log.Info("the position is saved again")
			}
			p.sick = false
			return
		} else if !p.sick {
			p.sick = true
			p.log.Warn("cannot save the position; going on, and after a restart with a new epoch", "error", err)
		}
		p.again = time.Now().Add(positionAgain)
	}
	p.forget()
}

// save writes the reservation.
func (p *position) save(reserved uint64) error {
	j := positionJSON{p.epoch, reserved}
	raw, _ := json.Marshal(j)
	if err := writeFile(p.dir, positionFile, append(raw, '\n'), 0o600); err != nil {
		return err
	}
	p.disk = j
	return nil
}

// forget removes a file that would make a restart use numbers twice.
func (p *position) forget() {
	if !p.bare() {
		return
	}
	if err := os.Remove(filepath.Join(p.dir, positionFile)); err == nil || errors.Is(err, fs.ErrNotExist) {
		syncDir(p.dir)
		p.disk = positionJSON{}
	}
}

package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// The breaker's file and times.
const (
	lifeFile     = "life.json"
	maxLifeFile  = 16 << 10
	crashWithin  = 10 * time.Minute
	trippedFor   = 30 * time.Minute
	breakerLook  = 5 * time.Second // between two looks whether the file was removed
	maxCrashList = 20
)

// DefaultCrashes is after how many unclean ends within ten minutes the breaker
// trips.
const DefaultCrashes = 3

// lifeJSON is the file: what is known of the agent's starts and ends.
type lifeJSON struct {
	Running bool        `json:"running"` // a start without its end; after a crash it stays
	Started time.Time   `json:"started"`
	Unclean []time.Time `json:"unclean_ends,omitempty"` // when each was noticed, of late
	Tripped time.Time   `json:"tripped,omitzero"`
}

// Breaker counts starts that nobody ended. After too many of them in a short
// time the agent starts without its probe, which may be what crashes it or its
// machine. Its methods are not safe for concurrent use; Run is the last one to
// be called but Clean.
type Breaker struct {
	dir     string
	crashes int
	log     *slog.Logger
	life    lifeJSON
}

// OpenBreaker reads the file of a directory, notes this start in it, and trips
// when crashes unclean ends lie within ten minutes; 0 never trips.
func OpenBreaker(dir string, crashes int, log *slog.Logger) *Breaker {
	b := &Breaker{dir: dir, crashes: crashes, log: log}
	now := time.Now()
	life, err := readLife(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("how the agent ended before is not known", "error", err)
	}
	if life.Running {
		log.Warn("the agent did not end in order the last time", "started", life.Started)
		life.Unclean = append(life.Unclean, now)
	}
	b.life = lifeJSON{Running: true, Started: now, Tripped: life.Tripped}
	for _, at := range life.Unclean {
		if now.Sub(at).Abs() <= crashWithin {
			b.life.Unclean = append(b.life.Unclean, at)
		}
	}
	b.life.Unclean = b.life.Unclean[max(0, len(b.life.Unclean)-maxCrashList):]
	switch {
	case crashes == 0 || tripOver(b.life.Tripped, now):
		b.life.Tripped, b.life.Unclean = time.Time{}, nil // those without the probe are not the probe's
	case !b.life.Tripped.IsZero(): // it stays
	case len(b.life.Unclean) >= crashes:
		b.life.Tripped = now.Round(0)
	}
	b.save()
	return b
}

// tripOver reports whether a trip has had its time; one in the future comes
// from a clock that was wrong.
func tripOver(tripped, now time.Time) bool {
	return !tripped.IsZero() && (now.Sub(tripped) >= trippedFor || tripped.Sub(now) > time.Minute)
}

// Reason says why the probe is to stay off; empty: it is not.
func (b *Breaker) Reason() string {
	if b.life.Tripped.IsZero() {
		return ""
	}
	return tripReason(b.dir, b.crashes, b.life)
}

func tripReason(dir string, crashes int, life lifeJSON) string {
	return fmt.Sprintf("%s crashes in ten minutes: the probe stays off until %s; remove %s or wait, and see `telltale-agent check`",
		number(crashes), life.Tripped.Add(trippedFor).UTC().Format(time.RFC3339), filepath.Join(dir, lifeFile))
}

func number(n int) string {
	if n == DefaultCrashes {
		return "three"
	}
	return fmt.Sprint(n)
}

// Run calls rearmed once the trip is over, by its time or because somebody
// removed the file, and returns when ctx ends.
func (b *Breaker) Run(ctx context.Context, rearmed func()) error {
	if b.life.Tripped.IsZero() {
		<-ctx.Done()
		return nil
	}
	look := time.NewTicker(breakerLook)
	defer look.Stop()
	for !b.life.Tripped.IsZero() {
		select {
		case <-ctx.Done():
			return nil
		case now := <-look.C:
			_, err := os.Stat(filepath.Join(b.dir, lifeFile))
			if tripOver(b.life.Tripped, now) || errors.Is(err, fs.ErrNotExist) {
				b.life.Tripped, b.life.Unclean = time.Time{}, nil
				b.save()
				b.log.Info("the probe may run again")
				rearmed()
			}
		}
	}
	<-ctx.Done()
	return nil
}

// Clean notes that the agent ends in order.
func (b *Breaker) Clean() {
	b.life.Running = false
	b.save()
}

func (b *Breaker) save() {
	raw, _ := json.Marshal(b.life)
	if err := replaceFile(b.dir, lifeFile, append(raw, '\n'), true); err != nil {
		b.log.Warn("cannot note how the agent starts and ends: crashes are not counted", "error", err)
	}
}

// BreakerState is what a directory's file says about crashes.
type BreakerState struct {
	File    string
	Crashes int       // unclean ends within the last ten minutes that were noticed
	Reason  string    // why the probe is off; empty: it is not
	Until   time.Time // when it may run again; zero: it may
}

// ReadBreaker reads a breaker's state without changing it.
func ReadBreaker(dir string, crashes int) (BreakerState, error) {
	s := BreakerState{File: filepath.Join(dir, lifeFile)}
	life, err := readLife(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	now := time.Now()
	for _, at := range life.Unclean {
		if now.Sub(at).Abs() <= crashWithin {
			s.Crashes++
		}
	}
	if !life.Tripped.IsZero() && !tripOver(life.Tripped, now) && crashes > 0 {
		s.Reason, s.Until = tripReason(dir, crashes, life), life.Tripped.Add(trippedFor)
	}
	return s, err
}

func readLife(dir string) (life lifeJSON, err error) {
	path := filepath.Join(dir, lifeFile)
	f, err := os.Open(path)
	if err != nil {
		return life, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxLifeFile))
	if err != nil {
		return life, fmt.Errorf("read %s: %w", path, err)
	}
	if json.Unmarshal(raw, &life) != nil {
		return lifeJSON{}, fmt.Errorf("%s is damaged", path)
	}
	return life, nil
}

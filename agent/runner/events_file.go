package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// The file that records outlive a restart in.
const (
	eventFile     = "events.json"
	maxEventFile  = 256 << 10
	maxRingBytes  = 64 << 10
	savePause     = 250 * time.Millisecond
	saveAgain     = 30 * time.Second
	eventFileForm = 1
)

// eventsJSON is the file: Sum is the CRC-32 (IEEE) of Body.
type eventsJSON struct {
	Sum  uint32          `json:"sum"`
	Body json.RawMessage `json:"body"`
}

type eventsBody struct {
	Form    int               `json:"form"`
	Saved   time.Time         `json:"saved"`
	Records []json.RawMessage `json:"records"`
	Rings   []json.RawMessage `json:"rings"`
}

type recordJSON struct {
	Kind        string                  `json:"kind"`
	Begun       time.Time               `json:"begun"`
	Last        time.Time               `json:"last"`
	Severity    inspector.Severity      `json:"severity"`
	State       inspector.EventState    `json:"state"`
	Labels      map[string]string       `json:"labels"`
	Samples     []inspector.EventSample `json:"samples,omitempty"`
	SampleCount uint64                  `json:"sample_count"`
	Truncated   uint64                  `json:"truncated"`
	Lost        uint64                  `json:"lost"`
	Offered     uint64                  `json:"offered"`
	Told        uint64                  `json:"told"`    // sightings that were pushed
	Pending     bool                    `json:"pending"` // the server does not hold all of it
	Lasting     bool                    `json:"lasting"`
}

type ringJSON struct {
	Kind      string            `json:"kind"`
	Component string            `json:"component"`
	Labels    map[string]string `json:"labels"`
	Held      uint64            `json:"held"`
	Holding   bool              `json:"holding"`
	First     time.Time         `json:"first"`
	Begins    []time.Time       `json:"begins,omitempty"`
}

// keepSaved writes after changes until ctx ends, and takes no more than a
// fiftieth of the time for it.
func (e *Events) keepSaved(ctx context.Context) {
	failed := false
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.saving:
		}
		began := time.Now()
		err := e.save()
		if err != nil && !failed {
			e.log.Warn("cannot save events; trying again", "error", err)
		}
		wait := max(savePause, 50*time.Since(began))
		if failed = err != nil; failed {
			wait = saveAgain
			token(e.saving)
		}
		pause.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
	}
}

// save writes everything down, if anything changed. It survives a kill at any
// moment; a machine that loses power may keep the state before.
func (e *Events) save() error {
	if e.cfg.Dir == "" {
		return nil
	}
	e.mu.Lock()
	dirty := e.unsaved
	e.unsaved = false
	var raw []byte
	if dirty {
		raw = e.encode(time.Now())
	}
	e.mu.Unlock()
	if !dirty {
		return nil
	}
	err := replaceFile(e.cfg.Dir, eventFile, raw, false)
	if err != nil {
		e.mu.Lock()
		e.unsaved = true
		e.mu.Unlock()
	}
	return err
}

// encode makes the file of the records that matter most: those that the server
// does not hold, then the worst, then the latest. One that does not fit goes
// without its samples, or not at all.
func (e *Events) encode(now time.Time) []byte {
	records := slices.Clone(e.records)
	slices.SortStableFunc(records, func(a, b *record) int {
		return cmp.Or(-compareBool(a.pending(), b.pending()), cmp.Compare(b.rank(), a.rank()), b.opened.Compare(a.opened))
	})
	body := eventsBody{Form: eventFileForm, Saved: now, Records: []json.RawMessage{}, Rings: []json.RawMessage{}}
	left := maxRingBytes
	for _, r := range e.rings {
		raw, err := json.Marshal(ringJSON{r.kind.Name, r.component, r.labels, r.held, r.holding, r.first, r.begins})
		if err == nil && len(raw)+1 <= left {
			body.Rings = append(body.Rings, raw)
			left -= len(raw) + 1
		}
	}
	left += maxEventFile - maxRingBytes - 256
	for _, r := range records {
		j := recordJSON{Kind: r.kind.Name, Begun: r.rep.Begun, Last: r.rep.Last, Severity: r.rep.Severity, State: r.rep.State, Labels: r.rep.Labels,
			Samples: r.rep.Samples, SampleCount: r.rep.SampleCount, Truncated: r.rep.Truncated, Lost: r.rep.Lost, Offered: r.offered,
			Told: r.told, Pending: r.pending(), Lasting: r.lasting}
		raw, err := json.Marshal(j)
		if err == nil && len(raw)+1 > left {
			j.Samples = nil
			raw, err = json.Marshal(j)
		}
		if err == nil && len(raw)+1 <= left {
			body.Records = append(body.Records, raw)
			left -= len(raw) + 1
		}
	}
	inner, _ := json.Marshal(body)
	raw, _ := json.Marshal(eventsJSON{crc32.ChecksumIEEE(inner), inner})
	return raw
}

func (r *record) pending() bool { return !r.acked || r.sent != r.version }

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// load takes up the file. One that is damaged is as good as none, but said.
func (e *Events) load(now time.Time) {
	if e.cfg.Dir == "" {
		return
	}
	body, err := readEvents(filepath.Join(e.cfg.Dir, eventFile))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		e.log.Warn("events of the time before this start are not known", "error", err)
		return
	}
	for _, raw := range body.Records {
		var j recordJSON
		if json.Unmarshal(raw, &j) == nil && len(e.records) < maxRecords {
			e.restore(j, now)
		}
	}
	for _, raw := range body.Rings {
		var j ringJSON
		if json.Unmarshal(raw, &j) != nil {
			continue
		}
		k := e.kinds[j.Kind]
		if k == nil || k.Rule == nil || len(e.rings) >= maxRings {
			continue
		}
		r := &ring{kind: k, component: j.Component, labels: scope(k, j.Labels), held: j.Held & (1<<k.Rule.N - 1), holding: j.Holding, first: j.First, begins: lately(j.Begins, now), touched: now}
		if now.Sub(body.Saved).Abs() > staleAfter && !r.holding {
			r.held = 0 // too long ago to count together with what comes
		}
		if len(r.begins) > flapBegins+1 {
			r.begins = r.begins[len(r.begins)-flapBegins-1:]
		}
		e.rings[inspector.FingerprintOf(k.Name, r.labels)] = r
	}
}

// restore takes up one record. What the server holds is not pushed again, and
// what was not acknowledged is. A condition of the agent itself ended with the
// process that had it.
func (e *Events) restore(j recordJSON, now time.Time) {
	k := e.kinds[j.Kind]
	if k == nil || j.Severity.Rank() < 0 {
		return
	}
	labels := scope(k, j.Labels)
	r := &record{kind: k, opened: j.Begun, offered: max(j.Offered, uint64(len(j.Samples))), version: 1, told: j.Told,
		rep: inspector.EventReport{Kind: k.Name, Fingerprint: inspector.FingerprintOf(k.Name, labels), Begun: j.Begun, Last: j.Last, Severity: j.Severity,
			State: j.State, Labels: labels, Samples: j.Samples[:min(len(j.Samples), inspector.MaxEventSamples)],
			SampleCount: j.SampleCount, Truncated: j.Truncated, Lost: j.Lost}}
	if r.opened.After(now) {
		r.opened = now
	}
	if !j.Pending {
		r.sent, r.acked, r.pushedAt = 1, true, now
	}
	if j.Lasting && k.Rule == nil {
		r.end(now)
	}
	e.records = append(e.records, r)
	if old := e.current[r.rep.Fingerprint]; old == nil || old.rep.Begun.Before(r.rep.Begun) {
		e.current[r.rep.Fingerprint] = r
	}
}

func readEvents(path string) (body eventsBody, err error) {
	f, err := os.Open(path)
	if err != nil {
		return body, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, 2*maxEventFile))
	if err != nil {
		return body, fmt.Errorf("read %s: %w", path, err)
	}
	var outer eventsJSON
	if json.Unmarshal(raw, &outer) != nil || crc32.ChecksumIEEE(outer.Body) != outer.Sum || json.Unmarshal(outer.Body, &body) != nil || body.Form != eventFileForm {
		return body, fmt.Errorf("%s is damaged", path)
	}
	return body, nil
}

// replaceFile writes a file beside the old one and puts it in its place: a
// reader sees one or the other. sync waits until the disk has it.
func replaceFile(dir, name string, data []byte, sync bool) error {
	part := filepath.Join(dir, "."+name+".part") // one process at a time uses dir
	f, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = f.Write(data)
	if err == nil && sync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(part, filepath.Join(dir, name))
	}
	if err != nil {
		_ = os.Remove(part)
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

package probe

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

const sectorBytes = 512 // diskstats' unit on every device

// diskRow is one line of /proc/diskstats; ios and sectors are in the order of
// storage.Operations. ops says how many of them the kernel has.
type diskRow struct {
	name         string
	ios, sectors [len(storage.Operations)]uint64
	ops          int
}

// parseDiskstats reads /proc/diskstats (Documentation/admin-guide/iostats.rst).
// A line that is malformed or too short is left out and counted.
func parseDiskstats(b []byte) (rows []diskRow, malformed int) {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) == 0 {
			continue
		}
		row, ok := parseDiskRow(f)
		if !ok {
			malformed++
			continue
		}
		rows = append(rows, row)
	}
	return rows, malformed
}

// The columns of ios and sectors of each operation; flushes have no sectors.
var diskColumns = [...]struct{ ios, sectors int }{{3, 5}, {7, 9}, {14, 16}, {18, -1}}

func parseDiskRow(f [][]byte) (row diskRow, ok bool) {
	if len(f) < 14 {
		return row, false
	}
	name, _ := inspector.CleanLabel(string(bytes.ReplaceAll(f[2], []byte("/"), []byte("!"))))
	row.name = name
	for i, col := range diskColumns {
		if max(col.ios, col.sectors) >= len(f) {
			break // discards came in 4.18, flushes in 5.5
		}
		var err error
		if row.ios[i], err = strconv.ParseUint(string(f[col.ios]), 10, 64); err != nil {
			return row, false
		}
		if col.sectors >= 0 {
			if row.sectors[i], err = strconv.ParseUint(string(f[col.sectors]), 10, 64); err != nil {
				return row, false
			}
		}
		row.ops = i + 1
	}
	return row, row.name != "" && row.name != storage.Other
}

// diskCounters are the counters of one disk, by operation.
type diskCounters [len(storage.Operations)]struct{ ios, sectors inspector.Counter }

// diskstats is the source without privileges: whole disks that have a request
// queue, so that it counts the same devices as the programs do.
type diskstats struct {
	path, sys string
	disks     map[string]*diskCounters
}

// add puts the increases since the last call into seen.
func (s *diskstats) add(seen map[string]*device) error {
	b, err := os.ReadFile(s.path)
	if err != nil {
		return err
	}
	rows, _ := parseDiskstats(b)
	old := s.disks
	s.disks = map[string]*diskCounters{}
	for _, row := range rows {
		if !carriesRequests(s.sys, row.name) {
			continue
		}
		c := old[row.name]
		if c == nil {
			c = &diskCounters{}
			for i := range c {
				c[i].ios.Narrow = narrowLongs
				c[i].sectors.Narrow = narrowLongs
			}
		}
		s.disks[row.name] = c
		d := seen[row.name]
		if d == nil {
			d = &device{}
		}
		for i := range row.ops {
			ios, known := c[i].ios.Step(row.ios[i])
			sectors, alsoKnown := c[i].sectors.Step(row.sectors[i])
			d[i].ios, d[i].bytes = ios, sectors*sectorBytes
			d[i].unknown = !known || !alsoKnown
		}
		for i := row.ops; i < len(d); i++ {
			d[i].unknown = true // this kernel does not count them
		}
		seen[row.name] = d
	}
	return nil
}

// narrowLongs says whether the kernel's unsigned long, the width of these
// counters, has 32 bits.
const narrowLongs = strconv.IntSize == 32

// carriesRequests says whether a disk is there, has a medium (a loop device
// without a file has none) and makes requests. That leaves out partitions and
// the stacked devices (dm, md, zram) that pass bios on without making any.
func carriesRequests(sys, name string) bool {
	dir := filepath.Join(sys, "block", name)
	if size, err := os.ReadFile(filepath.Join(dir, "size")); err != nil || string(bytes.TrimSpace(size)) == "0" {
		return false
	}
	_, err := os.Stat(filepath.Join(dir, "mq"))
	return err == nil
}

// disksPresent names the disks that carry requests.
func disksPresent(sys string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(sys, "block"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name, _ := inspector.CleanLabel(e.Name()); name == e.Name() && name != storage.Other && carriesRequests(sys, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// Package cgroups finds control groups by path, id or container, and names
// them by id, on version 1, version 2 and hybrid layouts.
//
// It reads /proc and /sys/fs/cgroup and holds no state but the cache of
// Names. It must not know what is measured. Start reading at Resolve.
package cgroups

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// Target is one control group. A group of the same path may exist in several
// hierarchies. The id of a group is its directory's inode, as the kernel's
// kernfs id; ids of different hierarchies may be equal and mean different
// groups.
type Target struct {
	IDs  []uint64          // all ids, that of version 2 first
	Path string            // as in /proc/PID/cgroup, with "/" for the root
	V2   uint64            // id in the version 2 hierarchy; 0: not there
	V1   map[string]uint64 // id by version 1 controller ("memory", "cpu", …)
}

// hierarchy is one mounted cgroup tree.
type hierarchy struct {
	controllers []string // nil: version 2
	root        string
}

// hierarchies lists the trees below sys/fs/cgroup, version 2 first.
func hierarchies(sys string) []hierarchy {
	top := filepath.Join(sys, "fs/cgroup")
	if isV2(top) {
		return []hierarchy{{root: top}}
	}
	var out []hierarchy
	entries, err := os.ReadDir(top)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		root := filepath.Join(top, e.Name())
		switch {
		case !e.IsDir(): // cpu → cpu,cpuacct
		case isV2(root):
			out = slices.Insert(out, 0, hierarchy{root: root})
		default:
			out = append(out, hierarchy{strings.Split(e.Name(), ","), root})
		}
	}
	return out
}

func isV2(root string) bool {
	_, err := os.Lstat(filepath.Join(root, "cgroup.controllers"))
	return err == nil
}

// inode returns the id of a directory; ok is false when there is none.
func inode(dir string) (uint64, bool) {
	st, err := os.Lstat(dir)
	if err != nil || !st.IsDir() {
		return 0, false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return sys.Ino, true
}

func (t *Target) add(h hierarchy, id uint64) {
	if h.controllers == nil {
		t.V2 = id
	} else {
		if t.V1 == nil {
			t.V1 = map[string]uint64{}
		}
		for _, c := range h.controllers {
			t.V1[c] = id
		}
	}
	if !slices.Contains(t.IDs, id) {
		t.IDs = append(t.IDs, id)
	}
}

// Resolve finds a group by its path, as in /proc/PID/cgroup or as a directory
// below sys/fs/cgroup, or by its id in decimal digits. Empty roots mean /proc
// and /sys. A group that is not there is an *inspector.Refusal with the reason
// unknown_cgroup, and so is an id that several hierarchies have.
func Resolve(proc, sys, ref string) (Target, error) {
	sys = or(sys, "/sys")
	trees := hierarchies(sys)
	if id, err := strconv.ParseUint(ref, 10, 64); err == nil {
		return byID(trees, id)
	}
	dir := path.Clean("/" + ref)
	if rest, ok := strings.CutPrefix(dir, "/sys/fs/cgroup"); ok && (rest == "" || rest[0] == '/') {
		dir = belowMount(trees, filepath.Join(sys, "fs/cgroup"), or(rest, "/"))
	}
	t := Target{Path: dir}
	for _, h := range trees {
		if id, ok := inode(filepath.Join(h.root, dir)); ok {
			t.add(h, id)
		}
	}
	if len(t.IDs) == 0 {
		return Target{}, unknown("cgroup", "the node has no cgroup "+show(dir), "take a path from a sample's cgroup label or from /proc/PID/cgroup on the node")
	}
	return t, nil
}

// belowMount takes the hierarchy's own folder off a path below the mount.
func belowMount(trees []hierarchy, top, rest string) string {
	for _, h := range trees {
		prefix := strings.TrimPrefix(h.root, top)
		names := []string{prefix}
		for _, c := range h.controllers {
			names = append(names, "/"+c) // a link to the joint hierarchy
		}
		for _, n := range names {
			if below, ok := strings.CutPrefix(rest, n); n != "" && ok && (below == "" || below[0] == '/') {
				return or(below, "/")
			}
		}
	}
	return rest
}

// byID looks for a directory with this inode in every hierarchy.
func byID(trees []hierarchy, id uint64) (Target, error) {
	var found []Target
	for _, h := range trees {
		p := ""
		walk(h.root, maxDirs, func(at string, ino uint64) bool {
			if ino == id {
				p = at
			}
			return p == ""
		})
		if p == "" {
			continue
		}
		// The same path in other hierarchies is another id, and not meant.
		t := Target{Path: p}
		t.add(h, id)
		if h.controllers == nil {
			return t, nil // what the product itself shows is an id of version 2
		}
		found = append(found, t)
	}
	switch len(found) {
	case 0:
		return Target{}, unknown("cgroup", fmt.Sprintf("the node has no cgroup with the id %d", id), "the group may be gone; give its path instead")
	case 1:
		return found[0], nil
	}
	paths := make([]string, 0, 3)
	for _, t := range found[:min(3, len(found))] {
		paths = append(paths, show(t.Path))
	}
	return Target{}, unknown("cgroup", fmt.Sprintf("the id %d names %d groups in different hierarchies, among them %s", id, len(found), strings.Join(paths, ", ")), "give the path of the one that is meant")
}

// maxDirs bounds one walk over a hierarchy.
const maxDirs = 20_000

// walk visits the directories of a tree with their path inside it and inode,
// until visit says false or most have been seen; it reports whether all were.
func walk(root string, most int, visit func(at string, ino uint64) bool) (whole bool) {
	whole = true
	_ = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // a group that went away meanwhile
		}
		if most--; most < 0 {
			whole = false
			return fs.SkipAll
		}
		ino, ok := inode(p)
		if ok && !visit(or(strings.TrimPrefix(p, root), "/"), ino) {
			whole = false
			return fs.SkipAll
		}
		return nil
	})
	return whole
}

func unknown(arg, msg, next string) error {
	return &inspector.Refusal{Kind: "NOT_FOUND", Reason: inspector.ReasonUnknownCgroup, Arg: arg, Msg: msg, Next: next}
}

func show(p string) string {
	clean, _ := inspector.CleanLabel(p)
	return clean
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

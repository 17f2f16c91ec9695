package cgroups

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// MinContainerPrefix is how much of a container's id must be given.
const MinContainerPrefix = 8

var (
	hexPrefix = regexp.MustCompile(`^[0-9a-f]{8,64}$`)
	// Runtimes name a container's group after its id, bare (docker, kubelet
	// with cgroupfs) or inside a systemd unit (docker-ID.scope,
	// cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope). Shorter runs
	// of hexadecimal digits are parts of a pod's uid.
	containerID = regexp.MustCompile(`(?:^|[^0-9a-zA-Z])([0-9a-f]{32,64})(?:[^0-9a-zA-Z]|$)`)
)

// Container finds the group of a running container by its id or a prefix of
// it, in the cgroups of the processes that run now. No such container, or
// several, is an *inspector.Refusal with the reason unknown_cgroup.
func Container(proc, sys, prefix string) (Target, error) {
	const how = "give the container's id as its runtime shows it, at least 8 hexadecimal digits"
	prefix = strings.ToLower(prefix)
	if _, id, ok := strings.Cut(prefix, "://"); ok { // as Kubernetes writes it
		prefix = id
	}
	if !hexPrefix.MatchString(prefix) {
		return Target{}, unknown("container", "the container id "+show(prefix)+" is not 8 to 64 hexadecimal digits", how)
	}
	proc = or(proc, "/proc")
	trees := hierarchies(or(sys, "/sys"))
	entries, err := os.ReadDir(proc)
	if err != nil {
		return Target{}, fmt.Errorf("list processes: %w", err)
	}
	found := map[string]*container{}
	for _, e := range entries {
		if e.Name()[0] < '1' || e.Name()[0] > '9' {
			continue
		}
		text, err := os.ReadFile(filepath.Join(proc, e.Name(), "cgroup"))
		if err != nil {
			continue // gone meanwhile
		}
		for line := range strings.Lines(string(text)) {
			parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
			if len(parts) != 3 {
				continue
			}
			dir, id := containerDir(parts[2], prefix)
			if id == "" {
				continue
			}
			c := found[id]
			if c == nil {
				c = &container{dirs: map[string]string{}}
				found[id] = c
			}
			c.addLine(trees, parts[1], dir)
		}
	}
	switch len(found) {
	case 0:
		return Target{}, unknown("container", "no running process belongs to a container "+show(prefix), how)
	case 1:
		for _, c := range found {
			switch {
			case c.other != "":
				return Target{}, unknown("container", "two groups bear this container's id: "+show(c.Path)+" and "+show(c.other), "give the path of the one that is meant as cgroup")
			case len(c.IDs) == 0:
				return Target{}, unknown("container", "the group of the container is not below this agent's /sys/fs/cgroup", "mount the node's /sys/fs/cgroup into the agent")
			}
			return c.Target, nil
		}
	}
	return Target{}, unknown("container", fmt.Sprintf("%d containers have ids that begin with %s", len(found), show(prefix)), "give more digits")
}

// container is what the processes' groups say of one id. Whoever may make
// groups may name one after any container: an id that two groups of one
// hierarchy bear means neither.
type container struct {
	Target
	dirs  map[string]string // by hierarchy
	other string            // a second group
}

// containerDir returns the part of a path that ends with the segment which
// names a container of this prefix, and the container's id.
func containerDir(p, prefix string) (dir, id string) {
	segments := strings.Split(path.Clean("/"+p), "/")
	for i, s := range segments {
		if strings.Contains(s, "conmon") { // the runtime's own process beside the container
			continue
		}
		if m := containerID.FindStringSubmatch(s); m != nil && strings.HasPrefix(m[1], prefix) {
			return strings.Join(segments[:i+1], "/"), m[1]
		}
	}
	return "", ""
}

// addLine takes in one line of /proc/PID/cgroup: the controllers, none for
// version 2, and the group's path.
func (c *container) addLine(trees []hierarchy, controllers, dir string) {
	for _, h := range trees {
		named := strings.TrimPrefix(controllers, "name=")
		if (h.controllers == nil) != (controllers == "") || h.controllers != nil && strings.Join(h.controllers, ",") != named {
			continue
		}
		id, ok := inode(filepath.Join(h.root, dir))
		if !ok {
			continue
		}
		if had, again := c.dirs[h.root]; again && had != dir {
			c.other = dir
			continue
		}
		c.dirs[h.root] = dir
		if c.Path == "" || h.controllers == nil {
			c.Path = dir
		}
		c.add(h, id)
	}
}

package cgroups

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
)

const (
	docker = "3f1de2a90b6c3f1de2a90b6c3f1de2a90b6c3f1de2a90b6c3f1de2a90b6caaaa"
	crio   = "9c1de2a90b6c3f1de2a90b6c3f1de2a90b6c3f1de2a90b6c3f1de2a90b6cbbbb"
)

// plant makes directories (a trailing slash) and files below a fresh root.
func plant(t *testing.T, entries map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range entries {
		p := filepath.Join(root, name)
		dir := filepath.Dir(p)
		if strings.HasSuffix(name, "/") {
			dir = p
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if dir != p {
			if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

func id(t *testing.T, elem ...string) uint64 {
	t.Helper()
	ino, ok := inode(filepath.Join(elem...))
	if !ok {
		t.Fatalf("no directory %v", elem)
	}
	return ino
}

func layouts(t *testing.T) map[string]string {
	pod := "kubepods.slice/kubepods-pod12345678_aaaa.slice/"
	return map[string]string{
		"v2": plant(t, map[string]string{
			"sys/fs/cgroup/cgroup.controllers": "cpu memory", "sys/fs/cgroup/system.slice/web.service/": "",
			"sys/fs/cgroup/docker/" + docker + "/init/": "", "sys/fs/cgroup/" + pod + "crio-" + crio + ".scope/": "",
			"proc/10/cgroup": "0::/docker/" + docker + "/init\n", "proc/11/cgroup": "0::/" + pod + "crio-" + crio + ".scope\n",
			"proc/12/cgroup": "0::/\n", "proc/self/cgroup": "0::/\n",
		}),
		"v1": plant(t, map[string]string{
			"sys/fs/cgroup/memory/system.slice/web.service/": "", "sys/fs/cgroup/cpu,cpuacct/system.slice/web.service/": "",
			"sys/fs/cgroup/memory/docker/" + docker + "/": "", "sys/fs/cgroup/cpu,cpuacct/docker/" + docker + "/": "",
			"sys/fs/cgroup/memory/" + pod + "crio-" + crio + ".scope/": "",
			"proc/10/cgroup": "4:memory:/docker/" + docker + "\n3:cpu,cpuacct:/docker/" + docker + "\n1:name=systemd:/docker/" + docker + "\n",
			"proc/11/cgroup": "4:memory:/" + pod + "crio-" + crio + ".scope\n",
		}),
		"hybrid": plant(t, map[string]string{
			"sys/fs/cgroup/unified/cgroup.controllers": "", "sys/fs/cgroup/unified/system.slice/web.service/": "",
			"sys/fs/cgroup/memory/system.slice/web.service/": "", "sys/fs/cgroup/memory/docker/" + docker + "/": "",
			"sys/fs/cgroup/unified/" + pod + "crio-" + crio + ".scope/": "",
			"proc/10/cgroup": "4:memory:/docker/" + docker + "\n0::/\n", "proc/11/cgroup": "4:memory:/\n0::/" + pod + "crio-" + crio + ".scope\n",
		}),
	}
}

func TestResolveOnEveryLayout(t *testing.T) {
	for name, root := range layouts(t) {
		proc, sys := filepath.Join(root, "proc"), filepath.Join(root, "sys")
		top := filepath.Join(sys, "fs/cgroup")
		web := "/system.slice/web.service"
		want := Target{Path: web}
		var refs []string
		switch name {
		case "v2":
			want.V2 = id(t, top, web)
			want.IDs = []uint64{want.V2}
			refs = []string{"/sys/fs/cgroup" + web, strconv.FormatUint(want.V2, 10)}
		case "v1":
			m, c := id(t, top, "memory", web), id(t, top, "cpu,cpuacct", web)
			want.V1 = map[string]uint64{"memory": m, "cpu": c, "cpuacct": c}
			want.IDs = []uint64{c, m}
			refs = []string{"/sys/fs/cgroup/memory" + web, "/sys/fs/cgroup/cpuacct" + web, "/sys/fs/cgroup/cpu,cpuacct" + web}
		case "hybrid":
			want.V2 = id(t, top, "unified", web)
			want.V1 = map[string]uint64{"memory": id(t, top, "memory", web)}
			want.IDs = []uint64{want.V2, want.V1["memory"]}
			refs = []string{"/sys/fs/cgroup/unified" + web}
		}
		for _, ref := range append(refs, web, web[1:], web+"/", "/system.slice/../system.slice/web.service") {
			got, err := Resolve(proc, sys, ref)
			if err != nil {
				t.Errorf("%s %s: %v", name, ref, err)
			} else if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s %s (-want +got):\n%s", name, ref, d)
			}
		}
		for _, ref := range []string{"/no/such", "999999999999", "../../../etc", "/system.slice/web.service/x"} {
			refused(t, name+" "+ref, func() error { _, err := Resolve(proc, sys, ref); return err })
		}
	}
}

func refused(t *testing.T, what string, f func() error) {
	t.Helper()
	var r *inspector.Refusal
	if err := f(); !errors.As(err, &r) || r.Reason != inspector.ReasonUnknownCgroup || r.Kind != "NOT_FOUND" || r.Next == "" {
		t.Errorf("%s: %v, want the refusal unknown_cgroup", what, err)
	}
}

func TestContainerOnEveryLayout(t *testing.T) {
	for name, root := range layouts(t) {
		proc, sys := filepath.Join(root, "proc"), filepath.Join(root, "sys")
		for prefix, end := range map[string]string{docker[:8]: "/docker/" + docker, docker: "/docker/" + docker, "cri-o://" + crio[:12]: "crio-" + crio + ".scope", strings.ToUpper(crio[:9]): "crio-" + crio + ".scope"} {
			got, err := Container(proc, sys, prefix)
			if err != nil || !strings.HasSuffix(got.Path, end) || len(got.IDs) == 0 {
				t.Errorf("%s %s: %+v %v", name, prefix, got, err)
			}
		}
		for _, prefix := range []string{docker[:7], "12345678", "notahexvalue", "ffffffffffff", docker + "0"} {
			refused(t, name+" "+prefix, func() error { _, err := Container(proc, sys, prefix); return err })
		}
	}
}

func TestContainerPrefixOfTwo(t *testing.T) {
	other := docker[:40] + strings.Repeat("c", 24)
	root := plant(t, map[string]string{
		"sys/fs/cgroup/cgroup.controllers": "", "sys/fs/cgroup/" + docker + "/": "", "sys/fs/cgroup/" + other + "/": "",
		"proc/1/cgroup": "0::/" + docker + "\n", "proc/2/cgroup": "0::/" + other + "\n",
	})
	refused(t, "two containers", func() error { _, err := Container(root+"/proc", root+"/sys", docker[:40]); return err })
	if _, err := Container(root+"/proc", root+"/sys", docker[:41]); err != nil {
		t.Error(err)
	}
}

// A container that may make groups cannot pass one off as another container's,
// and the runtime's process beside a container is not the container.
func TestContainerThatPretends(t *testing.T) {
	own, conmon, forged := "/pod/crio-"+crio+".scope", "/pod/crio-conmon-"+crio+".scope", "/docker/"+docker+"/crio-"+crio+".scope"
	files := map[string]string{
		"sys/fs/cgroup/cgroup.controllers": "", "sys/fs/cgroup" + own + "/": "", "sys/fs/cgroup" + conmon + "/": "", "sys/fs/cgroup" + forged + "/": "",
		"proc/1/cgroup": "0::" + own + "\n", "proc/2/cgroup": "0::" + conmon + "\n",
	}
	root := plant(t, files)
	if got, err := Container(root+"/proc", root+"/sys", crio); err != nil || got.Path != own || len(got.IDs) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	files["proc/3/cgroup"] = "0::" + forged + "\n"
	root = plant(t, files)
	refused(t, "two groups of one id", func() error { _, err := Container(root+"/proc", root+"/sys", crio); return err })
}

func TestNames(t *testing.T) {
	for name, root := range layouts(t) {
		n := NewNames(filepath.Join(root, "sys"))
		tree, controller := map[string]string{"v2": "", "v1": "memory", "hybrid": "unified"}[name], map[string]string{"v1": "memory"}[name]
		at := "/system.slice/web.service"
		if got := n.V1(controller, id(t, root, "sys/fs/cgroup", tree, at)); got != at {
			t.Errorf("%s: %q, want %q", name, got, at)
		}
		if got := n.V1(controller, 1<<60); got != "" {
			t.Errorf("%s: an id of nobody is %q", name, got)
		}
		if got := n.V1("freezer", 1); got != "" {
			t.Errorf("%s: a hierarchy that is not there names %q", name, got)
		}
	}
}

// The machine's own root and group agree with what the kernel says.
func TestThisMachine(t *testing.T) {
	root, err := Resolve("", "", "/")
	if err != nil || root.Path != "/" {
		t.Fatalf("root: %+v %v", root, err)
	}
	names := NewNames("")
	for c, id := range root.V1 {
		if got := names.V1(c, id); got != "/" {
			t.Errorf("the root of %s is named %q", c, got)
		}
	}
	if root.V2 != 0 && names.Name(root.V2) != "/" {
		t.Errorf("the root of version 2 is named %q", names.Name(root.V2))
	}
}

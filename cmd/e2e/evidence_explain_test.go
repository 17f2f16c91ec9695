package e2e_test

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// causeIsNamed plants a cause and a change that has nothing to do with it: a
// disk has errors and is then slow, and meanwhile someone switches off the
// network module. explain names the first and lists the second as unrelated.
func causeIsNamed(t *testing.T, acme tenant, host node, d *disk) {
	first := func(kind string) (e eventDoc) {
		t.Helper()
		poll(t, 20*time.Second, kind+" of "+d.name, func() bool {
			list := events(t, acme, kind, "device", d.name)
			if len(list) > 0 {
				e = list[0]
			}
			return len(list) > 0
		})
		return e
	}
	d.lose(8 << 20)
	d.fail(t, 9<<20)
	cause := first("io_error")
	modules(t, acme, host, "network")
	defer modules(t, acme, host)
	d.reader(t, "tt-explain")
	effect := first("slow_io")

	text, code := telltale(t, acme, "read", "call", "explain", fmt.Sprintf(`{"event_id":%q}`, effect.ID))
	if code != 0 {
		t.Fatalf("explain: exit %d: %s", code, text)
	}
	a := tool(t, acme, "read", "explain", map[string]any{"event_id": effect.ID, "max_bytes": 65536})
	links, _ := a.body["chain"].([]any)
	named := false
	for _, l := range links {
		link := l.(map[string]any)
		named = named || link["event_id"] == cause.ID && link["confidence"] == "related"
	}
	if !named {
		t.Errorf("the chain does not name the disk's error (event %s): %s\n%s", cause.ID, sprintJSON(a.body["chain"]), text)
	}
	unrelated := false
	changes, _ := a.body["changes"].([]any)
	for _, c := range changes {
		change := c.(map[string]any)
		if what, _ := change["what"].(string); strings.Contains(what, "module network was switched off") {
			unrelated = change["related"] == false && change["why"] != ""
		}
	}
	if !unrelated {
		t.Errorf("the module switch is not listed as unrelated: %s\n%s", sprintJSON(a.body["changes"]), text)
	}
	for _, want := range []string{"unrelated: ", "looked at: ", "not looked at: ", "because: ", "i/o error (device=" + d.name, "the module is switched off"} {
		if !strings.Contains(strings.ToLower(text), want) {
			t.Errorf("explain does not say %q:\n%s", want, text)
		}
	}
	// A node, a refusal and a word that nobody knows.
	for _, q := range []map[string]any{{"node": host.Node}, {"refusal": "feature_off", "node": host.Node}, {"refusal": "agent_restarted"}} {
		if a := tool(t, acme, "read", "explain", q); a.isError || a.word("verdict") == "" {
			t.Errorf("explain %v: %s", q, a.text)
		}
	}
}

// modules switches modules of a node off and waits until that is known.
func modules(t *testing.T, x tenant, n node, off ...string) {
	t.Helper()
	if off == nil {
		off = []string{}
	}
	if status := rest(t, x, "admin", http.MethodPut, "/nodes/"+n.Node+"/modules", map[string]any{"off": off}, nil); status != http.StatusOK {
		t.Fatalf("PUT modules: %d", status)
	}
}

// gonePid is the number of a process that has ended.
func gonePid(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

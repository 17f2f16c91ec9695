package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func testEnv(vars map[string]string) (env, *bytes.Buffer, *bytes.Buffer) {
	var out, errs bytes.Buffer
	return env{&out, &errs, func(k string) (string, bool) { v, ok := vars[k]; return v, ok }}, &out, &errs
}

func TestSettingsPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.yaml")
	text := "interval: 30s\nqueue_mib: 3\nqueue: 100\nmodules_off: [network, host]\nserver: from-file:1\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e, _, _ := testEnv(map[string]string{"TELLTALE_QUEUE": "200", "TELLTALE_SERVER": "from-env:1", "TELLTALE_CONFIG": file, "TELLTALE_ENROL_TOKEN": "secret-token"})
	var c runConfig
	effective, err := load(e, "run", []string{"--server", "from-flag:1"}, c.settings(e))
	if err != nil {
		t.Fatal(err)
	}
	if c.server != "from-flag:1" || c.queue != 200 || c.queueMiB != 3 || c.interval != 30*time.Second || c.memoryMiB != 96 || strings.Join(c.off, " ") != "network host" {
		t.Errorf("configuration: %+v", c)
	}
	for _, a := range effective {
		if strings.Contains(a.Value.String(), "secret-token") {
			t.Error("the token would be logged")
		}
	}
}

func TestMistakesAreReportedTogether(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(file, []byte("interval: soon\nnope: 1\nproc: {a: b}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e, out, errs := testEnv(map[string]string{"TELLTALE_QUEUE": "-1"})
	code := dispatch(context.Background(), e, []string{"run", "--config", file, "--oom-score-adj", "9999", "stray"})
	if code != exitUsage || out.Len() != 0 {
		t.Errorf("code %d, output %q", code, out)
	}
	for _, want := range []string{"line 1: interval", "line 2: no setting \"nope\"", "line 3: proc", "TELLTALE_QUEUE", "--oom-score-adj", `"stray"`} {
		if !strings.Contains(errs.String(), want) {
			t.Errorf("%q lacks %q", errs, want)
		}
	}
}

func TestUnknownModuleNames(t *testing.T) {
	e, _, errs := testEnv(map[string]string{"TELLTALE_DIR": t.TempDir()})
	if code := dispatch(context.Background(), e, []string{"run", "--modules-off", "netwrk", "--signals-off", "network.nope,x"}); code != exitUsage {
		t.Errorf("code %d", code)
	}
	for _, want := range []string{`"netwrk"`, `"network.nope"`, `"x"`} {
		if !strings.Contains(errs.String(), want) {
			t.Errorf("%q lacks %q", errs, want)
		}
	}
}

func TestCommandLine(t *testing.T) {
	for _, tc := range []struct {
		args string
		code int
		want string // on stdout when the code is 0, else on stderr
	}{
		{"", exitUsage, "usage: telltale-agent COMMAND"}, {"--help", exitOK, "simulate"}, {"version", exitOK, version}, {"--version", exitOK, version},
		{"nope", exitUsage, `no command "nope"`}, {"run --help", exitOK, "TELLTALE_QUEUE_MIB"}, {"enrol --help", exitOK, "TELLTALE_ENROL_TOKEN"},
		{"simulate --help", exitOK, "--churn"}, {"enrol", exitUsage, "name the server's gRPC address"}, {"run --bad", exitUsage, "-bad"},
		{"run --log-level loud", exitUsage, "log-level"}, {"enrol --server x:1 --ca /nonexistent --token t", exitUsage, "/nonexistent"},
		{"enrol --server https://x:1", exitUsage, "HOST:PORT"}, {"enrol --server x", exitUsage, "HOST:PORT"}, {"enrol --server :1", exitUsage, "HOST:PORT"}, {"run --server x:http", exitUsage, "HOST:PORT"},
		{"check --help", exitOK, "usage: telltale-agent check [flags]"}, {"check --nope", exitUsage, "See telltale-agent check --help"}, {"check stray", exitUsage, `"stray"`},
		{"help run", exitOK, "usage: telltale-agent run [flags]"}, {"help check", exitOK, "--json"}, {"version --help", exitOK, "usage: telltale-agent version"}, {"version x", exitUsage, `"x"`},
		{"run --dir /proc/nonexistent/x", exitFailed, "identity directory"},
	} {
		e, out, errs := testEnv(nil)
		code := dispatch(context.Background(), e, strings.Fields(tc.args))
		got := errs
		if tc.code == exitOK {
			got = out
		}
		if code != tc.code || !strings.Contains(got.String(), tc.want) {
			t.Errorf("%q: code %d, %q, want %d and %q", tc.args, code, got, tc.code, tc.want)
		}
	}
}

// Every flag says what kind of value it takes.
func TestHelpNamesTheKindOfEachValue(t *testing.T) {
	e, _, _ := testEnv(nil)
	kinds := map[string]bool{}
	for _, k := range strings.Fields("ADDRESS FILE DIR DURATION N LIST LEVEL NAME TOKEN") {
		kinds[k] = true
	}
	for _, s := range append((&runConfig{}).settings(e), (&simulation{}).settings(e)...) {
		if !kinds[s.kind] {
			t.Errorf("--%s takes %q", s.name, s.kind)
		}
	}
}

func TestRunWithoutIdentitySaysWhatToDo(t *testing.T) {
	e, _, errs := testEnv(nil)
	dir := t.TempDir()
	if code := dispatch(context.Background(), e, []string{"run", "--dir", dir, "--oom-score-adj", "0"}); code != exitFailed {
		t.Errorf("code %d", code)
	}
	if !strings.Contains(errs.String(), "telltale-agent enrol") {
		t.Errorf("it says %q", errs)
	}
}

package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

// What is printed for the shell must be able to start a task, and each token's
// scope is named.
func TestWelcomeNamesTheDiagnoseToken(t *testing.T) {
	log, err := os.Create(t.TempDir() + "/telltaled.log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	var out strings.Builder
	d := &devRun{o: &devOptions{readyFile: "ready.json"}, out: &progress{w: &out, start: time.Now()}, logFile: log}
	printWelcome(d, readyDoc{Tenants: []readyTenant{{MCPURL: "http://127.0.0.1:8400/t/acme/mcp", OperatorTokens: map[string]string{"read": "tt_r", "diagnose": "tt_d"}}}}, "")
	for _, want := range []string{"export TELLTALE_URL=http://127.0.0.1:8400/t/acme/mcp\n", "export TELLTALE_TOKEN=tt_d\n", "tt_d   (telltale:read and telltale:diagnose", "tt_r   (telltale:read:", `Bearer tt_d"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, out.String())
		}
	}
}

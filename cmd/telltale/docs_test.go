package main

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	fence   = regexp.MustCompile("(?s)```(json|sh)\n(.*?)```")
	pasted  = regexp.MustCompile(`https://telltale\.example\.com[^\s"'` + "`" + `]*|http://127\.0\.0\.1:8400[^\s"'` + "`" + `]*`)
	program = regexp.MustCompile(`(?:^|[\s/])telltale ([a-z]+)([^|]*)`)
)

// TestConnectGuide holds docs/connect.md to what this program takes: people
// paste from it.
func TestConnectGuide(t *testing.T) {
	raw, err := os.ReadFile("../../docs/connect.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for _, u := range pasted.FindAllString(text, -1) {
		if msg := checkURL(strings.TrimRight(u, ".,)")); msg != "" {
			t.Errorf("%s: %s", u, msg)
		}
	}
	var called []string
	for _, b := range fence.FindAllStringSubmatch(text, -1) {
		if b[1] == "json" {
			if !json.Valid([]byte(b[2])) {
				t.Errorf("not JSON:\n%s", b[2])
			}
			continue
		}
		for line := range strings.SplitSeq(strings.ReplaceAll(b[2], "\\\n", " "), "\n") {
			line, _, _ = strings.Cut(line, " #")
			for _, m := range program.FindAllStringSubmatch(line, -1) {
				i := slices.IndexFunc(commands(), func(c command) bool { return c.name == m[1] })
				if i < 0 {
					if strings.Contains(line, "claude mcp") {
						continue // the name of a server there
					}
					t.Errorf("no command %q: %s", m[1], line)
					continue
				}
				called = append(called, m[1])
				var args []string
				for _, w := range regexp.MustCompile(`"[^"]*"|'[^']*'|\S+`).FindAllString(m[2], -1) {
					args = append(args, strings.Trim(w, `"'`))
				}
				if _, err := parseFlags(commands()[i], args); err != nil {
					t.Errorf("%s: %v", line, err)
				}
			}
		}
	}
	for _, want := range []string{"login", "logout", "tools", "call", "mcp"} {
		if !slices.Contains(called, want) {
			t.Errorf("the guide never calls telltale %s: %v", want, called)
		}
	}
	// What a heading is called is what links in the page and elsewhere name.
	anchor := regexp.MustCompile(`\]\(#([a-z0-9-]+)\)`)
	for _, m := range anchor.FindAllStringSubmatch(text, -1) {
		if !slices.ContainsFunc(strings.Split(text, "\n"), func(l string) bool {
			return strings.HasPrefix(l, "#") && strings.ReplaceAll(strings.ToLower(strings.TrimLeft(l, "# ")), " ", "-") == m[1]
		}) {
			t.Errorf("no heading for #%s", m[1])
		}
	}
}

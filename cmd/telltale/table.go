package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"
)

// Colours of a terminal.
const (
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	bold   = "\x1b[1m"
	reset  = "\x1b[0m"
)

// colourful reports whether f is a terminal and nobody asked for plain text
// (NO_COLOR, TERM=dumb).
func colourful(f *os.File, get func(string) string) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0 && get("NO_COLOR") == "" && get("TERM") != "dumb"
}

func paint(s, colour string, on bool) string {
	if !on || s == "" {
		return s
	}
	return colour + s + reset
}

// width counts what a terminal shows of s.
func width(s string) int {
	n := utf8.RuneCountInString(s)
	for rest := s; ; {
		_, after, ok := strings.Cut(rest, "\x1b[")
		if !ok {
			return n
		}
		code, tail, _ := strings.Cut(after, "m")
		n -= len(code) + 3
		rest = tail
	}
}

// writeTable writes rows with aligned columns; head may be nil. An empty cell
// becomes a dash.
func writeTable(w io.Writer, head []string, rows [][]string) {
	all := rows
	if head != nil {
		all = append([][]string{head}, rows...)
	}
	var widths []int
	for _, r := range all {
		for i, cell := range r {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], width(cell), 1)
		}
	}
	for _, r := range all {
		var line strings.Builder
		for i, cell := range r {
			if cell == "" {
				cell = "-"
			}
			line.WriteString(cell)
			if i < len(r)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-width(cell)+2))
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

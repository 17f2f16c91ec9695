package rig

import (
	"fmt"
	"os"
	"slices"
	"time"
)

// Table collects lines of the final table. A line is written to the file at
// once, so that a program that fails later leaves what it has measured.
type Table struct {
	file string
}

// NewTable appends to a file of tab-separated lines; with an empty name the
// lines are printed only.
func NewTable(file string) *Table { return &Table{file} }

// Add records one measure. limit is empty, "≥ x" or "≤ x" in words, and met
// tells whether it was kept; without a limit met is not looked at.
func (t *Table) Add(measure, result, limit string, met bool) error {
	verdict := ""
	switch {
	case limit == "":
		limit = "-"
	case met:
		verdict = "met"
	default:
		verdict = "MISSED"
	}
	fmt.Printf("  %-52s %-22s %-14s %s\n", measure, result, limit, verdict)
	if t.file == "" {
		return nil
	}
	f, err := os.OpenFile(t.file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(f, "%s\t%s\t%s\t%s\n", measure, result, limit, verdict); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// Quantile is the q-th part of the durations, which it sorts; 0 for none.
func Quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[min(len(d)-1, int(q*float64(len(d))))]
}

// Median of some numbers, which it sorts; 0 for none.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// Millis renders a duration for the table.
func Millis(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }

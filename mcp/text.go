package mcp

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

// page builds the text form of an answer: short lines and aligned tables.
type page struct{ b strings.Builder }

func (p *page) line(format string, args ...any) {
	fmt.Fprintf(&p.b, format, args...)
	p.b.WriteByte('\n')
}

// table writes cells, row after row, under a head, columns padded to their
// widest cell. Cells are cleaned: much of what they hold was written by nodes.
func (p *page) table(head, cells []string) { p.tableWith(head, cells, func(int) {}) }

// tableWith is table that lets below write further lines under each row.
func (p *page) tableWith(head, cells []string, below func(row int)) {
	if len(cells) == 0 {
		return
	}
	width := make([]int, len(head))
	measure := func(row []string) {
		for i, cell := range row {
			if row[i] = inspector.CleanText(cell); row[i] == "" {
				row[i] = "-"
			}
			width[i] = max(width[i], utf8.RuneCountInString(row[i]))
		}
	}
	measure(head)
	for row := range slices.Chunk(cells, len(head)) {
		measure(row)
	}
	line := 2 * len(width)
	for _, w := range width {
		line += w
	}
	p.b.Grow(line * (1 + len(cells)/len(head)))
	p.row(head, width)
	for i := 0; i < len(cells); i += len(head) {
		p.row(cells[i:i+len(head)], width)
		below(i / len(head))
	}
}

// row writes one row of a table, and no space at its end.
func (p *page) row(cells []string, width []int) {
	for len(cells) > 0 {
		last := strings.TrimRight(cells[len(cells)-1], " ")
		if cells[len(cells)-1] = last; last != "" {
			break
		}
		cells = cells[:len(cells)-1]
	}
	for i, cell := range cells {
		p.b.WriteString(cell)
		if i < len(cells)-1 {
			p.spaces(width[i] - utf8.RuneCountInString(cell) + 2)
		}
	}
	p.b.WriteByte('\n')
}

func (p *page) spaces(n int) {
	const some = "                                "
	for ; n > len(some); n -= len(some) {
		p.b.WriteString(some)
	}
	p.b.WriteString(some[:n])
}

func (p *page) notes(notes []string) {
	for _, n := range notes {
		p.line("note: %s", inspector.CleanText(n))
	}
}

func (p *page) coverage(c tenants.Coverage) {
	if c.Asked == 0 {
		p.line("coverage: no node is in scope")
		return
	}
	p.line("coverage: %d of %s answered", c.Answered, counted(c.Asked, "node"))
	missing := []string{}
	for i, n := range c.NotCovered {
		if i == 8 {
			break
		}
		missing = append(missing, fmt.Sprintf("%s (%s)", inspector.CleanText(n.Name), inspector.CleanText(n.Reason)))
	}
	if len(missing) > 0 {
		more := ""
		if rest := len(c.NotCovered) + c.More - len(missing); rest > 0 {
			more = fmt.Sprintf(" and %d more", rest)
		}
		p.line("not covered: %s%s", strings.Join(missing, ", "), more)
	}
}

func (p *page) truncated(t *tenants.Truncated) {
	if t == nil {
		return
	}
	total := "more exist"
	if t.Total != nil {
		total = fmt.Sprintf("of %d", *t.Total)
	}
	if t.Total == nil || *t.Total != t.Returned { // else all rows are there, and the hint says what is not
		p.line("truncated: %s returned, %s", counted(t.Returned, "row"), total)
	}
	if t.NextCursor != "" {
		p.line("next_cursor: %s", t.NextCursor)
	}
	if t.Hint != "" {
		p.line("hint: %s", inspector.CleanText(t.Hint))
	}
}

func (p *page) next(steps []Next) {
	for _, n := range steps {
		args, err := json.Marshal(n.Arguments)
		if err != nil {
			args = []byte("{}")
		}
		p.line("next: %s %s (%s)", inspector.CleanText(n.Tool), args, inspector.CleanText(n.Why))
	}
}

func (p *page) String() string { return inspector.CleanLines(strings.TrimRight(p.b.String(), "\n")) }

// quantity writes a number with its unit, four digits at most.
func quantity(v float64, unit string, perSecond bool) string {
	b := make([]byte, 0, 32)
	switch inspector.Unit(unit) {
	case inspector.Bytes:
		b = appendScaled(b, v, 1024, " B", " KiB", " MiB", " GiB", " TiB", " PiB")
	case inspector.Nanoseconds: // per second too: nanoseconds of something
		b = appendScaled(b, v, 1000, " ns", " µs", " ms", " s")
	case inspector.Ratio:
		return string(append(appendNumber(b, v*100), " %"...))
	case inspector.Seconds:
		b = append(appendNumber(b, v), " s"...)
	default:
		b = appendNumber(b, v)
	}
	if perSecond {
		b = append(b, "/s"...)
	}
	return string(b)
}

func appendScaled(b []byte, v, base float64, units ...string) []byte {
	i := 0
	for math.Abs(v) >= base && i < len(units)-1 {
		v /= base
		i++
	}
	return append(appendNumber(b, v), units[i]...)
}

// number writes whole numbers in full and fractions with four digits.
func number(v float64) string { return string(appendNumber(make([]byte, 0, 32), v)) }

func appendNumber(b []byte, v float64) []byte {
	switch {
	case v == math.Trunc(v) && math.Abs(v) < 1<<53:
		return strconv.AppendFloat(b, v, 'f', -1, 64)
	case math.Abs(v) >= 1e4 && math.Abs(v) < 1<<53:
		return strconv.AppendFloat(b, v, 'f', 0, 64)
	}
	return strconv.AppendFloat(b, v, 'g', 4, 64)
}

// counted writes a number with its noun, which takes an s unless it is one.
func counted[N int | uint64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprint(n, " ", noun)
}

// daysText writes a span of days that lies ahead or behind.
func daysText(days float64, ahead, behind string) string {
	verb, suffix := ahead+" in ", ""
	if days < 0 {
		verb, suffix, days = behind+" ", " ago", -days
	}
	if days < 1 {
		return verb + strconv.FormatFloat(days*24, 'f', 1, 64) + " hours" + suffix
	}
	return verb + strconv.FormatFloat(days, 'f', 1, 64) + " days" + suffix
}

func age(s *float64) string {
	if s == nil {
		return "never"
	}
	return (time.Duration(*s*10) * time.Second / 10).Round(100*time.Millisecond).String() + " ago"
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func labelText(m map[string]string) string {
	b := make([]byte, 0, 64)
	for i, k := range sortedKeys(m) {
		if i > 0 {
			b = append(b, ' ')
		}
		b = append(append(append(b, k...), '='), m[k]...)
	}
	return string(b)
}

var bars = []rune("▁▂▃▄▅▆▇█")

// sparkline draws points from their own minimum to their own maximum; a gap is
// an unknown value.
func sparkline(points []*float64) string {
	low, high := math.Inf(1), math.Inf(-1)
	for _, p := range points {
		if p != nil {
			low, high = min(low, *p), max(high, *p)
		}
	}
	if math.IsInf(low, 1) {
		return ""
	}
	var b strings.Builder
	for _, p := range points {
		switch {
		case p == nil:
			b.WriteRune('·')
		case high == low:
			b.WriteRune(bars[0])
		default:
			b.WriteRune(bars[int((*p-low)/(high-low)*float64(len(bars)-1)+0.5)])
		}
	}
	return b.String()
}

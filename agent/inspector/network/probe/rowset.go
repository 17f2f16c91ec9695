package probe

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// rowset gathers a task's rows by their labels.
type rowset struct {
	rows map[string]*inspector.ResultRow
}

func labelKey(labels map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		b.WriteString(k)
		b.WriteByte(0)
		b.WriteString(labels[k])
		b.WriteByte(0)
	}
	return b.String()
}

// row finds or makes the row of these labels, and adds to its count.
func (s *rowset) row(labels map[string]string, count uint64, benign bool) *inspector.ResultRow {
	if s.rows == nil {
		s.rows = map[string]*inspector.ResultRow{}
	}
	key := labelKey(labels)
	r := s.rows[key]
	if r == nil {
		r = &inspector.ResultRow{Labels: labels, Values: map[string]float64{}, Benign: benign}
		s.rows[key] = r
	}
	r.Count += count
	return r
}

// fold takes one label away from every row, which may make one of several,
// until the rows fit into a result; label names it for a row, "" leaves the
// row alone. Of the values, the greatest of "max" and sums of the others stay.
func (s *rowset) fold(label func(*inspector.ResultRow) string) (folded bool) {
	if len(s.rows) <= inspector.MaxResultRows {
		return false
	}
	old := s.rows
	s.rows = nil
	for _, key := range slices.Sorted(maps.Keys(old)) {
		r := old[key]
		labels := r.Labels
		if l := label(r); l != "" {
			labels = maps.Clone(labels)
			delete(labels, l)
		}
		into := s.row(labels, r.Count, r.Benign)
		for name, v := range r.Values {
			if extreme(name) {
				into.Values[name] = max(into.Values[name], v)
			} else {
				into.Values[name] += v
			}
		}
	}
	return true
}

// extreme tells values that do not add up.
func extreme(name string) bool {
	return strings.Contains(name, "max") || strings.HasPrefix(name, "srtt") || strings.HasPrefix(name, "rttvar") || name == "cwnd"
}

// finish puts the greatest rows into a result. overflow is the count of
// groups that found no room in the kernel.
func (s *rowset) finish(r *inspector.TaskResult, overflow uint64) {
	rows := make([]*inspector.ResultRow, 0, len(s.rows))
	for _, key := range slices.Sorted(maps.Keys(s.rows)) {
		rows = append(rows, s.rows[key])
	}
	slices.SortStableFunc(rows, func(a, b *inspector.ResultRow) int { return cmp.Compare(b.Count, a.Count) })
	for i, row := range rows {
		if i >= inspector.MaxResultRows {
			r.OtherRows++
			r.OtherCount += row.Count
			continue
		}
		if len(row.Values) == 0 {
			row.Values = nil
		}
		r.Rows = append(r.Rows, *row)
	}
	if overflow > 0 {
		r.OtherRows++
		r.OtherCount += overflow
		r.Notes = append(r.Notes, "there were more groups than the kernel had room for: the rest is in other_count as one")
	}
}

// perGroup is how many samples of one group are kept.
const perGroup = 8

// keep chooses the samples that a result shows: the first of every group.
type keep[S any] struct {
	samples []S
	groups  map[string]int
	passed  uint64 // not kept
}

func (k *keep[S]) add(group string, s S) {
	if k.groups == nil {
		k.groups = map[string]int{}
	}
	if len(k.samples) >= inspector.MaxResultSamples || k.groups[group] >= perGroup || len(k.groups) >= 1024 {
		k.passed++
		return
	}
	k.groups[group]++
	k.samples = append(k.samples, s)
}

// full says that no further sample will be kept.
func (k *keep[S]) full() bool { return len(k.samples) >= inspector.MaxResultSamples }

// lowerPort is the lower of two port labels, the service's as a rule; 0: none.
func lowerPort(a, b string) int {
	x, _ := strconv.Atoi(a)
	y, _ := strconv.Atoi(b)
	if x == 0 || y == 0 {
		return max(x, y)
	}
	return min(x, y)
}

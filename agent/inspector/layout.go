package inspector

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of a layout. What exceeds them is refused by Check.
const (
	MaxLabels     = 16   // labels of one series
	MaxLabelBytes = 128  // bytes of one label key or value
	MaxSeries     = 1000 // series of one layout
	MaxNameBytes  = 32   // bytes of a component's name, and of a unit
)

// Label is one key and value of a series.
type Label struct{ Key, Value string }

// Series is one time series: a metric and its labels, sorted by key.
// Kind and Unit are repeated so that a layout explains itself.
type Series struct {
	Metric string
	Kind   Kind
	Unit   Unit
	Labels []Label
}

// String renders the series as metric{key="value"}.
func (s Series) String() string {
	if len(s.Labels) == 0 {
		return s.Metric
	}
	var b strings.Builder
	b.WriteString(s.Metric)
	sep := byte('{')
	for _, l := range s.Labels {
		b.WriteByte(sep)
		fmt.Fprintf(&b, "%s=%q", l.Key, l.Value)
		sep = ','
	}
	b.WriteByte('}')
	return b.String()
}

// LayoutHash is the content address of a layout: SHA-256 over its canonical
// encoding.
type LayoutHash [sha256.Size]byte

func (h LayoutHash) String() string { return fmt.Sprintf("%x", h[:]) }

// Layout is an ordered set of series of one component. Windows carry its hash
// and packed values only. A Layout is immutable after NewLayout.
type Layout struct {
	Component string
	Series    []Series
	Hash      LayoutHash
}

// NewLayout sorts each series' labels and the series by name and labels,
// and computes the hash. The slices are taken over, not copied.
func NewLayout(component string, series []Series) *Layout {
	for i := range series {
		slices.SortFunc(series[i].Labels, func(a, b Label) int { return cmp.Compare(a.Key, b.Key) })
	}
	slices.SortStableFunc(series, compareSeries)
	l := &Layout{Component: component, Series: series}
	l.Hash = sha256.Sum256(l.AppendBinary(nil))
	return l
}

func compareSeries(a, b Series) int {
	return cmp.Or(cmp.Compare(a.Metric, b.Metric), slices.CompareFunc(a.Labels, b.Labels, func(x, y Label) int {
		return cmp.Or(cmp.Compare(x.Key, y.Key), cmp.Compare(x.Value, y.Value))
	}))
}

// Find returns the index of a series, or -1.
func (l *Layout) Find(s Series) int {
	i, ok := slices.BinarySearchFunc(l.Series, s, compareSeries)
	if !ok {
		return -1
	}
	return i
}

// Check reports the first reason why a layout is not acceptable: too many
// series or labels, over-long or invalid text, duplicates, unknown kinds.
func (l *Layout) Check() error {
	if !shortName(l.Component) {
		return fmt.Errorf("the component %q is not a name of 1 to %d visible ASCII characters", CleanText(clip(l.Component)), MaxNameBytes)
	}
	if len(l.Series) > MaxSeries {
		return fmt.Errorf("layout of %s has %d series, at most %d are allowed", clip(l.Component), len(l.Series), MaxSeries)
	}
	for i, s := range l.Series {
		if len(s.Metric) > MaxLabelBytes || !metricName.MatchString(s.Metric) {
			return fmt.Errorf("series %d: %q is not a metric name", i, clip(s.Metric))
		}
		if s.Kind == Unspecified || s.Kind > Histogram {
			return fmt.Errorf("series %d (%s): unknown kind %d", i, s.Metric, s.Kind)
		}
		if !shortName(string(s.Unit)) {
			return fmt.Errorf("series %d (%s): the unit %q is not a name of 1 to %d visible ASCII characters", i, s.Metric, CleanText(clip(string(s.Unit))), MaxNameBytes)
		}
		if len(s.Labels) > MaxLabels {
			return fmt.Errorf("series %d (%s) has %d labels, at most %d are allowed", i, s.Metric, len(s.Labels), MaxLabels)
		}
		for j, lb := range s.Labels {
			if len(lb.Key) == 0 || len(lb.Key) > MaxLabelBytes || len(lb.Value) > MaxLabelBytes {
				return fmt.Errorf("series %d (%s): label %q has %d bytes, a key or value has 1 to %d", i, s.Metric, clip(lb.Key), max(len(lb.Key), len(lb.Value)), MaxLabelBytes)
			}
			if !utf8.ValidString(lb.Key) || !utf8.ValidString(lb.Value) {
				return fmt.Errorf("series %d (%s): label %q is not valid UTF-8", i, s.Metric, CleanText(clip(lb.Key)))
			}
			if j > 0 && s.Labels[j-1].Key >= lb.Key {
				return fmt.Errorf("series %d (%s): label keys are not sorted and unique", i, s.Metric)
			}
		}
		if i > 0 && compareSeries(l.Series[i-1], s) >= 0 {
			return fmt.Errorf("series %d (%s): series are not sorted and unique", i, s.Metric)
		}
	}
	return nil
}

// shortName reports whether s is 1 to MaxNameBytes visible ASCII characters.
func shortName(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return s != "" && len(s) <= MaxNameBytes
}

func clip(s string) string {
	if len(s) > 40 {
		return s[:40]
	}
	return s
}

// layoutVersion leads the canonical encoding.
const layoutVersion = 1

// AppendBinary appends the canonical encoding: version, component, then each
// series with kind, unit and labels; strings carry a varint length.
func (l *Layout) AppendBinary(b []byte) []byte {
	b = append(b, layoutVersion)
	b = appendString(b, l.Component)
	b = binary.AppendUvarint(b, uint64(len(l.Series)))
	for _, s := range l.Series {
		b = appendString(b, s.Metric)
		b = append(b, byte(s.Kind))
		b = appendString(b, string(s.Unit))
		b = binary.AppendUvarint(b, uint64(len(s.Labels)))
		for _, lb := range s.Labels {
			b = appendString(appendString(b, lb.Key), lb.Value)
		}
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

var errLayout = errors.New("not a layout: the encoding is cut short or malformed")

// DecodeLayout reads a canonical encoding of untrusted origin. Memory use is
// bounded by the input's length. The result still has to pass Check.
func DecodeLayout(b []byte) (*Layout, error) {
	d := decoder{b: b}
	if d.byte() != layoutVersion {
		return nil, errors.New("not a layout: unknown version")
	}
	l := &Layout{Component: d.string()}
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		return nil, errLayout
	}
	l.Series = make([]Series, 0, n)
	for range n {
		s := Series{Metric: d.string(), Kind: Kind(d.byte()), Unit: Unit(d.string())}
		k := d.uvarint()
		if d.bad || k > uint64(len(d.b)) {
			return nil, errLayout
		}
		for range k {
			s.Labels = append(s.Labels, Label{Key: d.string(), Value: d.string()})
		}
		l.Series = append(l.Series, s)
	}
	if d.bad || len(d.b) != 0 {
		return nil, errLayout
	}
	l.Hash = sha256.Sum256(b)
	return l, nil
}

// decoder reads a byte slice; after the first short or malformed read it is
// bad and returns zero values.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.bad = true
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) string() string {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return ""
	}
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

package metrics

import (
	"encoding/base64"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Bounds of a Query.
const (
	MaxMetrics    = 20   // names of one query
	MaxPoints     = 1000 // points of one series
	MaxTop        = 100
	defaultPoints = 120
	maxAnswer     = 60_000 // points of one answer, over all series
	maxCohorts    = 2000   // series of one comparison
)

var metricName = regexp.MustCompile(`^[a-z][a-z0-9]*\.[a-z][a-z0-9_]*$`)

// check fills in defaults and refuses what is out of bounds.
func (q *Query) check(reg *inspector.Registry, now time.Time) error {
	if n := len(q.Metrics); n < 1 || n > MaxMetrics {
		return fault.Bad("metrics", "name 1 to %d metrics, not %d", MaxMetrics, n)
	}
	q.Metrics = slices.Clone(q.Metrics)
	slices.Sort(q.Metrics)
	q.Metrics = slices.Compact(q.Metrics)
	for _, m := range q.Metrics {
		if len(m) > inspector.MaxLabelBytes || !metricName.MatchString(m) {
			return fault.Bad("metrics", "%.60q is not a metric's name: want component.name", inspector.CleanText(m))
		}
	}
	if err := checkLabels("labels", q.Labels); err != nil {
		return err
	}
	if len(q.Group) > inspector.MaxLabelBytes || strings.ContainsRune(q.Group, 0) || !utf8.ValidString(q.Group) {
		return fault.Bad("group", "group is a node label's key of at most %d bytes", inspector.MaxLabelBytes)
	}
	var err error
	if q.From, q.To, err = bounds(q.From, q.To, now); err != nil {
		return err
	}
	if err := q.checkTop(reg); err != nil {
		return err
	}
	return q.checkStep()
}

func (q *Query) checkTop(reg *inspector.Registry) error {
	if q.Top < 0 || q.Top > MaxTop {
		return fault.Bad("top", "top is 1 to %d", MaxTop)
	}
	if q.Top*len(q.Metrics) > tenants.MaxListRows {
		return fault.Bad("top", "top times the number of metrics is at most %d", tenants.MaxListRows)
	}
	if q.By != "" && q.Top == 0 {
		return fault.Bad("by", "by needs top")
	}
	if q.Top > 0 && (q.Group != "" || q.Cursor != "") {
		return fault.Bad("top", "top goes with neither group nor cursor")
	}
	if q.Top > 0 && q.By == "" {
		q.By = ByAvg
	}
	if q.Top > 0 && !slices.Contains([]By{ByMax, ByAvg, ByLast, BySum}, q.By) {
		return fault.Bad("by", "by is one of max, avg, last, sum")
	}
	if q.By == BySum {
		for _, name := range q.Metrics {
			if m, ok := reg.Metric(name); ok && m.Kind == inspector.Gauge {
				return fault.Bad("by", "%s is a gauge: levels have no sum", name).Do("use avg, max or last")
			}
		}
	}
	return nil
}

// checkStep sets the step and aligns the span to it.
func (q *Query) checkStep() error {
	if q.Step == 0 {
		q.Step = tenants.WindowLength
		for q.points() > defaultPoints {
			q.Step += tenants.WindowLength
		}
	}
	if q.Step < tenants.WindowLength || q.Step%tenants.WindowLength != 0 {
		return fault.Bad("step", "want a multiple of %v", tenants.WindowLength)
	}
	if n := q.points(); n > MaxPoints {
		return fault.Bad("step", "%d points a series, at most %d are answered", n, MaxPoints).Do("take a longer step or a shorter span")
	}
	q.From = q.From.Truncate(q.Step)
	return nil
}

// points is the number of steps that cover the span.
func (q *Query) points() int {
	from := q.From.Truncate(q.Step)
	return int((q.To.Sub(from) + q.Step - 1) / q.Step)
}

// pageKey is where a page ends: the key of its last series. A cursor grants
// nothing, the next page is read in the caller's own scope.
type pageKey struct {
	Node   string `json:"n,omitempty"` // id of the node; of a comparison empty
	Metric string `json:"m"`
	Group  string `json:"g,omitempty"`
	Labels string `json:"l,omitempty"` // labelKey
}

func (k pageKey) compare(o pageKey) int {
	for _, p := range [...][2]string{{k.Node, o.Node}, {k.Metric, o.Metric}, {k.Labels, o.Labels}, {k.Group, o.Group}} {
		if c := strings.Compare(p[0], p[1]); c != 0 {
			return c
		}
	}
	return 0
}

func (k pageKey) cursor() string {
	b, _ := json.Marshal(k) // four strings always marshal
	return base64.RawURLEncoding.EncodeToString(b)
}

const maxCursor = 16 << 10

func readCursor(c string) (k pageKey, err error) {
	if c == "" {
		return k, nil
	}
	bad := fault.Bad("cursor", "not a cursor of this query").Do("use next_cursor as it was given, or start without a cursor")
	if len(c) > maxCursor {
		return k, bad
	}
	b, err := base64.RawURLEncoding.DecodeString(c)
	if err != nil || json.Unmarshal(b, &k) != nil || !metricName.MatchString(k.Metric) {
		return k, bad
	}
	if k.Node != "" {
		if _, err := tenants.ParseNodeID(k.Node); err != nil {
			return k, bad
		}
	}
	return k, nil
}

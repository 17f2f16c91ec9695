package rest

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func TestStrictQueries(t *testing.T) {
	w := newWorld(t)
	long := strings.Repeat("x", maxTextBytes+1)
	var labels []string
	for i := range tenants.MaxNodeLabels + 1 {
		labels = append(labels, fmt.Sprintf("k%d=v", i))
	}
	many := strings.Join(labels, ",")
	for target, want := range map[string]struct {
		status int
		field  string
		in     string // of the detail
	}{
		"/nodes?limit=0":              {400, "limit", "from 1"},
		"/nodes?limit=-5":             {400, "limit", "clamped to 200"},
		"/nodes?limit=x":              {400, "limit", "whole number"},
		"/nodes?limit=1.5":            {400, "limit", "whole number"},
		"/nodes?limit=":               {400, "limit", "empty"},
		"/nodes?limit=1&limit=2":      {400, "limit", "2 times"},
		"/nodes?Limit=1":              {400, "Limit", "known are cursor, labels, limit, search, status"},
		"/nodes?status=on":            {400, "status", "online, stale"},
		"/nodes?status=online,online": {400, "status", "twice"},
		"/nodes?status=online,,stale": {400, "status", "empty"},
		"/nodes?labels=role":          {400, "labels", "key=value"},
		"/nodes?labels==x":            {400, "labels", "key=value"},
		"/nodes?labels=a=1,a=2":       {400, "labels", "twice"},
		"/nodes?search=" + long:       {400, "search", "want 1 to 512"},
		"/nodes?search=%ff":           {400, "search", "UTF-8"},
		"/nodes?search=a%00b":         {400, "search", "NUL"},
		"/nodes?search=%zz":           {400, "", "malformed"},
		"/nodes?a;b":                  {400, "", "malformed"},
		"/nodes?cursor=" + strings.Repeat("y", maxCursor+1):       {400, "cursor", "unchanged"},
		"/nodes?cursor=nonsense":                                  {400, "cursor", ""},
		"/nodes?search=" + strings.Repeat("z", maxQueryBytes):     {414, "", "at most 8192"},
		"/nodes/" + w.db.String() + "?verbose=1":                  {400, "verbose", "takes none"},
		"/nodes/" + long:                                          {400, "node", "want 1 to 512"},
		"/nodes/a%00b":                                            {400, "node", "NUL"},
		"/nodes/no-such-node":                                     {404, "", "no node"},
		"/metrics/summary":                                        {400, "module", "required"},
		"/metrics/summary?module=network&from=yesterday":          {400, "from", "RFC 3339"},
		"/metrics/summary?module=network&from=-1y":                {400, "from", "15m"},
		"/metrics/summary?module=network&to=0001-01-01T00:00:00Z": {400, "to", "RFC 3339"},
		"/metrics/query":                                          {400, "metrics", "required"},
		"/metrics/query?metrics=a.b&step_s=15":                    {400, "step_s", "multiple of 10"},
		"/metrics/query?metrics=a.b&step_s=99999999999999999999":  {400, "step_s", "from 10 to"},
		"/metrics/query?metrics=a.b&top=101":                      {400, "top", "from 1 to 100"},
		"/metrics/query?metrics=a.b&by=median":                    {400, "by", "max, avg, last, sum"},
		// What the services refuse is named as it was sent, too.
		"/metrics/query?metrics=nonsense":                    {400, "metrics", "component.name"},
		"/metrics/query?metrics=a.b&step_s=10&from=-5h59m":   {400, "step_s", "at most 1000"},
		"/metrics/query?metrics=a.b&labels=" + many:          {400, "labels", "at most"},
		"/metrics/query?metrics=a.b&match=" + many:           {400, "match", "at most"},
		"/metrics/query?metrics=a.b&group=" + long[:300]:     {400, "group", "at most"},
		"/metrics/query?metrics=a.b&node=" + long[:300]:      {400, "node", "255"},
		"/metrics/query?metrics=a.b&from=-7h":                {400, "from", "kept"},
		"/metrics/query?metrics=a.b&to=2999-01-01T00:00:00Z": {400, "to", "future"},
		"/metrics/query?metrics=a.b&by=max":                  {400, "by", "top"},
		"/metrics/query?metrics=a.b&top=5&group=env":         {400, "top", "group"},
		"/metrics/query?metrics=a.b&cursor=x":                {400, "cursor", ""},
		"/metrics/summary?module=gpu":                        {400, "module", "gpu"},
		"/metrics/summary?module=network&labels=" + many:     {400, "labels", "at most"},
		"/metrics/summary?module=network&node=" + long[:300]: {400, "node", "255"},
		"/metrics/summary?module=network&from=-7h":           {400, "from", "kept"},
		"/nodes?labels=" + many:                              {400, "labels", "at most"},
	} {
		r := w.do("GET", "/t/acme/api/v1"+target, w.read, "")
		if r.StatusCode != want.status {
			t.Errorf("%.80s: %d, want %d: %s", target, r.StatusCode, want.status, r.body)
			continue
		}
		if p := r.problem(t); p.Field != want.field || !strings.Contains(p.Detail, want.in) {
			t.Errorf("%.80s: %+v, want the field %q and %q", target, p, want.field, want.in)
		}
	}
	for _, limit := range []string{"201", "1000000000", "99999999999999999999999999"} {
		r := w.do("GET", "/t/acme/api/v1/nodes?limit="+limit, w.read, "")
		if r.StatusCode != 200 || !strings.Contains(string(r.body), `"notes":["limit was clamped to 200"]`) {
			t.Errorf("limit=%s: %d %s", limit, r.StatusCode, r.body)
		}
	}
}

func TestPagesJoin(t *testing.T) {
	w := newWorld(t)
	var names []string
	cursor := ""
	for range 5 {
		target := "/t/acme/api/v1/nodes?limit=1"
		if cursor != "" {
			target += "&cursor=" + url.QueryEscape(cursor)
		}
		r := w.do("GET", target, w.read, "")
		if r.StatusCode != 200 {
			t.Fatalf("%d %s", r.StatusCode, r.body)
		}
		var page struct {
			Nodes []struct{ Node, Name string }
			Next  string `json:"next_cursor"`
		}
		r.into(t, &page)
		for _, n := range page.Nodes {
			names = append(names, n.Name)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if d := cmp.Diff([]string{"db-1", "web-1"}, names); d != "" {
		t.Error(d)
	}
}

func TestMoments(t *testing.T) {
	now := time.Date(2026, 3, 8, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"-15m":                      now.Add(-15 * time.Minute),
		"-1h30m":                    now.Add(-90 * time.Minute),
		"15m":                       now.Add(-15 * time.Minute),
		"24h":                       now.Add(-24 * time.Hour),
		"0s":                        now,
		"2026-03-08T02:30:00-05:00": time.Date(2026, 3, 8, 7, 30, 0, 0, time.UTC),
		"2026-03-08T07:30:00.5Z":    time.Date(2026, 3, 8, 7, 30, 0, 5e8, time.UTC),
	} {
		p := parseParams("from=" + url.QueryEscape(text))
		if got := p.moment("from", now); p.done() != nil || !got.Equal(want) {
			t.Errorf("%s is %v (%v), want %v", text, got, p.done(), want)
		}
	}
}

func TestMomentsOutOfBounds(t *testing.T) {
	for _, text := range []string{"--15m", "9000h", "-9000h", "15", "1y", "yesterday", "+-1h", "1969-12-31T00:00:00Z"} {
		p := parseParams("from=" + url.QueryEscape(text))
		if got := p.moment("from", time.Now()); p.err == nil {
			t.Errorf("%s is %v", text, got)
		}
	}
}

// FuzzParams: whatever the query string, there is an answer or one refusal
// that is safe to show, and every value that is let through is bounded.
func FuzzParams(f *testing.F) {
	for _, s := range []string{"", "limit=5", "limit=5&limit=6", "labels=a=1,b=2", "from=-15m&to=2026-01-01T00:00:00Z", "metrics=a.b,c.d&step_s=10&top=5&by=max", "%zz", "a;b", "status=online", "x=%ff", "limit=99999999999999999999"} {
		f.Add(s)
	}
	now := time.Date(2026, 3, 8, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, raw string) {
		p := parseParams(raw)
		limit, words, labels := p.limit(), p.words("metrics"), p.labels("labels")
		from, step, search := p.moment("from", now), p.whole("step_s", 10, maxStep), p.text("search")
		err := p.done()
		if err != nil {
			if got := fault.Of(err); got.Kind != fault.Invalid || got.Msg == "" || len(got.Field) > 200 {
				t.Errorf("%q: %+v", raw, got)
			}
			problemOf(err, "r")
			return
		}
		if limit < 0 || limit > tenants.MaxListRows || len(words) > maxListed || len(labels) > maxListed || len(search) > maxTextBytes || step != 0 && (step < 10 || step > maxStep) {
			t.Errorf("%q: out of bounds", raw)
		}
		if !from.IsZero() && (from.Year() < 1970 || from.Year() > 9999) {
			t.Errorf("%q: %v", raw, from)
		}
		for k := range p.values {
			if k != "limit" && k != "metrics" && k != "labels" && k != "from" && k != "step_s" && k != "search" {
				t.Errorf("%q: the unknown parameter %q was let through", raw, k)
			}
		}
	})
}

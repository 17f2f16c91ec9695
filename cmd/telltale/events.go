package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const eventsHelp = `  --node NODE      only events of this node, by id or unique name
  --label K=V      only of nodes with this label; may be repeated
  --kind KIND      only this kind; several with commas
  --severity S     only this severity and graver ones: info, warning, critical
  --since AGE      how far back, such as 15m or 6h, or from which time on, such
                   as 2026-01-02T15:04:05Z; 24h unless given
  --origin O       only those that nodes found (probe), or that people kept of a
                   task (promoted)
  --limit N        most rows; 50 unless given
  --json           print one JSON object a line, whole, instead of a table

The table cuts a long scope. telltale call get_event '{"event_id":"…"}' shows one of them whole.
`

// eventRow is what the table shows of an event.
type eventRow struct {
	ID         string            `json:"event_id"`
	Name       string            `json:"name"`
	Kind       string            `json:"kind"`
	Severity   string            `json:"severity"`
	State      string            `json:"state"`
	Origin     string            `json:"origin"`
	Scope      map[string]string `json:"scope"`
	First      time.Time         `json:"first_seen"`
	Cumulative uint64            `json:"cumulative_count"`
	Lost       uint64            `json:"lost"`
}

func events(ctx context.Context, e env, f *flags) error {
	if len(f.rest) > 0 {
		return usageError{fmt.Sprintf("events takes no argument %q", f.rest[0])}
	}
	most := 50
	if f.limit != "" {
		n, err := strconv.Atoi(f.limit)
		if err != nil || n < 1 {
			return usageError{fmt.Sprintf("--limit %q is not a whole number from 1", f.limit)}
		}
		most = n
	}
	args := map[string]any{"limit": min(most, 200)}
	if f.origin == "promoted" { // as the table calls it
		f.origin = "task"
	}
	for name, v := range map[string]string{"node": f.node, "min_severity": f.severity, "origin": f.origin} {
		if v != "" {
			args[name] = v
		}
	}
	if f.since != "" {
		args["from"] = f.since
		if _, err := time.Parse(time.RFC3339, f.since); err != nil {
			if d, err := time.ParseDuration(f.since); err != nil || d <= 0 {
				return usageError{fmt.Sprintf("--since %q is neither an age such as 15m or 24h nor a time such as 2026-01-02T15:04:05Z", f.since)}
			}
			args["from"] = "-" + f.since
		}
	}
	if len(f.kind) > 0 {
		args["kinds"] = f.kind
	}
	if err := f.labels(args); err != nil {
		return err
	}
	s, err := open(ctx, e, f)
	if err != nil {
		return err
	}
	defer s.Close()
	var rows [][]string
	err = s.eachRow(ctx, e, "list_events", "events", args, most, func(raw json.RawMessage) error {
		if f.json {
			_, err := fmt.Fprintln(e.out, string(raw))
			return err
		}
		var r eventRow
		if err := json.Unmarshal(raw, &r); err != nil {
			return err
		}
		rows = append(rows, r.cells(e.colour))
		return nil
	})
	switch {
	case err != nil:
		return err
	case f.json:
	case len(rows) == 0:
		fmt.Fprintln(e.out, "no event matches")
	default:
		writeTable(e.out, []string{"FIRST SEEN", "NODE", "SEVERITY", "KIND", "STATE", "COUNT", "ORIGIN", "SCOPE", "EVENT"}, rows)
	}
	return nil
}

func (r eventRow) cells(colour bool) []string {
	count, origin := strconv.FormatUint(r.Cumulative, 10), r.Origin
	if r.Lost > 0 {
		count = "≥" + count
	}
	if r.Origin == "task" {
		origin = "promoted"
	}
	scope := []string{}
	for _, k := range sorted(r.Scope) {
		scope = append(scope, k+"="+r.Scope[k])
	}
	shade := map[string]string{"critical": red, "warning": yellow}[r.Severity]
	return []string{r.First.UTC().Format("2006-01-02 15:04:05Z"), r.Name, paint(r.Severity, shade, colour && shade != ""), r.Kind, r.State, count, origin, cut(strings.Join(scope, " "), maxScope), r.ID}
}

// maxScope is how much of a scope the table shows: the event's id comes after
// it.
const maxScope = 60

// cut keeps the first and the last of a long text, for paths begin alike.
func cut(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	head := (most - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(most-1-head):])
}

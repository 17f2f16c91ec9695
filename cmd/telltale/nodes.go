package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

const nodesHelp = `  --status S       only nodes in this status; several with commas:
                   online, stale, offline, quarantined, duplicate, revoked, never
  --label K=V      only nodes with this label; may be repeated
  --search PREFIX  only nodes whose name begins so
  --json           print one JSON object a line instead of a table
`

// nodeRow is what the table shows of a node.
type nodeRow struct {
	Node         string            `json:"node"`
	Name         string            `json:"name"`
	Status       string            `json:"status"`
	Labels       map[string]string `json:"labels"`
	LastSeen     *time.Time        `json:"last_seen"`
	FreshnessS   *float64          `json:"freshness_s"`
	AgentVersion string            `json:"agent_version"`
	SkewMS       *int64            `json:"skew_ms"`
}

func nodes(ctx context.Context, e env, f *flags) error {
	if len(f.rest) > 0 {
		return usageError{fmt.Sprintf("nodes takes no argument %q", f.rest[0])}
	}
	args := map[string]any{"limit": 100}
	if len(f.status) > 0 {
		args["status"] = f.status
	}
	if f.search != "" {
		args["search"] = f.search
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
	err = s.eachRow(ctx, e, "list_nodes", "nodes", args, 0, func(raw json.RawMessage) error {
		if f.json {
			_, err := fmt.Fprintln(e.out, string(raw))
			return err
		}
		var n nodeRow
		if err := json.Unmarshal(raw, &n); err != nil {
			return err
		}
		rows = append(rows, n.cells(e.colour))
		return nil
	})
	if err != nil {
		return err
	}
	switch {
	case f.json:
	case len(rows) == 0:
		fmt.Fprintln(e.out, "no node matches")
	default:
		writeTable(e.out, []string{"NAME", "STATUS", "LAST SEEN", "SKEW", "VERSION", "LABELS", "NODE"}, rows)
	}
	return nil
}

func (n nodeRow) cells(colour bool) []string {
	seen, skew := "never", ""
	if n.FreshnessS != nil {
		seen = (time.Duration(*n.FreshnessS*10) * time.Second / 10).Round(time.Second).String() + " ago"
	}
	if n.SkewMS != nil {
		skew = fmt.Sprintf("%d ms", *n.SkewMS)
	}
	labels := []string{}
	for _, k := range sorted(n.Labels) {
		labels = append(labels, k+"="+n.Labels[k])
	}
	return []string{n.Name, paint(n.Status, statusColour(n.Status), colour), seen, skew, n.AgentVersion, strings.Join(labels, " "), n.Node}
}

func statusColour(status string) string {
	switch status {
	case "online":
		return green
	case "stale", "never":
		return yellow
	}
	return red
}

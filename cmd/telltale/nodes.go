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
	labels := map[string]string{}
	for _, l := range f.label {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" {
			return usageError{fmt.Sprintf("--label %q is not of the form KEY=VALUE", l)}
		}
		labels[k] = v
	}
	if len(labels) > 0 {
		args["labels"] = labels
	}
	s, err := open(ctx, e, f)
	if err != nil {
		return err
	}
	defer s.Close()
	var rows [][]string
	for {
		res, err := s.callTool(ctx, "list_nodes", args)
		if err != nil {
			return err
		}
		if res.IsError {
			fmt.Fprintln(e.err, textOf(res))
			return errReported
		}
		var page struct {
			Nodes      []json.RawMessage `json:"nodes"`
			NextCursor string            `json:"next_cursor"`
			Truncated  *struct {
				NextCursor string `json:"next_cursor"`
			} `json:"truncated"`
		}
		if err := remarshal(res.StructuredContent, &page); err != nil {
			return fmt.Errorf("the server's answer is not understood: %w", err)
		}
		for _, raw := range page.Nodes {
			if f.json {
				fmt.Fprintln(e.out, string(raw))
				continue
			}
			var n nodeRow
			if err := json.Unmarshal(raw, &n); err != nil {
				return fmt.Errorf("the server's answer is not understood: %w", err)
			}
			rows = append(rows, n.cells(e.colour))
		}
		cursor := page.NextCursor
		if cursor == "" && page.Truncated != nil {
			cursor = page.Truncated.NextCursor
		}
		if cursor == "" {
			break
		}
		args["cursor"] = cursor
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

func remarshal(from, to any) error {
	raw, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, to)
}

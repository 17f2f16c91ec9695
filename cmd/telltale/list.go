package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// labels adds the --label flags to a tool's arguments.
func (f *flags) labels(args map[string]any) error {
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
	return nil
}

// eachRow reads a list tool page by page and hands on each row, at most most
// of them; 0 means all.
func (s *session) eachRow(ctx context.Context, e env, tool, plural string, args map[string]any, most int, each func(json.RawMessage) error) error {
	for seen := 0; ; {
		res, err := s.callTool(ctx, tool, args)
		if err != nil {
			return err
		}
		if res.IsError {
			fmt.Fprintln(e.err, textOf(res))
			return errReported
		}
		var page struct {
			NextCursor string `json:"next_cursor"`
			Truncated  struct {
				NextCursor string `json:"next_cursor"`
			} `json:"truncated"`
		}
		rows := map[string]json.RawMessage{}
		var list []json.RawMessage
		if err := remarshal(res.StructuredContent, &page); err != nil {
			return err
		}
		if err := remarshal(res.StructuredContent, &rows); err != nil {
			return err
		}
		if err := remarshal(rows[plural], &list); err != nil {
			return err
		}
		for _, raw := range list {
			if most > 0 && seen == most {
				return nil
			}
			if err := each(raw); err != nil {
				return fmt.Errorf("the server's answer is not understood: %w", err)
			}
			seen++
		}
		cursor := page.NextCursor
		if cursor == "" {
			cursor = page.Truncated.NextCursor
		}
		if cursor == "" {
			return nil
		}
		args["cursor"] = cursor
	}
}

func remarshal(from, to any) error {
	raw, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(raw, to)
	}
	if err != nil {
		return fmt.Errorf("the server's answer is not understood: %w", err)
	}
	return nil
}

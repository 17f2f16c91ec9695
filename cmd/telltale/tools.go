package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

const toolsHelp = `  --list  the server's instructions, then each tool with description and arguments
  --json  the tools as the server describes them, one JSON object a line
`

const callHelp = `The arguments are one JSON object; "-" reads it from standard input, nothing is {}.
The answer's text goes to standard output. A refusal goes to standard error, exit 1;
a task that failed on its only node prints its answer, and exits 1 as well.

  --json  the structured answer or refusal instead of its text, as JSON

Examples
  telltale call fleet_overview
  telltale call explain '{"refusal":"pid_gone"}'
  telltale call metrics_summary '{"module":"network"}'
`

func tools(ctx context.Context, e env, f *flags) error {
	if len(f.rest) > 0 {
		return usageError{fmt.Sprintf("tools takes no argument %q", f.rest[0])}
	}
	s, err := open(ctx, e, f)
	if err != nil {
		return err
	}
	defer s.Close()
	var list []*sdk.Tool
	for t, err := range s.Tools(ctx, nil) {
		if err != nil {
			return s.t.failure(err)
		}
		list = append(list, t)
	}
	switch {
	case f.json:
		for _, t := range list {
			raw, err := json.Marshal(t)
			if err != nil {
				return err
			}
			fmt.Fprintln(e.out, string(raw))
		}
	case f.list:
		if init := s.InitializeResult(); init != nil && init.Instructions != "" {
			fmt.Fprintf(e.out, "%s\n\n", init.Instructions)
		}
		for _, t := range list {
			describe(e, t)
		}
	case len(list) == 0:
		fmt.Fprintln(e.out, "this token may use no tool; it needs telltale:read")
	default:
		rows := [][]string{}
		for _, t := range list {
			kind := "changes"
			if t.Annotations != nil && t.Annotations.ReadOnlyHint {
				kind = "reads"
			}
			rows = append(rows, []string{t.Name, kind, orElse(t.Title, t.Name)})
		}
		writeTable(e.out, []string{"TOOL", "KIND", "TITLE"}, rows)
	}
	return nil
}

// inputSchema is what the list shows of a tool's arguments.
type inputSchema struct {
	Properties map[string]struct {
		Type        string   `json:"type"`
		Description string   `json:"description"`
		Enum        []string `json:"enum"`
		Items       struct {
			Enum []string `json:"enum"`
		} `json:"items"`
		Default any `json:"default"`
		Minimum any `json:"minimum"`
		Maximum any `json:"maximum"`
	} `json:"properties"`
	Required []string `json:"required"`
}

func describe(e env, t *sdk.Tool) {
	fmt.Fprintf(e.out, "%s\n", paint(t.Name, bold, e.colour))
	wrap(e.out, t.Description, "  ")
	var in inputSchema
	if remarshal(t.InputSchema, &in) != nil {
		return
	}
	rows := [][]string{}
	for _, name := range sorted(in.Properties) {
		p := in.Properties[name]
		need := ""
		if slices.Contains(in.Required, name) {
			need = "required"
		}
		words := []string{}
		if p.Description != "" {
			words = append(words, p.Description)
		}
		if enum := append(p.Enum, p.Items.Enum...); len(enum) > 0 {
			words = append(words, "one of "+strings.Join(enum, ", "))
		}
		if p.Minimum != nil && p.Maximum != nil {
			words = append(words, fmt.Sprintf("%v to %v", p.Minimum, p.Maximum))
		}
		if p.Default != nil {
			words = append(words, fmt.Sprintf("default %v", p.Default))
		}
		rows = append(rows, []string{"    " + name, p.Type, need, strings.Join(words, "; ")})
	}
	writeTable(e.out, nil, rows)
	fmt.Fprintln(e.out)
}

// wrap writes text in lines of at most 100 characters.
func wrap(w io.Writer, text, indent string) {
	line := indent
	for word := range strings.FieldsSeq(text) {
		if len(line)+len(word) > 100 && line != indent {
			fmt.Fprintln(w, strings.TrimRight(line, " "))
			line = indent
		}
		line += word + " "
	}
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}

// countTools counts the tools that the credential may use.
func (s *session) countTools(ctx context.Context) (int, error) {
	n := 0
	for _, err := range s.Tools(ctx, nil) {
		if err != nil {
			return 0, s.t.failure(err)
		}
		n++
	}
	return n, nil
}

func call(ctx context.Context, e env, f *flags) error {
	if len(f.rest) == 0 {
		return usageError{"call needs the name of a tool; telltale tools lists them"}
	}
	if len(f.rest) > 2 {
		return usageError{fmt.Sprintf("call takes a tool and one JSON object, not %d arguments; quote the object", len(f.rest))}
	}
	text := "{}"
	if len(f.rest) == 2 {
		text = f.rest[1]
	}
	if text == "-" {
		raw, err := io.ReadAll(io.LimitReader(e.in, 1<<20))
		if err != nil {
			return fmt.Errorf("read the arguments: %w", err)
		}
		text = string(raw)
	}
	var args map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &args); err != nil || args == nil {
		return usageError{fmt.Sprintf("the arguments are not a JSON object: %s", strings.TrimSpace(text))}
	}
	s, err := open(ctx, e, f)
	if err != nil {
		return err
	}
	defer s.Close()
	res, err := s.callTool(ctx, f.rest[0], args)
	var wire *jsonrpc.Error
	var refused *statusError
	switch {
	case errors.As(err, &refused) && refused.code == jsonrpc.CodeInvalidParams:
		return fmt.Errorf("%w; telltale tools lists the tools this token may use", err)
	case errors.As(err, &wire):
		return fmt.Errorf("%s (code %d); telltale tools lists the tools this token may use", wire.Message, wire.Code)
	case err != nil:
		return err
	}
	out := textOf(res)
	if f.json {
		raw, err := json.MarshalIndent(res.StructuredContent, "", "  ")
		if err != nil {
			return fmt.Errorf("the server's answer is not understood: %w", err)
		}
		out = string(raw)
	}
	if res.IsError {
		fmt.Fprintln(e.err, out)
		return errReported
	}
	if _, err := fmt.Fprintln(e.out, out); err != nil {
		return err
	}
	if failed(res) {
		return errReported
	}
	return nil
}

// failed reports an answer about a task that ended without success on the only
// node that it ran on. Of several nodes, what each found is the answer.
func failed(res *sdk.CallToolResult) bool {
	var task struct {
		Ticket string            `json:"ticket_id"`
		Status string            `json:"status"`
		Nodes  []json.RawMessage `json:"nodes"`
	}
	if remarshal(res.StructuredContent, &task) != nil {
		return false
	}
	return task.Ticket != "" && len(task.Nodes) == 1 && slices.Contains([]string{"FAILED", "TIMED_OUT", "NODE_DISCONNECTED", "EXPIRED"}, task.Status)
}

func textOf(res *sdk.CallToolResult) string {
	parts := []string{}
	for _, c := range res.Content {
		if t, ok := c.(*sdk.TextContent); ok {
			parts = append(parts, t.Text)
		}
	}
	return strings.Join(parts, "\n")
}

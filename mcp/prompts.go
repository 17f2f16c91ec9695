package mcp

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"text/template"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

//go:embed prompts/*.md
var promptFiles embed.FS

// prompt is one reviewed file: a head with title and description, then the
// text as a template with the one value Node.
type prompt struct {
	name, title, words string
	text               *template.Template
}

// prompts reads the files. They are part of the program: a mistake in one is a
// defect that the first test finds.
func prompts() []prompt {
	names, err := fs.Glob(promptFiles, "prompts/*.md")
	if err != nil {
		panic(err)
	}
	out := []prompt{}
	for _, file := range names {
		raw, err := promptFiles.ReadFile(file)
		if err != nil {
			panic(err)
		}
		head, body, ok := strings.Cut(string(raw), "\n\n")
		title, words, ok2 := strings.Cut(head, "\n")
		title, ok3 := strings.CutPrefix(title, "# ")
		if !ok || !ok2 || !ok3 {
			panic(file + ": want a heading, a line that describes it, an empty line and the text")
		}
		name := strings.TrimSuffix(path.Base(file), ".md")
		out = append(out, prompt{name, title, words, template.Must(template.New(name).Option("missingkey=error").Parse(strings.TrimSpace(body)))})
	}
	return out
}

// write fills the text in. The node's name is the caller's own word: it is
// cleaned, bounded and quoted, so that it stays a name.
func (p prompt) write(node string) (string, error) {
	if node != "" {
		node = fmt.Sprintf("%q", inspector.CleanText(clip(node, 200)))
	}
	var b strings.Builder
	err := p.text.Execute(&b, map[string]string{"Node": node})
	return b.String(), err
}

// addPrompts registers the prompts.
func (h *Handler) addPrompts(s *sdk.Server) {
	for _, p := range h.prompts {
		s.AddPrompt(&sdk.Prompt{Name: p.name, Title: p.title, Description: p.words,
			Arguments: []*sdk.PromptArgument{{Name: "node", Title: "Node", Description: "id or unique name; without it the whole fleet"}}},
			func(ctx context.Context, req *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
				if c, ok := callerOf(ctx); !ok || !c.scope.Granted.Has(tenants.Read) {
					return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("unknown prompt %q", p.name)}
				}
				text, err := p.write(req.Params.Arguments["node"])
				if err != nil {
					return nil, fmt.Errorf("write prompt %s: %w", p.name, err)
				}
				return &sdk.GetPromptResult{Description: p.words, Messages: []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{Text: text}}}}, nil
			})
	}
}

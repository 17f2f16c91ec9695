package conformance_test

//lint:file-ignore SA1019 the suites ask for what the newest protocol version deprecates

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// The suites ask for things with fixed names and fixed answers. They are a
// table each; what takes several rounds is in rounds_test.go.

const (
	redDot  = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==" // a PNG of one pixel
	silence = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="                                     // an empty WAV
)

func decoded(text string) []byte {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		panic(err) // a constant
	}
	return b
}

func said(format string, args ...any) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

func embedded(uri string) sdk.Content {
	return &sdk.EmbeddedResource{Resource: &sdk.ResourceContents{URI: uri, MIMEType: "text/plain", Text: "An embedded resource."}}
}

type call = sdk.CallToolRequest

type fixtureTool struct {
	name   string
	schema string // empty: an object
	run    func(context.Context, *call) (*sdk.CallToolResult, error)
}

const oneText = `{"type":"object","properties":{%q:{"type":"string"}}}`

var fixtureTools = []fixtureTool{
	{"test_simple_text", "", func(context.Context, *call) (*sdk.CallToolResult, error) {
		return said("This is a simple text response for testing."), nil
	}},
	{"test_image_content", "", func(context.Context, *call) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.ImageContent{Data: decoded(redDot), MIMEType: "image/png"}}}, nil
	}},
	{"test_audio_content", "", func(context.Context, *call) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.AudioContent{Data: decoded(silence), MIMEType: "audio/wav"}}}, nil
	}},
	{"test_embedded_resource", "", func(context.Context, *call) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{embedded("test://embedded-resource")}}, nil
	}},
	{"test_multiple_content_types", "", func(context.Context, *call) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "Multiple content types test:"},
			&sdk.ImageContent{Data: decoded(redDot), MIMEType: "image/png"}, embedded("test://mixed-content-resource")}}, nil
	}},
	{"test_error_handling", "", func(context.Context, *call) (*sdk.CallToolResult, error) {
		res := said("This tool intentionally returns an error for testing")
		res.IsError = true
		return res, nil
	}},
	{"test_tool_with_progress", "", func(ctx context.Context, req *call) (*sdk.CallToolResult, error) {
		token := req.Params.GetProgressToken()
		for _, done := range []float64{0, 50, 100} {
			if err := req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: done, Total: 100, Message: "a step"}); err != nil {
				return nil, err
			}
		}
		return said("%v", token), nil
	}},
	{"test_tool_with_logging", "", func(ctx context.Context, req *call) (*sdk.CallToolResult, error) {
		return logged(ctx, req, "Tool execution started", "Tool processing data", "Tool execution completed")
	}},
	{"test_logging_tool", "", func(ctx context.Context, req *call) (*sdk.CallToolResult, error) {
		return logged(ctx, req, "nobody asked for this line")
	}},
	{"test_streaming_elicitation", "", func(context.Context, *call) (*sdk.CallToolResult, error) {
		return said("No request of the server's own travels on this stream."), nil
	}},
	{"test_missing_capability", "", func(_ context.Context, req *call) (*sdk.CallToolResult, error) {
		if caps := req.ClientCapabilities(); caps != nil && caps.Sampling != nil {
			return said("The client samples."), nil
		}
		data, err := json.Marshal(sdk.MissingRequiredClientCapabilityData{RequiredCapabilities: &sdk.ClientCapabilities{Sampling: &sdk.SamplingCapabilities{}}})
		return nil, rpcError(sdk.CodeMissingRequiredClientCapabilities, "this tool needs a client that samples", data, err)
	}},
	{"test_reconnection", "", func(_ context.Context, req *call) (*sdk.CallToolResult, error) {
		if req.Extra != nil && req.Extra.CloseSSEStream != nil {
			req.Extra.CloseSSEStream(sdk.CloseSSEStreamArgs{RetryAfter: 10 * time.Millisecond})
		}
		return said("The stream was kept: a server without sessions has no other to reconnect to."), nil
	}},
	{"test_x_mcp_header", `{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"level":{"type":"integer"}}}`,
		func(_ context.Context, req *call) (*sdk.CallToolResult, error) {
			return said("arguments %s", req.Params.Arguments), nil
		}},
	{"json_schema_2020_12_tool", schema202012, func(_ context.Context, req *call) (*sdk.CallToolResult, error) {
		return said("arguments %s", req.Params.Arguments), nil
	}},
	// A server without sessions has no way back to its client in the initialize
	// era: these four are the expected failures.
	{"test_sampling", fmt.Sprintf(oneText, "prompt"), func(ctx context.Context, req *call) (*sdk.CallToolResult, error) {
		res, err := req.Session.CreateMessage(ctx, &sdk.CreateMessageParams{MaxTokens: 100, Messages: []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: "Hello"}}}})
		return asked(res, err)
	}},
	{"test_elicitation", fmt.Sprintf(oneText, "message"), elicits(`{"type":"object","properties":{"username":{"type":"string"}},"required":["username"]}`)},
	{"test_elicitation_sep1034_defaults", "", elicits(`{"type":"object","properties":{"name":{"type":"string","default":"John Doe"},"age":{"type":"integer","default":30},
		"score":{"type":"number","default":95.5},"status":{"type":"string","enum":["active","inactive","pending"],"default":"active"},"verified":{"type":"boolean","default":true}}}`)},
	{"test_elicitation_sep1330_enums", "", elicits(`{"type":"object","properties":{"untitledSingle":{"type":"string","enum":["option1","option2","option3"]}}}`)},
	// Ours: what a defect in a tool does to the process.
	{"test_panic", "", func(context.Context, *call) (*sdk.CallToolResult, error) { panic("a defect of the fixture") }},
}

const schema202012 = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",
	"$defs":{"address":{"$anchor":"addressDef","type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}}}},
	"properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"},"contactMethod":{"type":"string","enum":["phone","email"]},"phone":{"type":"string"},"email":{"type":"string"}},
	"allOf":[{"anyOf":[{"required":["phone"]},{"required":["email"]}]}],
	"if":{"properties":{"contactMethod":{"const":"phone"}},"required":["contactMethod"]},"then":{"required":["phone"]},"else":{"required":["email"]},"additionalProperties":false}`

func rpcError(code int64, msg string, data json.RawMessage, err error) error {
	if err != nil {
		return err
	}
	return &jsonrpc.Error{Code: code, Message: msg, Data: data}
}

func logged(ctx context.Context, req *call, lines ...string) (*sdk.CallToolResult, error) {
	for _, l := range lines {
		if err := req.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "info", Data: l}); err != nil {
			return nil, err
		}
	}
	return said("Tool with logging executed successfully"), nil
}

func elicits(schema string) func(context.Context, *call) (*sdk.CallToolResult, error) {
	return func(ctx context.Context, req *call) (*sdk.CallToolResult, error) {
		res, err := req.Session.Elicit(ctx, &sdk.ElicitParams{Message: "Please answer", RequestedSchema: json.RawMessage(schema)})
		return asked(res, err)
	}
}

// asked says what came back from the client.
func asked(res any, err error) (*sdk.CallToolResult, error) {
	if err != nil {
		out := said("the client cannot be asked: %v", err)
		out.IsError = true
		return out, nil
	}
	raw, err := json.Marshal(res)
	return said("the client answered %s", raw), err
}

// changeTools changes what the fleet runs, and so the list of tools.
func (w *world) changeTools(context.Context, *call) (*sdk.CallToolResult, error) {
	return said("change %d of the fleet", w.fleet.changes.Add(1)), nil
}

// register adds the fixtures to a server. It is mcp.Config.Extra.
func (w *world) register(s *sdk.Server) {
	for _, t := range slices.Concat(fixtureTools, roundTools, []fixtureTool{{"test_trigger_tool_change", "", w.changeTools}}) {
		schema := t.schema
		if schema == "" {
			schema = `{"type":"object"}`
		}
		s.AddTool(&sdk.Tool{Name: t.name, Description: "A fixture of the conformance suites.", InputSchema: json.RawMessage(schema)}, t.run)
	}
	for uri, content := range map[string]*sdk.ResourceContents{
		"test://static-text":      {MIMEType: "text/plain", Text: "This is the content of the static text resource."},
		"test://static-binary":    {MIMEType: "image/png", Blob: decoded(redDot)},
		"test://watched-resource": {MIMEType: "text/plain", Text: "Nothing has changed."},
	} {
		content.URI = uri
		s.AddResource(&sdk.Resource{URI: uri, Name: strings.TrimPrefix(uri, "test://"), MIMEType: content.MIMEType}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{content}}, nil
		})
	}
	s.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: "test://template/{id}/data", Name: "template", MIMEType: "application/json"},
		func(_ context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			id := strings.TrimSuffix(strings.TrimPrefix(req.Params.URI, "test://template/"), "/data")
			text, err := json.Marshal(map[string]any{"id": id, "templateTest": true, "data": "Data for ID: " + id})
			return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: req.Params.URI, MIMEType: "application/json", Text: string(text)}}}, err
		})
	prompt := func(name string, args []string, messages func(map[string]string) []sdk.Content) {
		p := &sdk.Prompt{Name: name, Description: "A fixture of the conformance suites."}
		for _, a := range args {
			p.Arguments = append(p.Arguments, &sdk.PromptArgument{Name: a, Required: true})
		}
		s.AddPrompt(p, func(_ context.Context, req *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
			out := &sdk.GetPromptResult{}
			for _, c := range messages(req.Params.Arguments) {
				out.Messages = append(out.Messages, &sdk.PromptMessage{Role: "user", Content: c})
			}
			return out, nil
		})
	}
	prompt("test_simple_prompt", nil, func(map[string]string) []sdk.Content {
		return []sdk.Content{&sdk.TextContent{Text: "This is a simple prompt for testing."}}
	})
	prompt("test_prompt_with_arguments", []string{"arg1", "arg2"}, func(args map[string]string) []sdk.Content {
		return []sdk.Content{&sdk.TextContent{Text: fmt.Sprintf("Prompt with arguments: arg1='%s', arg2='%s'", args["arg1"], args["arg2"])}}
	})
	prompt("test_prompt_with_embedded_resource", []string{"resourceUri"}, func(args map[string]string) []sdk.Content {
		return []sdk.Content{embedded(args["resourceUri"]), &sdk.TextContent{Text: "Please process the embedded resource above."}}
	})
	prompt("test_prompt_with_image", nil, func(map[string]string) []sdk.Content {
		return []sdk.Content{&sdk.ImageContent{Data: decoded(redDot), MIMEType: "image/png"}, &sdk.TextContent{Text: "Please analyze the image above."}}
	})
	s.AddPrompt(&sdk.Prompt{Name: "test_input_required_result_prompt", Description: "A fixture of the conformance suites."}, contextPrompt)
}

package conformance_test

//lint:file-ignore SA1019 the suites ask for what the newest protocol version deprecates

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// In 2026-07-28 a tool asks its client by ending the call with what it needs;
// the client calls again with the answers and the state it was given.

const (
	askName  = `{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`
	askColor = `{"type":"object","properties":{"color":{"type":"string"}},"required":["color"]}`
	askOK    = `{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}`
	askWords = `{"type":"object","properties":{"context":{"type":"string"}},"required":["context"]}`
)

func form(message, schema string) sdk.InputRequest {
	return &sdk.ElicitParams{Message: message, RequestedSchema: json.RawMessage(schema)}
}

func completion(text string) sdk.InputRequest {
	return &sdk.CreateMessageParams{MaxTokens: 100, Messages: []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: text}}}}
}

// filled is a value of an accepted form.
func filled[T any](in sdk.InputResponseMap, key, field string) (v T, ok bool) {
	if res, isForm := in[key].(*sdk.ElicitResult); isForm && res != nil && res.Action == "accept" {
		v, ok = res.Content[field].(T)
	}
	return v, ok
}

// completed is the text of a sampled message.
func completed(in sdk.InputResponseMap, key string) (string, bool) {
	if res, ok := in[key].(*sdk.CreateMessageWithToolsResult); ok && res != nil {
		for _, c := range res.Content {
			if t, ok := c.(*sdk.TextContent); ok {
				return t.Text, true
			}
		}
	}
	return "", false
}

func roots(in sdk.InputResponseMap) (int, bool) {
	res, ok := in["client_roots"].(*sdk.ListRootsResult)
	if !ok || res == nil {
		return 0, false
	}
	return len(res.Roots), true
}

// stateKey seals the state that travels through the client.
var stateKey = []byte(rand.Text())

func seal(state string) string {
	mac := hmac.New(sha256.New, stateKey)
	mac.Write([]byte(state))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)) + "." + state
}

func unseal(sealed string) (string, error) {
	_, state, _ := strings.Cut(sealed, ".")
	if !hmac.Equal([]byte(sealed), []byte(seal(state))) {
		return "", &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "requestState is not what this server gave out"}
	}
	return state, nil
}

func needs(state string, want sdk.InputRequestMap) *sdk.CallToolResult {
	res := &sdk.CallToolResult{InputRequests: want}
	if state != "" {
		res.RequestState = seal(state)
	}
	return res
}

var roundTools = []fixtureTool{
	{"test_input_required_result_elicitation", "", func(_ context.Context, req *call) (*sdk.CallToolResult, error) {
		if name, ok := filled[string](req.Params.InputResponses, "user_name", "name"); ok && name != "" {
			return said("Hello, %s!", name), nil
		}
		return needs("", sdk.InputRequestMap{"user_name": form("What is your name?", askName)}), nil
	}},
	{"test_input_required_result_sampling", "", func(_ context.Context, req *call) (*sdk.CallToolResult, error) {
		if text, ok := completed(req.Params.InputResponses, "capital_question"); ok {
			return said("The model said: %s", text), nil
		}
		return needs("", sdk.InputRequestMap{"capital_question": completion("What is the capital of France?")}), nil
	}},
	{"test_input_required_result_list_roots", "", func(_ context.Context, req *call) (*sdk.CallToolResult, error) {
		if n, ok := roots(req.Params.InputResponses); ok {
			return said("The client has %d roots", n), nil
		}
		return needs("", sdk.InputRequestMap{"client_roots": &sdk.ListRootsParams{}}), nil
	}},
	{"test_input_required_result_request_state", "", confirmed},
	{"test_input_required_result_tampered_state", "", confirmed},
	{"test_input_required_result_multiple_inputs", "", func(_ context.Context, req *call) (*sdk.CallToolResult, error) {
		in := req.Params.InputResponses
		name, ok1 := filled[string](in, "user_name", "name")
		greeting, ok2 := completed(in, "greeting")
		n, ok3 := roots(in)
		if ok1 && ok2 && ok3 {
			if _, err := unseal(req.Params.RequestState); err != nil {
				return nil, err
			}
			return said("%s %s, %d roots", greeting, name, n), nil
		}
		return needs("three at once", sdk.InputRequestMap{"user_name": form("What is your name?", askName), "greeting": completion("Greet"), "client_roots": &sdk.ListRootsParams{}}), nil
	}},
	{"test_input_required_result_multi_round", "", func(_ context.Context, req *call) (*sdk.CallToolResult, error) {
		in := req.Params.InputResponses
		if req.Params.RequestState == "" {
			return needs("first", sdk.InputRequestMap{"step1": form("Step 1: What is your name?", askName)}), nil
		}
		state, err := unseal(req.Params.RequestState)
		if err != nil {
			return nil, err
		}
		if state == "first" {
			name, _ := filled[string](in, "step1", "name")
			return needs("second "+name, sdk.InputRequestMap{"step2": form("Step 2: What is your favorite color?", askColor)}), nil
		}
		color, _ := filled[string](in, "step2", "color")
		return said("%s likes %s", strings.TrimPrefix(state, "second "), color), nil
	}},
	{"test_input_required_result_capabilities", "", func(_ context.Context, req *call) (*sdk.CallToolResult, error) {
		if len(req.Params.InputResponses) > 0 {
			return said("The client answered."), nil
		}
		want, caps := sdk.InputRequestMap{}, req.ClientCapabilities()
		if caps != nil && caps.Elicitation != nil {
			maps.Copy(want, sdk.InputRequestMap{"user_name": form("What is your name?", askName)})
		}
		if caps != nil && caps.Sampling != nil {
			maps.Copy(want, sdk.InputRequestMap{"greeting": completion("Greet")})
		}
		if len(want) == 0 {
			return said("This client can be asked for nothing."), nil
		}
		return needs("", want), nil
	}},
}

// confirmed asks for a yes, and takes it only with the state it gave out.
func confirmed(_ context.Context, req *call) (*sdk.CallToolResult, error) {
	if req.Params.RequestState != "" {
		if _, err := unseal(req.Params.RequestState); err != nil {
			return nil, err
		}
		if _, ok := filled[bool](req.Params.InputResponses, "confirm", "ok"); ok {
			return said("state-ok: confirmed"), nil
		}
	}
	return needs("confirming", sdk.InputRequestMap{"confirm": form("Please confirm", askOK)}), nil
}

// contextPrompt is the same in a prompt.
func contextPrompt(_ context.Context, req *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
	if words, ok := filled[string](req.Params.InputResponses, "user_context", "context"); ok {
		return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{Text: "Context: " + words}}}}, nil
	}
	return &sdk.GetPromptResult{InputRequests: sdk.InputRequestMap{"user_context": form("Please provide context", askWords)}}, nil
}

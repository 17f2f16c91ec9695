package mcp

import (
	"maps"
	"strconv"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Counts are the answers since the start. Both have few keys, whatever callers
// send.
type Counts struct {
	Calls   map[string]uint64 // tool calls and resource reads by outcome: ok, panic, or the kind of fault in lower case
	Refused map[string]uint64 // other refusals: JSON-RPC errors by name, for example invalid_params, and insufficient_scope
}

// tally keeps Counts. The zero value is ready; safe for concurrent use.
type tally struct {
	mu             sync.Mutex
	calls, refused map[string]uint64
}

func (t *tally) call(outcome string) { t.add(&t.calls, strings.ToLower(outcome)) }

func (t *tally) refusal(code int64) {
	name, ok := codeNames[code]
	if !ok {
		name = strconv.FormatInt(code, 10) // one of the SDK's own
	}
	t.add(&t.refused, name)
}

func (t *tally) add(to *map[string]uint64, key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if *to == nil {
		*to = map[string]uint64{}
	}
	(*to)[key]++
}

var codeNames = map[int64]string{
	jsonrpc.CodeParseError: "parse_error", jsonrpc.CodeInvalidRequest: "invalid_request", jsonrpc.CodeMethodNotFound: "method_not_found",
	jsonrpc.CodeInvalidParams: "invalid_params", jsonrpc.CodeInternalError: "internal_error",
}

// Counts returns what the handler has counted so far.
func (h *Handler) Counts() Counts {
	h.tally.mu.Lock()
	defer h.tally.mu.Unlock()
	return Counts{Calls: maps.Clone(h.tally.calls), Refused: maps.Clone(h.tally.refused)}
}

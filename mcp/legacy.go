package mcp

import (
	"context"
	"net/http"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// The protocol versions that the adapter itself tells apart; the SDK
// negotiates all from 2024-11-05 on.
const (
	modernVersion    = "2026-07-28" // per-request metadata, server/discover
	lastLegacy       = "2025-11-25" // the newest of the initialize era
	versionHeader    = "Mcp-Protocol-Version"
	modernHeaderMark = "Mcp-Method" // every modern request carries it
)

// mixesEras knows the requests of clients that initialise in the old era and
// later send the newest version in the header alone: without the per-request
// metadata such a request is one of the initialize era.
func mixesEras(h http.Header, m message) bool {
	if h.Get(versionHeader) != modernVersion || m.Modern {
		return false
	}
	switch {
	case m.Method == "server/discover" || m.Method == "subscriptions/listen":
		return false // exist in the new era only; the SDK names what is missing
	case !m.call() && h.Get(modernHeaderMark) != "":
		return false // modern notifications need no metadata
	}
	return true
}

// refuseVersion refuses a version that nobody speaks and that carries no
// metadata of its own: the SDK takes everything after the newest version for
// the new era and would complain about what is missing instead. With metadata
// the SDK answers with the versions it supports.
func refuseVersion(h http.Header, m message) *wireError {
	if v := h.Get(versionHeader); v > lastLegacy && v != modernVersion && !m.Modern {
		return refuse(jsonrpc.CodeInvalidRequest, "unsupported protocol version: this server speaks "+lastLegacy+" and older, and "+modernVersion)
	}
	return nil
}

// refuseLegacy refuses, in the initialize era, what a server without sessions
// cannot offer. It stands before the SDK, which would accept a subscription
// that nobody could ever be told of, and which drops the data of an error with
// this code. In the new era these methods do not exist and the SDK says so.
func refuseLegacy(modern bool, m message) *wireError {
	if modern || !m.call() {
		return nil
	}
	next := ""
	switch m.Method {
	case "resources/subscribe":
		next = "read the resource again when you need it"
	case "resources/unsubscribe":
		next = "nothing is subscribed"
	case "logging/setLevel":
		next = "answers carry their own notes"
	}
	if slices.Contains(handleMethods, m.Method) { // the old era had other methods of these names
		return &wireError{Status: http.StatusOK, Code: jsonrpc.CodeMethodNotFound, Message: "method not found: " + m.Method + "; use check_task_result and cancel_task with the ticket_id"}
	}
	if next == "" {
		return nil
	}
	return &wireError{Status: http.StatusOK, Code: jsonrpc.CodeMethodNotFound, Message: m.Method + " is not offered in stateless mode: " + next,
		Data: map[string]string{"reason": "not_offered_stateless", "next_step": next}}
}

// legacy takes out of the initialize answer what only the new era delivers.
func legacy(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		res, err := next(ctx, method, req)
		if init, ok := res.(*sdk.InitializeResult); ok && init != nil && init.Capabilities != nil {
			caps := init.Capabilities // the SDK makes a fresh copy for each request
			caps.Extensions = nil
			if caps.Tools != nil {
				caps.Tools.ListChanged = false
			}
			if caps.Prompts != nil {
				caps.Prompts.ListChanged = false
			}
			if caps.Resources != nil {
				caps.Resources.ListChanged, caps.Resources.Subscribe = false, false
			}
		}
		return res, err
	}
}

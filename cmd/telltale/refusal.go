package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// statusError is an answer that is no success, as a person should read it.
type statusError struct {
	status    int
	code      int // of JSON-RPC; 0 without
	reference string
	reason    string // the enumerated word, if the server said one
	message   string
	scopes    string // what to ask for instead, of an insufficient_scope
	retry     string // seconds to wait, as the server said
}

func (s *statusError) Error() string {
	out := s.message
	if s.reference != "" {
		out += "; reference id " + s.reference
	}
	return out
}

// maxErrorBody bounds what is read of an answer that is no success.
const maxErrorBody = 64 << 10

// refusalOf reads an answer that is no success. The body is put back.
func refusalOf(ep endpoint, res *http.Response) *statusError {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	if err != nil {
		body = nil
	}
	_ = res.Body.Close()
	res.Body = io.NopCloser(bytes.NewReader(body))
	s := &statusError{status: res.StatusCode, reference: res.Header.Get("Telltale-Reference")}
	told := saidIn(body)
	detail, next := told.detail, told.next
	s.code, s.reason, s.reference = told.code, told.reason, orElse(s.reference, told.reference)
	switch res.StatusCode {
	case http.StatusOK:
		kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
		s.message = fmt.Sprintf("the answer is %s and no message of the protocol; a proxy or a sign-in page may stand in between", orElse(kind, "of no kind"))
		next = "check TELLTALE_URL; it looks like https://HOST/t/acme/mcp"
	case http.StatusUnauthorized:
		s.message = "401: the server does not accept " + ep.cred.words()
		if detail != "" {
			s.message += " (" + detail + ")"
		}
		if next == "" {
			next = ep.cred.next(ep, "")
		}
	case http.StatusForbidden:
		s.message = "403: " + orElse(detail, "the token lacks a scope that this needs")
		if s.scopes = scopesOf(res.Header.Values("WWW-Authenticate")); s.scopes != "" {
			next = ep.cred.next(ep, s.scopes)
		}
	case http.StatusNotFound:
		s.message = fmt.Sprintf("404: %s", orElse(detail, "there is no MCP endpoint at "+ep.url))
		if next == "" && detail == "" {
			next = "check TELLTALE_URL; it looks like https://HOST/t/acme/mcp"
		}
	case http.StatusRequestEntityTooLarge:
		s.message = "413: " + orElse(detail, "the message is larger than the server takes")
		next = orElse(next, "send less in one call")
	case http.StatusTooManyRequests:
		s.message = "429: " + orElse(detail, "too many requests")
		s.retry = res.Header.Get("Retry-After")
		if s.retry != "" && !strings.Contains(detail+next, "wait "+s.retry+" s") {
			next = strings.TrimSuffix("wait "+s.retry+" s; "+next, "; ")
		}
	case http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect, http.StatusSeeOther:
		s.message = fmt.Sprintf("%d: the server redirects to %s; put that into TELLTALE_URL if you trust it (a token is never sent after a redirect)", res.StatusCode, res.Header.Get("Location"))
	default:
		s.message = fmt.Sprintf("%d: %s", res.StatusCode, orElse(detail, http.StatusText(res.StatusCode)))
	}
	if next != "" {
		s.message += "; " + next
	}
	return s
}

// foreign reports an answer that cannot be one of the protocol.
func foreign(res *http.Response) bool {
	kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	return err != nil || kind != "application/json" && kind != "text/event-stream"
}

// scopesOf is what a challenge for more scopes asks for; "" for any other.
func scopesOf(headers []string) string {
	for _, h := range headers {
		list, err := oauthex.ParseWWWAuthenticate([]string{h})
		if err != nil {
			continue
		}
		for _, c := range list {
			if c.Scheme == "bearer" && c.Params["error"] == "insufficient_scope" {
				return c.Params["scope"]
			}
		}
	}
	return ""
}

// said is what the server says of a refusal, whatever form it came in.
type said struct {
	detail, next, reason, reference string
	code                            int // of JSON-RPC
}

// saidIn finds the words in a problem document or a JSON-RPC error, whose
// message holds the next step as a rule.
func saidIn(body []byte) said {
	var doc struct {
		Detail    string   `json:"detail"`
		Next      []string `json:"next"`
		Reason    string   `json:"reason"`
		Reference string   `json:"reference_id"`
		Error     struct {
			Code    int             `json:"code"`
			Message string          `json:"message"`
			Data    json.RawMessage `json:"data"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &doc) != nil {
		return said{}
	}
	s := said{orElse(doc.Detail, doc.Error.Message), strings.Join(doc.Next, "; "), doc.Reason, doc.Reference, doc.Error.Code}
	var data struct {
		Next      string `json:"next_step"`
		Reason    string `json:"reason"`
		Reference string `json:"reference_id"`
	}
	if json.Unmarshal(doc.Error.Data, &data) == nil {
		s.reason, s.reference = orElse(s.reason, data.Reason), orElse(s.reference, data.Reference)
		if s.next == "" && !strings.Contains(s.detail, data.Next) {
			s.next = data.Next
		}
	}
	return s
}

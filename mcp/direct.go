package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// The SDK makes a session, a connection and several goroutines for every POST,
// decodes it four times and encodes the answer three times. A plain tools/list
// and a plain call of a tool that only reads, or starts a task of which nothing
// is to be heard before its answer, need none of that: they are answered here,
// with the same checks in front, the same guard around the tool and the same
// bytes at the end. Everything else, and all that is in the least unusual, goes
// to the SDK, which stays the authority of the protocol.

// One event of the SDK's answers begins and ends so.
const (
	eventOpen = "event: message\ndata: "
	eventEnd  = "\n\n"
)

// direct reports whether a tool may be called beside the SDK: it changes and
// starts nothing, waits for no node and so tells no progress, and is over
// before a client could miss a sign of life. (A call that the SDK carries gets
// a comment after each pulse of silence.)
func (h *Handler) direct(t *Tool) bool {
	return !t.Writes && !t.Gated && t.Name != checkTask && t.deadline() < h.cfg.Pulse
}

// quiet reports whether a call that starts a task may be made beside the SDK:
// one of the new era, that wants to hear neither of its progress nor of a handle.
// What the stream's comments are for while it waits, they do here too.
func quiet(t *Tool, m message) bool {
	return t.Gated && !t.Writes && m.Modern && !m.Progress && !m.Handles
}

// plain reports whether a request is answered here. tool is what tools/call
// names, nil if the caller may not call it.
func (h *Handler) plain(r *http.Request, m message, tool *Tool, version string) bool {
	switch {
	case !m.Plain, h.sdkOnly, h.cfg.Extra != nil: // what Extra registers is the SDK's alone
		return false
	case m.Method == "tools/call" && (tool == nil || !h.direct(tool) && !quiet(tool, m)):
		return false
	case r.Context().Err() != nil: // it is over before it began
		return false
	}
	return plainHeaders(r.Header, m, version)
}

// answerCall calls a tool and writes what it says.
func (h *Handler) answerCall(w http.ResponseWriter, r *http.Request, c *caller, t *Tool, m message) {
	ctx := r.Context()
	if !c.modern { // a call of the initialize era runs out, whoever still listens
		ctx = context.WithoutCancel(ctx)
	}
	if t.Gated { // it may wait for long
		out := newStream(w, m, h.cfg.Pulse)
		defer out.finish()
		w = out
	}
	out, failure := h.caught(ctx, c, t, m)
	b := h.answers.open(m.ID)
	defer h.answers.put(b)
	if failure != nil {
		b.WriteString(`,"error":`)
		b.Write(failure)
		h.send(w, b)
		return
	}
	b.WriteString(`,"result":{`)
	if c.modern {
		b.WriteString(`"_meta":{"` + sdk.MetaKeyServerInfo + `":`)
		b.Write(h.self)
		b.WriteString(`},`)
	}
	b.WriteString(`"content":[{"type":"text","text":`)
	b.Write(out.quoted)
	b.WriteString(`}],"structuredContent":`)
	writeLine(b, out.body)
	if out.failed {
		b.WriteString(`,"isError":true`)
	}
	if c.modern {
		b.WriteString(`,"resultType":"complete"`)
	}
	b.WriteByte('}')
	h.send(w, b)
}

// caught runs the tool in its guard. A panic ends as a protocol error.
func (h *Handler) caught(ctx context.Context, c *caller, t *Tool, m message) (out said, failure []byte) {
	defer func() {
		if p := recover(); p != nil {
			e := h.panicked(ctx, m.Method, c.reference, p)
			h.tally.refusal(e.Code)
			var err error
			if failure, err = json.Marshal(e); err != nil {
				failure = []byte(`{"code":` + strconv.Itoa(jsonrpc.CodeInternalError) + `,"message":"internal error"}`)
			}
		}
	}()
	return h.guarded(ctx, t, c, m.Arguments, silent), nil
}

// silent is the teller of a call whose client asked for no progress.
func silent(context.Context) (tell func(done, total float64, message string), done func()) {
	return nil, func() {}
}

// answerList writes what the SDK has answered to this question before.
func (h *Handler) answerList(w http.ResponseWriter, m message, result string) {
	b := h.answers.open(m.ID)
	defer h.answers.put(b)
	b.WriteString(`,"result":`)
	b.WriteString(result)
	h.send(w, b)
}

// send ends an answer and writes it at once: as the one event of a stream,
// like the SDK, and with its length, so that nothing has to follow it.
func (h *Handler) send(w http.ResponseWriter, b *bytes.Buffer) {
	h.beside.Add(1)
	b.WriteString("}" + eventEnd)
	head := w.Header()
	head["Content-Type"] = []string{"text/event-stream"}
	head["Connection"] = []string{"keep-alive"}
	head["Content-Length"] = []string{strconv.Itoa(b.Len())}
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(b.Bytes()) // nobody is left to hear that it failed
}

// writeLine writes JSON without line ends, which would end an event.
func writeLine(b *bytes.Buffer, raw []byte) {
	if bytes.IndexByte(raw, '\n') < 0 && bytes.IndexByte(raw, '\r') < 0 {
		b.Write(raw)
	} else if json.Compact(b, raw) != nil {
		b.WriteString("null")
	}
}

// selfOf is how the SDK writes who this server is.
func selfOf(cfg Config) json.RawMessage {
	raw, err := json.Marshal(cfg.implementation())
	if err != nil {
		panic(err) // strings always encode
	}
	return raw
}

func (c Config) implementation() *sdk.Implementation {
	return &sdk.Implementation{Name: "telltale", Title: "Telltale", Version: c.Version}
}

// answers keeps the buffers of answers for the next ones. A buffer holds
// nothing between two answers that anyone reads: it is emptied first.
type answers struct{ pool sync.Pool }

// maxKept is the size of the largest buffer that is kept.
const maxKept = 128 << 10

// open begins an answer to the request with this id.
func (a *answers) open(id json.RawMessage) *bytes.Buffer {
	b, ok := a.pool.Get().(*bytes.Buffer)
	if !ok {
		b = new(bytes.Buffer)
	}
	b.Reset()
	b.WriteString(eventOpen + `{"jsonrpc":"2.0","id":`)
	b.Write(id)
	return b
}

func (a *answers) put(b *bytes.Buffer) {
	if b.Cap() <= maxKept {
		a.pool.Put(b)
	}
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"sync"
	"time"
)

const bridgeHelp = `Standard input and output carry JSON-RPC, one message a line, and nothing else;
what a person should know goes to standard error. When the server is away, or nobody
is signed in, each request is answered with a JSON-RPC error that says so; a login
made meanwhile is used from the next request on.

  --validate  check URL, credential, server and both protocol eras, report on standard
              error, end; exit 0 when all is well

In a client's configuration
  {"command": "telltale", "args": ["mcp"],
   "env": {"TELLTALE_URL": "https://HOST/t/acme/mcp", "TELLTALE_TOKEN": "tt_..."}}
Leave TELLTALE_TOKEN out after telltale login.
`

// Bounds of the bridge.
const (
	maxLine     = 4 << 20          // bytes of one message on standard input
	maxInFlight = 64               // requests at once; more wait in the pipe
	drainTime   = 75 * time.Second // how long the end of input waits for answers
	startTime   = 30 * time.Second // for initialize, which everything else waits for
	answerTime  = 5 * time.Minute  // for any other answer but a stream
	maxAnswer   = 16 << 20         // bytes of one message of the server
)

// JSON-RPC error codes.
const (
	codeParse   = -32700
	codeInvalid = -32600
	codePanic   = -32603
	codeAway    = -32000 // the server is away or refused the request as a whole
)

// proxy carries messages between a client on standard input and the server.
type proxy struct {
	ep   endpoint
	base http.RoundTripper
	errw io.Writer

	outMu sync.Mutex
	out   *bufio.Writer
	outEr error // the first failure to write: the client is gone

	mu      sync.Mutex
	version string                        // negotiated by initialize; empty before
	flights map[string]context.CancelFunc // by request id
}

func bridge(ctx context.Context, e env, f *flags) error {
	if len(f.rest) > 0 {
		return usageError{fmt.Sprintf("mcp takes no argument %q", f.rest[0])}
	}
	if f.validate {
		return validate(ctx, e, f)
	}
	w := newWire()
	defer w.close()
	ep, err := endpointOf(e, f, w)
	if err != nil {
		return err
	}
	p := &proxy{ep: ep, base: w, errw: e.err, out: bufio.NewWriter(e.out), flights: map[string]context.CancelFunc{}}
	return p.run(ctx, e.in)
}

// run reads until the end of input or of ctx, then waits for the answers that
// are still due. Streams that never end are cut then.
func (p *proxy) run(ctx context.Context, in io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := make(chan line)
	go func() { // ends with the input; a terminal that stays open is left to the process's end
		defer close(lines)
		r := bufio.NewReaderSize(in, 64<<10)
		for {
			l := readLine(r)
			select {
			case lines <- l:
			case <-ctx.Done():
				return
			}
			if l.err != nil {
				return
			}
		}
	}()
	var work sync.WaitGroup
	slots := make(chan struct{}, maxInFlight)
	for open := true; open; {
		select {
		case <-ctx.Done():
			open = false
		case l, ok := <-lines:
			switch {
			case !ok:
				open = false
			case l.long:
				p.fail(nil, codeInvalid, fmt.Sprintf("a message is longer than %d bytes", maxLine), nil)
			case len(bytes.TrimSpace(l.text)) > 0:
				p.accept(ctx, bytes.TrimSpace(l.text), slots, &work)
			}
		}
		if p.broken() != nil {
			cancel()
		}
	}
	p.cutStreams()
	done := make(chan struct{})
	go func() { work.Wait(); close(done) }()
	limit := time.NewTimer(drainTime)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		fmt.Fprintln(p.errw, "telltale mcp: answers are still due; giving up on them")
		cancel()
		<-done
	}
	if err := p.broken(); err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	return nil
}

type line struct {
	text []byte
	long bool
	err  error // of the input, after text
}

// readLine reads one line of any length and keeps at most maxLine bytes.
func readLine(r *bufio.Reader) line {
	var l line
	for {
		part, err := r.ReadSlice('\n')
		if len(l.text)+len(part) > maxLine {
			l.long, l.text = true, nil
		}
		if !l.long {
			l.text = append(l.text, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		l.err = err
		return l
	}
}

// accept starts what one message asks for. initialize is awaited, because its
// answer decides how all later messages are sent.
func (p *proxy) accept(ctx context.Context, raw []byte, slots chan struct{}, work *sync.WaitGroup) {
	m, err := readMessage(raw)
	if err != nil {
		p.fail(nil, err.code, err.text, nil)
		return
	}
	if m.Method == "notifications/cancelled" {
		p.cancelFlight(m.cancels())
		return // nobody else can act on it: the server keeps no session
	}
	reqCtx, cancel := m.bounded(ctx)
	if m.call() {
		p.mu.Lock()
		p.flights[m.key()] = cancel
		p.mu.Unlock()
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		cancel()
		return
	}
	task := func() {
		defer func() { cancel(); p.land(m); <-slots }()
		defer p.survive(m)
		p.forward(reqCtx, m, raw)
	}
	if m.Method == "initialize" || !m.call() { // the order of notifications is kept
		task()
		return
	}
	work.Go(task)
}

// survive turns a panic into an answer: a bridge that dies takes the client's
// other calls along.
func (p *proxy) survive(m message) {
	v := recover()
	if v == nil {
		return
	}
	fmt.Fprintf(p.errw, "telltale mcp: a defect of the bridge: %v\n%s", v, debug.Stack())
	if m.call() {
		p.fail(m.ID, codePanic, "a defect of the bridge; its standard error says more", nil)
	}
}

func (p *proxy) land(m message) {
	if m.call() {
		p.mu.Lock()
		delete(p.flights, m.key())
		p.mu.Unlock()
	}
}

func (p *proxy) cancelFlight(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, cancel := range p.flights {
		if key[1:] == id {
			cancel()
		}
	}
}

// cutStreams ends the requests whose answer never comes to an end.
func (p *proxy) cutStreams() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, cancel := range p.flights {
		if key[0] == listenMark {
			cancel()
		}
	}
}

// write sends one message to the client as one line.
func (p *proxy) write(msg []byte) {
	var flat bytes.Buffer
	if err := json.Compact(&flat, msg); err != nil {
		fmt.Fprintf(p.errw, "telltale mcp: the server sent something that is not JSON; dropped\n")
		return
	}
	flat.WriteByte('\n')
	p.outMu.Lock()
	defer p.outMu.Unlock()
	if p.outEr != nil {
		return
	}
	if _, err := p.out.Write(flat.Bytes()); err != nil {
		p.outEr = err
	} else if err := p.out.Flush(); err != nil {
		p.outEr = err
	}
}

func (p *proxy) broken() error {
	p.outMu.Lock()
	defer p.outMu.Unlock()
	return p.outEr
}

// fail answers one request with an error of the bridge.
func (p *proxy) fail(id json.RawMessage, code int, msg string, data any) {
	if id == nil {
		id = json.RawMessage("null")
	}
	type object struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    any    `json:"data,omitempty"`
	}
	raw, err := json.Marshal(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   object          `json:"error"`
	}{"2.0", id, object{code, msg, data}})
	if err != nil {
		fmt.Fprintf(p.errw, "telltale mcp: cannot write an error: %v\n", err)
		return
	}
	p.write(raw)
}

package rig

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	answerWithin = 30 * time.Second
	dialWithin   = 5 * time.Second
	readAtOnce   = 32 << 10
)

// Wire is one kept-alive HTTP/1.1 connection that asks one thing at a time.
// net/http's client costs a call more than this whole program does; on CPUs
// that the server shares, that would be measured with it. It sends whole
// requests and reads answers to their last byte, as the standard has it; what
// it does not know is an error and never passed over.
type Wire struct {
	conn  net.Conn
	in    *bufio.Reader
	body  []byte
	until time.Time // the connection's deadline
	ended func() bool
}

// Dial connects to an authority. The connection is cut when ctx ends.
func Dial(ctx context.Context, addr string) (*Wire, error) {
	conn, err := (&net.Dialer{Timeout: dialWithin}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Wire{conn: conn, in: bufio.NewReaderSize(conn, readAtOnce), ended: context.AfterFunc(ctx, func() { conn.Close() })}, nil
}

// Close ends the connection.
func (w *Wire) Close() {
	w.ended()
	w.conn.Close()
}

// Ask sends a whole request and reads the whole answer. body is good until the
// next call. The answer is there within answerWithin: the deadline is moved on
// only when less than that is left, which spares a timer a call.
func (w *Wire) Ask(request []byte) (status int, body []byte, err error) {
	if now := time.Now(); w.until.Sub(now) < answerWithin {
		w.until = now.Add(answerWithin + answerWithin/2)
		if err := w.conn.SetDeadline(w.until); err != nil {
			return 0, nil, err
		}
	}
	if _, err := w.conn.Write(request); err != nil {
		return 0, nil, err
	}
	line, err := w.line()
	if err != nil {
		return 0, nil, err
	}
	version, rest, _ := bytes.Cut(line, []byte(" "))
	code, _, _ := bytes.Cut(rest, []byte(" "))
	if string(version) != "HTTP/1.1" || len(code) != 3 {
		return 0, nil, fmt.Errorf("no HTTP/1.1 answer: %.100q", line)
	}
	if status, err = strconv.Atoi(string(code)); err != nil || status < 200 || status == 204 || status == 304 {
		return 0, nil, fmt.Errorf("unexpected status: %.100q", line)
	}
	length, chunked, err := w.header()
	if err != nil {
		return status, nil, err
	}
	w.body = w.body[:0]
	if chunked {
		err = w.chunks()
	} else {
		err = w.take(length)
	}
	return status, w.body, err
}

// RoundTrip makes w the transport of an http.Client that asks one thing at a
// time, always this server: two goroutines and their wake-ups less a call than
// net/http's own.
func (w *Wire) RoundTrip(req *http.Request) (*http.Response, error) {
	var b bytes.Buffer
	if err := req.Write(&b); err != nil {
		return nil, err
	}
	status, body, err := w.Ask(b.Bytes())
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Request: req,
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(bytes.Clone(body)))}, nil
}

// header reads the header: how the body is framed, and whether the connection stays.
func (w *Wire) header() (length int, chunked bool, err error) {
	length = -1
	for {
		line, err := w.line()
		if err != nil {
			return 0, false, err
		}
		if len(line) == 0 {
			break
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case !ok:
			return 0, false, fmt.Errorf("no header line: %.100q", line)
		case named(name, "Content-Length"):
			if length, err = size(string(value), 10); err != nil {
				return 0, false, err
			}
		case named(name, "Transfer-Encoding"):
			if chunked = string(value) == "chunked"; !chunked {
				return 0, false, fmt.Errorf("unknown transfer encoding %q", value)
			}
		case named(name, "Content-Encoding"):
			return 0, false, fmt.Errorf("the answer is encoded: %q", value)
		case named(name, "Connection") && !strings.EqualFold(string(value), "keep-alive"):
			return 0, false, fmt.Errorf("the server does not keep the connection: %q", value)
		}
	}
	if (length < 0) == !chunked {
		return 0, false, errors.New("the answer does not say where it ends, or says it twice")
	}
	return length, chunked, nil
}

func named(name []byte, want string) bool {
	return len(name) == len(want) && strings.EqualFold(string(name), want)
}

func size(s string, base int) (int, error) {
	n, err := strconv.ParseUint(s, base, 31)
	if err != nil || n > maxAnswer {
		return 0, fmt.Errorf("bad length %.40q", s)
	}
	return int(n), nil
}

// chunks reads the chunks of a body and what trails them.
func (w *Wire) chunks() error {
	for {
		line, err := w.line()
		if err != nil {
			return err
		}
		digits, _, _ := bytes.Cut(line, []byte(";"))
		n, err := size(string(bytes.TrimSpace(digits)), 16)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		if err := w.take(n); err != nil {
			return err
		}
		if line, err = w.line(); err != nil || len(line) != 0 {
			return errors.Join(err, errors.New("a chunk is longer than it said"))
		}
	}
	for { // trailers
		if line, err := w.line(); err != nil || len(line) == 0 {
			return err
		}
	}
}

// take appends n bytes to the body.
func (w *Wire) take(n int) error {
	at := len(w.body)
	if at+n > maxAnswer {
		return fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	if at+n > cap(w.body) {
		w.body = append(make([]byte, 0, max(64<<10, 2*(at+n))), w.body...)
	}
	w.body = w.body[:at+n]
	_, err := io.ReadFull(w.in, w.body[at:])
	return err
}

// line reads a line and cuts its end off. It is good until the next read.
func (w *Wire) line() ([]byte, error) {
	line, err := w.in.ReadSlice('\n')
	if err != nil {
		return nil, fmt.Errorf("in the answer's head or framing: %w", err)
	}
	line = line[:len(line)-1]
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line, nil
}

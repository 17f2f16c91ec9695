package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestConnectionsEndPolitely: a server that still sends when the command is
// done sees an end and no reset, which its node would count as a drop.
func TestConnectionsEndPolitely(t *testing.T) {
	for name, use := range map[string]func(*wire, *http.Response) error{
		"body read":   func(_ *wire, res *http.Response) error { _, err := io.ReadAll(io.LimitReader(res.Body, 5)); return err },
		"body closed": func(_ *wire, res *http.Response) error { return res.Body.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			closing, verdict := make(chan struct{}), make(chan error, 1)
			go func() { verdict <- talkative(ln, closing) }()
			w := newWire()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+ln.Addr().String(), nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := httpClient(w).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if err := use(w, res); err != nil {
				t.Fatal(err)
			}
			close(closing)
			w.close()
			select {
			case err := <-verdict:
				if err != nil {
					t.Errorf("the server saw %v", err)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("the connection is still open")
			}
			if len(w.open) != 0 {
				t.Errorf("%d connections are still open", len(w.open))
			}
		})
	}
}

// talkative answers one request with more than is read, goes on sending while
// the client closes, and returns how the connection ended.
func talkative(ln net.Listener, closing chan struct{}) error {
	c, err := ln.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nfirst words"); err != nil {
		return err
	}
	<-closing
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, c)
		ended <- err
	}()
	for i := range 20 {
		if _, err := fmt.Fprintf(c, "more %d", i); err != nil {
			return err
		}
		select {
		case err := <-ended:
			if err != nil {
				return err
			}
			// The client has said that it sends no more, and still reads.
			_, err = c.Write([]byte("last words"))
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
	return errors.New("the client never ended")
}

// TestSilentServerHoldsNobodyUp: the farewell is bounded.
func TestSilentServerHoldsNobodyUp(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	w := newWire()
	c, err := w.DialContext(context.Background(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	w.close()
	if took := time.Since(start); took < farewell || took > farewell+5*time.Second {
		t.Errorf("took %s", took)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// wire is the connections of one command. They end politely: a socket that is
// closed while the server still sends is answered with a reset, which the node
// that runs the server counts as a drop, so that a command that looks for
// drops would find its own.
type wire struct {
	*http.Transport

	mu   sync.Mutex
	open map[*politeConn]struct{}
}

// Bounds of a polite end.
const (
	farewell    = 300 * time.Millisecond // for the server's last words
	maxFarewell = 1 << 20
)

func newWire() *wire {
	w := &wire{Transport: http.DefaultTransport.(*http.Transport).Clone(), open: map[*politeConn]struct{}{}}
	d := net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
	w.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		p := &politeConn{Conn: c, of: w}
		w.mu.Lock()
		w.open[p] = struct{}{}
		w.mu.Unlock()
		return p, nil
	}
	w.TLSHandshakeTimeout = 10 * time.Second
	return w
}

// close ends every connection, those of unfinished answers too.
func (w *wire) close() {
	w.CloseIdleConnections()
	w.mu.Lock()
	left := make([]*politeConn, 0, len(w.open))
	for c := range w.open {
		left = append(left, c)
	}
	w.mu.Unlock()
	var all sync.WaitGroup
	for _, c := range left {
		all.Go(func() { _ = c.Close() })
	}
	all.Wait()
}

// politeConn says that it will send no more, reads what is under way, and
// closes then.
type politeConn struct {
	net.Conn
	of   *wire
	once sync.Once
	err  error
}

// Close returns once the connection is closed, whoever calls it first.
func (c *politeConn) Close() error {
	c.once.Do(func() {
		if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil && c.SetReadDeadline(time.Now().Add(farewell)) == nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(c.Conn, maxFarewell))
		}
		c.err = c.Conn.Close()
		c.of.mu.Lock()
		delete(c.of.open, c)
		c.of.mu.Unlock()
	})
	return c.err
}

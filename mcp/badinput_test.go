package mcp

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

// TestSlowBodies: a body that trickles or never comes is given up, whatever
// time-outs the listener has, and the connection with it.
func TestSlowBodies(t *testing.T) {
	w := start(t, stub{}, func(c *Config) { c.BodyWithin = 100 * time.Millisecond })
	for name, c := range map[string]struct {
		pause time.Duration
		size  int
	}{"nothing comes": {time.Hour, 1_000_000}, "a byte at a time": {5 * time.Millisecond, 1_000_000}, "nothing of a little": {time.Hour, 900}, "a little at a time": {5 * time.Millisecond, 900}} {
		t.Run(name, func(t *testing.T) {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", w.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := fmt.Fprintf(conn, "POST /t/acme/mcp HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer read\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n{", c.size); err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			var sender sync.WaitGroup
			defer sender.Wait()
			defer close(done)
			sender.Go(func() {
				tick := time.NewTicker(c.pause)
				defer tick.Stop()
				for {
					select {
					case <-tick.C:
						if _, err := conn.Write([]byte(" ")); err != nil {
							return
						}
					case <-done:
						return
					}
				}
			})
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			in := bufio.NewReader(conn)
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != http.StatusRequestTimeout || !bytes.Contains(body, []byte("in time")) || !res.Close {
				t.Errorf("%d %v %s", res.StatusCode, res.Header, body)
			}
			if _, err := in.ReadByte(); err == nil {
				t.Error("the connection goes on")
			}
		})
	}
}

// endless is a body without end.
type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

// TestMemoryIsFlat sends what is made to fill memory. What stays is nothing,
// and what is declared too large is not even kept while it comes.
func TestMemoryIsFlat(t *testing.T) {
	w := start(t, stub{}, nil)
	heap := func() int64 {
		var m runtime.MemStats
		for range 3 { // what pools lend out again survives one collection, and a second if it began meanwhile
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	post := func(body io.Reader, length int64) (int, int64) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.URL+"/t/acme/mcp", body)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = length
		req.Header = http.Header{"Authorization": {"Bearer read"}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		size, _ := io.Copy(io.Discard, res.Body)
		return res.StatusCode, size
	}
	const n = tenants.MaxRequestBytes
	full := func(open, close string) string { // as large as is let in
		return open + strings.Repeat("a", n-len(open)-len(close)) + close
	}
	for name, c := range map[string]struct {
		body   func() (io.Reader, int64)
		status int
	}{
		"one byte too many":  {func() (io.Reader, int64) { return io.LimitReader(endless(' '), n+1), n + 1 }, 413},
		"chunked, too large": {func() (io.Reader, int64) { return io.LimitReader(endless(' '), n+1), -1 }, 413},
		"deep arrays":        {func() (io.Reader, int64) { return io.LimitReader(endless('['), n), n }, 400},
		"deep objects":       {func() (io.Reader, int64) { return strings.NewReader(strings.Repeat(`{"a":`, n/5)), int64(n / 5 * 5) }, 400},
		"one huge string": {func() (io.Reader, int64) {
			return strings.NewReader(full(`{"jsonrpc":"2.0","id":1,"method":"`, `"}`)), n
		}, 200},
		"one huge id": {func() (io.Reader, int64) {
			return strings.NewReader(full(`{"jsonrpc":"2.0","method":"x/y","id":"`, `"}`)), n
		}, 400},
		"one huge name": {func() (io.Reader, int64) {
			return strings.NewReader(full(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`, `"}}`)), n
		}, 200},
		"one huge key": {func() (io.Reader, int64) { return strings.NewReader(full(`{"`, `":1}`)), n }, 400},
	} {
		t.Run(name, func(t *testing.T) {
			send := func() {
				body, length := c.body()
				if got, size := post(body, length); got != c.status || size > 4096 {
					t.Errorf("%d, want %d; answered with %d bytes", got, c.status, size)
				}
			}
			send()
			before := heap()
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for range 3 {
						send()
					}
				})
			}
			wg.Wait()
			if more := heap() - before; more > 2<<20 {
				t.Errorf("%d KiB stay", more>>10)
			}
		})
	}
}

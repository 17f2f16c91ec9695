package mcp

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// The clock of the idle test runs a hundred times faster: the pulse, the
// proxy's patience and the silence are scaled alike.
const (
	fastPulse = 20 * time.Second / 100
	patience  = 125 * time.Second / 100
	silence   = 150 * time.Second / 100
)

// TestIdleStreamsOutliveProxies keeps a stream of updates silent for longer
// than a proxy waits. Comments keep it, and news still arrive; without them
// the same proxy cuts it.
func TestIdleStreamsOutliveProxies(t *testing.T) {
	for name, c := range map[string]struct {
		pulse time.Duration
		kept  bool
	}{"with comments": {fastPulse, true}, "without": {time.Hour, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBackend()
			w := start(t, stub{}, func(cfg *Config) {
				withBackend(b)(cfg)
				cfg.Pulse = c.pulse
			})
			w.URL = "http://" + impatient(t, w.Listener.Addr().String())
			node := b.node("acme-db1")
			event := b.plant(node, "retransmit_burst", nil)
			l, ack := w.listen(t, "read", recentURI)
			if !strings.Contains(ack, "acknowledged") {
				t.Fatalf("agreed to %s", ack)
			}
			select {
			case m, open := <-l.lines:
				if open || c.kept {
					t.Fatalf("in the silence came %q, open %t", m, open)
				}
				return
			case <-time.After(silence):
				if !c.kept {
					t.Fatal("the proxy cuts nothing, so this test shows nothing")
				}
			}
			b.tellOf(w.tenant, event, node)
			if m := l.next(); !strings.Contains(m, "notifications/resources/updated") {
				t.Errorf("after the silence came %q", m)
			}
		})
	}
}

// impatient is a proxy that cuts a connection over which nothing comes back
// for a while. It returns its address.
func impatient(t *testing.T, to string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", to)
			if err != nil {
				down.Close()
				continue
			}
			open.Go(func() {
				defer down.Close()
				defer up.Close()
				buf := make([]byte, 4096)
				for up.SetReadDeadline(time.Now().Add(patience)) == nil {
					n, err := up.Read(buf)
					if err != nil {
						return
					}
					if _, err := down.Write(buf[:n]); err != nil {
						return
					}
				}
			})
			open.Go(func() { _, _ = io.Copy(up, down) })
		}
	})
	t.Cleanup(func() { l.Close(); open.Wait() })
	return l.Addr().String()
}

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// listen opens a TCP address or, as unix:PATH, a unix socket. A socket file
// that nobody answers is a leftover and is replaced.
func listen(ctx context.Context, flag, addr string) (net.Listener, error) {
	path, unix := strings.CutPrefix(addr, "unix:")
	if !unix {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("%s is in use: stop the server that has it, or choose another address with %s (or %s)", addr, flag, envName(strings.TrimPrefix(flag, "--")))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		return l, nil
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("%s: another server answers at %s", flag, addr)
	}
	if st, err := os.Lstat(path); err == nil && st.Mode()&fs.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return (&net.ListenConfig{}).Listen(ctx, "unix", path)
}

// bodyWithin is how long a request's body may take to arrive.
const bodyWithin = 10 * time.Second

// bodyInTime gives every request's body a deadline, read or not: without one,
// a connection that sends a byte a minute is held for ever. Once the body is
// there the deadline is lifted, so that long answers live on.
func bodyInTime(next http.Handler, within time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			// Errors: not every writer has deadlines; the real ones do.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(within))
			r.Body = &timedBody{r.Body, w}
		}
		next.ServeHTTP(w, r)
	})
}

type timedBody struct {
	io.ReadCloser
	w http.ResponseWriter
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = http.NewResponseController(b.w).SetReadDeadline(time.Time{})
	}
	return n, err
}

// loopbackHosts answers 421 to a Host that is no name of this machine itself,
// so that no web page can reach the management listener through a name of its
// own (DNS rebinding).
func loopbackHosts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if ip := net.ParseIP(strings.Trim(host, "[]")); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "this listener answers on loopback only", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// httpPart serves a handler on a listener until its context ends, then lets
// answers in flight finish for a while. TLS is used when cert is not nil; each
// of ending is called when the stop begins.
func httpPart(name string, l net.Listener, h http.Handler, cert *auth.ServerCert, log *slog.Logger, ending ...func()) part {
	const drain = 5 * time.Second
	s := &http.Server{
		Handler: bodyInTime(h, bodyWithin),
		// No WriteTimeout: event streams live long; handlers bound themselves.
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if cert != nil {
		s.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: cert.GetCertificate, NextProtos: []string{"h2", "http/1.1"}}
	}
	for _, f := range ending {
		s.RegisterOnShutdown(f)
	}
	return part{name, drain + time.Second, func(ctx context.Context) error {
		streams, hangUp := context.WithCancelCause(context.WithoutCancel(ctx))
		defer hangUp(nil)
		s.BaseContext = func(net.Listener) context.Context { return streams }
		served := make(chan error, 1)
		go func() {
			if cert != nil {
				served <- s.ServeTLS(l, "", "")
			} else {
				served <- s.Serve(l)
			}
		}()
		select {
		case err := <-served:
			return err
		case <-ctx.Done():
		}
		// Streams never end by themselves; ask them to after half the time.
		defer time.AfterFunc(drain/2, func() { hangUp(fault.ErrStopping) }).Stop()
		wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
		defer cancel()
		err := s.Shutdown(wait)
		if errors.Is(err, context.DeadlineExceeded) {
			err = s.Close()
		}
		<-served
		return err
	}}
}

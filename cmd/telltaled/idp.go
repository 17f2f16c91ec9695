package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// identityProvider is the demo identity provider of a dev stack, a child
// process. It is never part of the server: whoever runs Telltale brings their
// own.
type identityProvider struct {
	issuer       string
	serverSecret string // of the client telltale-server, made anew at each start
	port         int
	log          string
	done         chan struct{} // closed when the process is gone
	err          error         // why; after done
}

// idpPlace is where the provider's program and a Node to run it are.
type idpPlace struct{ script, node string }

// idpMissing says why no provider can be started; the stack goes on without.
type idpMissing struct{ why string }

func (e *idpMissing) Error() string { return e.why }

// idpReadyWithin is how long the provider may take until it answers.
const idpReadyWithin = 30 * time.Second

// findIDP looks for the provider beside the folder of the binary, or where
// --idp-dir says.
func findIDP(dir string) (idpPlace, error) {
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return idpPlace{}, err
		}
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		dir = filepath.Join(filepath.Dir(self), "..", "deploy", "devidp")
	}
	p := idpPlace{script: filepath.Join(dir, "server.mjs")}
	if _, err := os.Stat(p.script); err != nil {
		return p, &idpMissing{fmt.Sprintf("there is none in %s (--idp-dir names another folder)", shown(dir))}
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "oidc-provider")); err != nil {
		return p, &idpMissing{fmt.Sprintf("its packages are missing in %s: run 'make deps'", shown(dir))}
	}
	pinned := filepath.Join(dir, "..", "node", "bin", "node")
	if exec.Command(pinned, "--version").Run() == nil {
		p.node = pinned
	} else if found, err := exec.LookPath("node"); err == nil {
		p.node = found
	} else {
		return p, &idpMissing{"there is no Node to run it: run 'make deps'"}
	}
	return p, nil
}

// idpAddress is where the provider listens: what --idp says, else the port of
// the former run, so that the issuer stays the same, else a free one.
func idpAddress(flag string, remembered int) (host string, port int, err error) {
	if flag != "" {
		host, text, err := net.SplitHostPort(flag)
		if err != nil {
			return "", 0, err
		}
		if port, err = strconv.Atoi(text); err != nil {
			return "", 0, err
		}
		if port != 0 || remembered == 0 {
			return host, port, nil
		}
		return host, remembered, nil
	}
	host = "127.0.0.1"
	free := func(port int) bool {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			return false
		}
		l.Close()
		return true
	}
	if remembered != 0 && free(remembered) {
		return host, remembered, nil
	}
	// Not in the range of outgoing connections, which could have it next time.
	for range 50 {
		if port := 20000 + mathrand.IntN(10000); free(port) {
			return host, port, nil
		}
	}
	return "", 0, errors.New("found no free port between 20000 and 29999: name one with --idp")
}

// devIDP starts the provider and has both tenants trust it. It returns nil when
// none is wanted or there is none to start.
func (a *app) devIDP(ctx context.Context, d *devRun, remembered int) (*identityProvider, error) {
	if d.o.noIDP {
		return nil, nil
	}
	d.out.step("identity provider")
	p, err := startIDP(ctx, d, a.site.Origin(), remembered)
	if missing, ok := errors.AsType[*idpMissing](err); ok && d.o.idpDir == "" {
		d.out.note("no identity provider: " + missing.why)
		d.out.note("going on without: sign in with an operator token")
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("identity provider: %w", err)
	}
	if remembered != 0 && p.port != remembered {
		d.out.note(fmt.Sprintf("the issuer is now %s, because port %d is taken: clients must sign in again", p.issuer, remembered))
	}
	return p, nil
}

// startIDP starts the provider for the server at baseURL and waits until it
// answers. It ends when ctx does, or with this process.
func startIDP(ctx context.Context, d *devRun, baseURL string, remembered int) (*identityProvider, error) {
	place, err := findIDP(d.o.idpDir)
	if err != nil {
		return nil, err
	}
	host, port, err := idpAddress(d.o.idp, remembered)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(d.dir, "idp")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	p := &identityProvider{serverSecret: rand.Text(), log: filepath.Join(d.dir, "idp.log"), done: make(chan struct{})}
	file := filepath.Join(dir, "config.json")
	if err := writeJSON(file, map[string]any{
		"host": host, "port": port, "base_url": baseURL, "data_dir": dir, "server_secret": p.serverSecret, "robot_secret": rand.Text(),
	}); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	ready := make(chan string, 1)
	go func() {
		defer close(p.done)
		defer log.Close()
		p.err = runIDP(ctx, place, file, log, ready)
	}()
	select {
	case p.issuer = <-ready:
	case <-p.done:
		return nil, fmt.Errorf("it does not start: %w; its log is %s", p.err, shown(p.log))
	case <-time.After(idpReadyWithin):
		return nil, fmt.Errorf("it does not answer within %s; its log is %s", idpReadyWithin, shown(p.log))
	case <-ctx.Done():
		<-p.done
		return nil, ctx.Err()
	}
	if _, text, err := net.SplitHostPort(strings.TrimPrefix(p.issuer, "http://")); err == nil {
		p.port, _ = strconv.Atoi(text)
	}
	return p, nil
}

// runIDP runs the process to its end and tells ready the issuer.
func runIDP(ctx context.Context, place idpPlace, file string, log io.Writer, ready chan<- string) error {
	// The kernel ties a child's death signal to the thread that started it.
	runtime.LockOSThread()
	var end bytes.Buffer
	cmd := exec.CommandContext(ctx, place.node, place.script, "--config", file)
	cmd.Stderr = io.MultiWriter(log, &lastBytes{&end, 1000})
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Fprintln(log, lines.Text())
		if issuer, ok := strings.CutPrefix(lines.Text(), "ready "); ok {
			select {
			case ready <- issuer:
			default: // told already
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(end.String()))
	}
	return errors.New("it ended")
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/telltale-dev/telltale/agent/uplink"
)

// admission is what it takes to enrol: where, and with which token.
type admission struct {
	server, ca, token, tokenFile, dir, name string
}

func (a *admission) settings(e env) []setting {
	return []setting{
		{name: "server", kind: "ADDRESS", help: "the server's gRPC address, HOST:PORT", set: address(&a.server)},
		{name: "ca", kind: "FILE", help: "PEM file of the authority that signed the server's certificate", set: text(&a.ca)},
		{name: "token", kind: "TOKEN", env: "TELLTALE_ENROL_TOKEN", help: "enrolment token; better given by the environment or a file", secret: true, set: text(&a.token)},
		{name: "token-file", kind: "FILE", env: "TELLTALE_ENROL_TOKEN_FILE", help: "file that holds the enrolment token", set: text(&a.tokenFile)},
		{name: "dir", kind: "DIR", def: defaultDir(e), help: "directory of this node's identity", set: text(&a.dir)},
		{name: "name", kind: "NAME", help: "display name of the node (default the host name)", set: text(&a.name)},
	}
}

// defaultDir is where identities live: a system directory for root, else one
// of the user's own.
func defaultDir(e env) string {
	if os.Geteuid() == 0 {
		return "/var/lib/telltale-agent"
	}
	if state, ok := e.getenv("XDG_STATE_HOME"); ok && state != "" {
		return filepath.Join(state, "telltale-agent")
	}
	home, _ := e.getenv("HOME")
	return filepath.Join(home, ".local/state/telltale-agent")
}

// secret is the token itself; empty when none was given.
func (a *admission) secret() (string, error) {
	if a.token != "" || a.tokenFile == "" {
		return a.token, nil
	}
	raw, err := os.ReadFile(a.tokenFile)
	if err != nil {
		return "", fmt.Errorf("enrolment token: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// enrolment checks that everything is there, and reads the files.
func (a *admission) enrolment(dir, name string, facts uplink.Facts) (uplink.Enrolment, error) {
	var wrong []error
	secret, err := a.secret()
	if err != nil {
		wrong = append(wrong, err)
	}
	if a.server == "" {
		wrong = append(wrong, errors.New("server: name the server's gRPC address"))
	}
	if secret == "" && err == nil {
		wrong = append(wrong, errors.New("token: give the enrolment token that an administrator of the tenant made"))
	}
	var ca []byte
	if a.ca == "" {
		wrong = append(wrong, errors.New("ca: name the PEM file of the server's authority"))
	} else if ca, err = os.ReadFile(a.ca); err != nil {
		wrong = append(wrong, fmt.Errorf("ca: %w", err))
	}
	if len(wrong) > 0 {
		return uplink.Enrolment{}, &usageError{errors.Join(wrong...)}
	}
	return uplink.Enrolment{Server: a.server, CA: ca, Token: secret, Dir: dir, Name: name, Facts: facts}, nil
}

// open reads an identity and lets it trust the authority given now, if one is.
func (a *admission) open(dir string) (*uplink.Identity, error) {
	id, err := uplink.OpenIdentity(dir)
	if err != nil || a.ca == "" {
		return id, err
	}
	ca, err := os.ReadFile(a.ca)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	return id, id.UseCA(ca)
}

// enrol is `telltale-agent enrol`.
func enrol(ctx context.Context, e env, args []string) error {
	var a admission
	if _, err := load(e, "telltale-agent enrol", args, a.settings(e)); err != nil {
		return err
	}
	enr, err := a.enrolment(a.dir, a.name, uplink.ReadFacts(version))
	if err != nil {
		return err
	}
	id, err := uplink.Enrol(ctx, enr)
	if ctx.Err() != nil && err != nil {
		return errors.New("interrupted; the same command goes on where it broke off")
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(e.stdout, "enrolled as node %s of tenant %s\nidentity in %s, certificate good until %s\nstart it with: telltale-agent run --dir %s\n",
		id.Node, id.Tenant, id.Dir(), id.Certificate().NotAfter.Format(time.RFC3339), id.Dir())
	return nil
}

// enrolPatiently enrols, trying again while the server is away or busy. It
// says once why it waits.
func enrolPatiently(ctx context.Context, enr uplink.Enrolment, patience time.Duration, log *slog.Logger) (*uplink.Identity, error) {
	deadline := time.Now().Add(patience)
	told := ""
	for {
		id, err := uplink.Enrol(ctx, enr)
		if err == nil {
			return id, nil
		}
		wait := time.Second
		r, ok := errors.AsType[*uplink.Refusal](err)
		if !ok || r.Lasting || !passing(status.Code(r.Cause)) {
			return nil, err
		}
		if wait = max(wait, r.RetryAfter); time.Now().Add(wait).After(deadline) {
			return nil, err
		}
		if r.Reason != told {
			told = r.Reason
			log.Warn("cannot enrol yet; trying again", "error", err, "for", time.Until(deadline).Round(time.Second))
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// passing tells the failures of a server that is away or busy.
func passing(c codes.Code) bool {
	return c == codes.Unavailable || c == codes.ResourceExhausted || c == codes.DeadlineExceeded
}

package uplink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// Enrolment is what it takes to make this machine a node.
type Enrolment struct {
	Server string // host:port of the server's gRPC listener
	CA     []byte // PEM: who signs the server's certificate
	Token  string // enrolment token, shown once by the server
	Dir    string // identity directory; made with mode 0700
	Name   string // display name; empty: the host name
	Facts  Facts
	Dial   DialFunc // nil: plain TCP
}

// Enrol makes a key in the directory, has the server sign it and writes the
// identity. A directory that already holds an identity is left alone and
// refused. An attempt that broke off goes on with the same key.
func Enrol(ctx context.Context, e Enrolment) (*Identity, error) {
	if _, err := os.Stat(filepath.Join(e.Dir, identityFile)); err == nil {
		return nil, fmt.Errorf("%s already holds a node identity: remove it first to enrol this machine anew", e.Dir)
	}
	roots, err := parseRoots(e.CA)
	if err != nil {
		return nil, fmt.Errorf("CA of the server: %w", err)
	}
	if err := os.MkdirAll(e.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make identity directory: %w", err)
	}
	key, err := makeKey(e.Dir)
	if err != nil {
		return nil, err
	}
	csr, err := makeCSR(key)
	if err != nil {
		return nil, err
	}
	way := &path{}
	conn, err := dial(e.Server, &tls.Config{RootCAs: roots}, e.Dial, way)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := pb.NewEnrolmentClient(conn).Enrol(ctx, &pb.EnrolRequest{
		Token: []byte(e.Token), Csr: csr, Name: []byte(e.Name), Facts: e.Facts.Proto(),
	})
	if err != nil {
		return nil, fmt.Errorf("enrol at %s: %w", e.Server, place{e.Server, e.Dir, way}.refusal(err))
	}
	if resp.Node == "" || resp.Tenant == "" {
		return nil, errors.New("enrol: the server's answer names no node")
	}
	if err := writeFile(e.Dir, caFile, e.CA, 0o644); err != nil {
		return nil, err
	}
	id := &Identity{dir: e.Dir, Server: e.Server, Tenant: resp.Tenant, Node: resp.Node, Name: e.Name, roots: roots, key: key}
	if err := id.store(resp.Certificate, time.Unix(0, resp.ServerTimeNs)); err != nil {
		return nil, err
	}
	return id, nil
}

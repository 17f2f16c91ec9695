package uplink

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"log/slog"
	"strings"
	"testing"
	"time"

	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// renewals is a server that renews one node's certificate and counts it.
type renewals struct {
	cert  []byte
	asked int
}

func (r *renewals) Renew(context.Context, *pb.RenewRequest) (*pb.RenewResponse, error) {
	r.asked++
	return &pb.RenewResponse{Certificate: r.cert, ServerTimeNs: time.Now().UnixNano()}, nil
}

// A renewal that cannot be written asks the server once, is said once, and
// ends well when the disk does.
func TestRenewalIsWrittenLater(t *testing.T) {
	t.Parallel()
	id := identity(t)
	r := &renewals{cert: certify(t, id.key.(*ecdsa.PrivateKey))}
	addr, ca := serve(t, server{renew: r.Renew})
	if err := id.UseCA(ca); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	u := New(Config{Server: addr}, id, slog.New(slog.NewTextHandler(&out, nil)))
	conn, err := u.dial(&path{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s := &session{u: u, conn: conn}
	unblock := blocked(t, id.dir, certFile)
	for range 3 {
		if s.renew(t.Context()) {
			t.Fatal("a renewal that was not written counts as done")
		}
		if due := s.untilCheck(); due > checkEvery {
			t.Errorf("looked at again in %v", due)
		}
	}
	if n := strings.Count(out.String(), "cannot be written down"); n != 1 || r.asked != 1 {
		t.Errorf("said %d times, asked the server %d times; want once each:\n%s", n, r.asked, &out)
	}
	unblock()
	if !s.renew(t.Context()) || u.Stats().Renewals != 1 || r.asked != 1 {
		t.Errorf("after the disk recovered: %+v, asked %d times\n%s", u.Stats(), r.asked, &out)
	}
	if !bytes.Equal(mustOpen(t, id.dir).Certificate().Raw, r.cert) {
		t.Error("the certificate on disk is another")
	}
}

package uplink

import (
	"context"
	"time"

	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// renew exchanges the certificate over the present connection. False means
// that it failed; it is tried again at the next check.
func (s *session) renew(ctx context.Context) bool {
	u := s.u
	csr, err := u.id.csr()
	if err == nil {
		cctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		var resp *pb.RenewResponse
		if resp, err = pb.NewAgentClient(s.conn).Renew(cctx, &pb.RenewRequest{Csr: csr}); err == nil {
			err = u.id.store(resp.Certificate, time.Unix(0, resp.ServerTimeNs))
		} else {
			err = s.at.refusal(err)
		}
	}
	if err != nil {
		if u.troubles.begins("renewal", err) {
			u.log.Warn("cannot renew the certificate; trying again", "expires", u.id.Certificate().NotAfter, "error", err)
		}
		return false
	}
	u.counts.renewals.Add(1)
	u.troubles.end()
	u.log.Info("certificate renewed", "expires", u.id.Certificate().NotAfter)
	if u.cfg.Renewed != nil {
		u.cfg.Renewed()
	}
	return true
}

package uplink

import (
	"context"
	"errors"
	"time"

	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// renew exchanges the certificate over the present connection, or writes down
// the one in use if only that is left to do. False means that it failed; it is
// tried again when the identity says so.
func (s *session) renew(ctx context.Context) bool {
	u := s.u
	if now := s.clock.server(time.Now()); u.id.onlySave(now) {
		return s.renewed(u.id.save(now))
	}
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
	return s.renewed(err)
}

// renewed tells how a renewal went: each trouble once, and its end.
func (s *session) renewed(err error) bool {
	u := s.u
	if err != nil {
		if u.troubles.begins("renewal", err) {
			msg := "cannot renew the certificate; trying again"
			if errors.Is(err, ErrNotSaved) {
				msg = "the certificate was renewed but cannot be written down: after a restart the old one counts; trying again"
			}
			u.log.Warn(msg, "expires", u.id.Certificate().NotAfter, "error", err)
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

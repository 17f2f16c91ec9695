package auth

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// The questions about tokens that one tenant has at one issuer at once: about
// tokens that the issuer vouched for before, and about others. Whoever floods a
// tenant with made-up tokens holds up neither those who are in nor another
// tenant of the same issuer.
const (
	maxAgain = 16
	maxFirst = 8
	maxLanes = 4000
)

// lane is the room for one tenant's questions at one issuer.
type lane chan struct{}

// lanes is a bounded set of them. One that is pushed out while it is full gets
// a successor that is empty, so that the bound holds for those in use.
type lanes struct {
	mu   sync.Mutex
	room room[lane]
}

func (l *lanes) of(key string, size int) lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.room.get(key); e != nil {
		return e.val
	}
	made := make(lane, size)
	l.room.put(key, made, time.Now())
	return made
}

// proveOpaque asks the tenant's issuers that give opaque tokens, in order,
// until one vouches for the token. An issuer that is down is passed over, but
// then nobody can say that the token is bad.
func (o *OAuth) proveOpaque(ctx context.Context, t tenants.Tenant, v *trustView, bearer, key string) (proof, *issuerView, error) {
	if !v.opaque() {
		return proof{}, nil, failed(Malformed)
	}
	var down error
	var asked []string
	for n := range v.issuers {
		i := &v.issuers[n]
		if !i.Opaque {
			continue
		}
		asked = append(asked, i.URL)
		at := key + string(i.print[:])
		p, active, err := o.opaque.load(ctx, at, 0, func(ctx context.Context) (proof, bool, error) {
			free := o.lanes.of("first "+t.ID.String()+i.ID, maxFirst)
			if o.opaque.had(at) {
				free = o.lanes.of("again "+t.ID.String()+i.ID, maxAgain)
			}
			return o.introspect(ctx, t, i, bearer, free)
		})
		switch {
		case err != nil && ctx.Err() != nil:
			return proof{}, nil, err
		case err != nil:
			down = err
		case active && p.refused != nil:
			return proof{}, nil, p.refused
		case active:
			return p, i, nil
		}
	}
	if down != nil {
		return proof{}, nil, down
	}
	return proof{}, nil, &Failure{Class: Inactive, Expected: "a token that one of these knows: " + clean(strings.Join(asked, " "), maxNoted), Received: "not active"}
}

// introspect asks one issuer (RFC 7662). active is false when it does not
// vouch for the token, whyever.
func (o *OAuth) introspect(ctx context.Context, t tenants.Tenant, i *issuerView, bearer string, free lane) (p proof, active bool, err error) {
	select {
	case free <- struct{}{}:
		defer func() { <-free }()
	case <-ctx.Done():
		return proof{}, false, unreachable(i.URL, "is asked about too many tokens at once", ctx.Err())
	}
	o.introspections.Add(1)
	c, err := o.ask(ctx, o.providers.of(i.Issuer), i.Issuer, bearer)
	if err != nil {
		o.introspectFails.Add(1)
		o.log.Warn("introspection failed", "issuer", i.URL, "err", err)
		return proof{}, false, err
	}
	if on, _ := c["active"].(bool); !on {
		return proof{}, false, nil
	}
	p, err = o.checkAnswer(t, i, c)
	if f, ok := err.(*Failure); ok {
		return proof{refused: f}, true, nil
	}
	return p, true, err
}

// ask sends the question and decodes the answer.
func (o *OAuth) ask(ctx context.Context, pr *provider, i tenants.Issuer, bearer string) (claims, error) {
	to := i.IntrospectionURL
	if to == "" {
		meta, err := pr.meta.current(ctx, false)
		if err != nil {
			return nil, err
		}
		if to = meta.Introspection; to == "" {
			return nil, unreachable(i.URL, "names no introspection endpoint in its metadata", nil)
		}
	}
	secret, err := o.secret(i)
	if err != nil {
		return nil, err
	}
	status, body, err := o.fetch.Post(ctx, to, url.Values{"token": {bearer}, "token_type_hint": {"access_token"}}, i.ClientID, secret)
	switch {
	case err != nil:
		return nil, unreachable(i.URL, "does not answer about tokens", err)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return nil, unreachable(i.URL, "refuses this server's client credentials", nil)
	case status != http.StatusOK:
		return nil, unreachable(i.URL, "answers about tokens with an error", nil)
	}
	c, err := decodeClaims(body, maxClaims)
	if err != nil {
		return nil, unreachable(i.URL, "answers about tokens in no known form", err)
	}
	return c, nil
}

// secret opens the client secret that this server has at an issuer.
func (o *OAuth) secret(i tenants.Issuer) (string, error) {
	if len(i.SealedSecret) == 0 {
		return "", nil
	}
	bad := fault.New(fault.Unavailable, "issuer_secret", "the client secret kept for the identity provider cannot be opened").Do("an administrator must set the issuer's client secret again")
	if o.opener == nil {
		return "", bad
	}
	plain, err := o.opener.Open(i.SealedSecret, tenants.IssuerSecretUse)
	if err != nil {
		return "", bad.Because(err)
	}
	return string(plain), nil
}

// checkAnswer holds an active answer to what a JWT is held to.
func (o *OAuth) checkAnswer(t tenants.Tenant, i *issuerView, c claims) (proof, error) {
	if c.has("token_type") && !strings.EqualFold(c.text("token_type"), "bearer") {
		class := Type
		if strings.EqualFold(c.text("token_type"), "DPoP") || c.has("cnf") {
			class = Bound
		}
		return proof{}, &Failure{Class: class, Issuer: i.URL, Expected: "token_type Bearer", Received: clean(c.text("token_type"), maxNoted)}
	}
	if sign := notAccess(c); sign != "" {
		return proof{}, &Failure{Class: Type, Issuer: i.URL, Expected: "an access token", Received: clean(sign, maxNoted)}
	}
	return o.checkClaims(t, i, c)
}

package auth

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// discoverFloor is shorter than keyFloor: a fetch of keys that needs discovery
// must never meet discovery's floor when its own is over.
const (
	discoverFloor = keyFloor / 2
	discoverAge   = 10 * time.Minute
	maxProviders  = 2000
)

// discovered is the part of an issuer's metadata that is used here (OpenID
// Connect Discovery, RFC 8414, RFC 9207).
type discovered struct {
	Issuer         string   `json:"issuer"`
	JWKS           string   `json:"jwks_uri"`
	Introspection  string   `json:"introspection_endpoint"`
	Authorization  string   `json:"authorization_endpoint"`
	Token          string   `json:"token_endpoint"`
	Revocation     string   `json:"revocation_endpoint"`
	EndSession     string   `json:"end_session_endpoint"`
	Registration   string   `json:"registration_endpoint"`
	PKCE           []string `json:"code_challenge_methods_supported"`
	IDTokenAlgs    []string `json:"id_token_signing_alg_values_supported"`
	IssInAnswer    bool     `json:"authorization_response_iss_parameter_supported"`
	ClientMetadata bool     `json:"client_id_metadata_document_supported"`
	from           string   // the URL that answered
}

// provider is what this server remembers of one identity provider: its
// metadata and its keys. Two tenants share it only when they name the same
// issuer and the same place for its keys, so that nobody can plant keys for
// another.
type provider struct {
	meta *kept[discovered]
	keys *keySet
}

// providers is a bounded set of them.
type providers struct {
	fetch *Fetcher
	log   *slog.Logger
	mu    sync.Mutex
	room  room[*provider]
}

func (p *providers) of(i tenants.Issuer) *provider {
	key := i.URL + "\x00" + i.JWKSURL
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.room.get(key); e != nil {
		return e.val
	}
	made := newProvider(p.fetch, i.URL, i.JWKSURL, p.log)
	p.room.put(key, made, time.Now())
	return made
}

func (p *providers) counts() (n int, keyFetches, keyFails, metaFetches, metaFails, unknownKids uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, el := range p.room.at {
		one := el.Value.(*entry[*provider]).val
		a, b := one.keys.keys.counts()
		c, d := one.meta.counts()
		one.keys.mu.Lock()
		unknownKids += one.keys.unknown
		one.keys.mu.Unlock()
		keyFetches, keyFails, metaFetches, metaFails = keyFetches+a, keyFails+b, metaFetches+c, metaFails+d
	}
	return len(p.room.at), keyFetches, keyFails, metaFetches, metaFails, unknownKids
}

func newProvider(fetch *Fetcher, issuer, jwks string, log *slog.Logger) *provider {
	p := &provider{}
	p.meta = &kept[discovered]{floor: discoverFloor, age: discoverAge, get: func(ctx context.Context) (discovered, error) {
		meta, err := discover(ctx, fetch, issuer)
		if err != nil {
			log.Warn("identity provider's metadata not fetched", "issuer", issuer, "err", err)
		}
		return meta, err
	}}
	p.keys = newKeySet(func(ctx context.Context) ([]jose.JSONWebKey, error) {
		from := jwks
		if from == "" {
			meta, err := p.meta.current(ctx, false)
			if err != nil {
				return nil, err
			}
			from = meta.JWKS
		}
		keys, err := fetchKeys(ctx, fetch, issuer, from)
		if err != nil {
			log.Warn("identity provider's keys not fetched", "issuer", issuer, "err", err)
		}
		return keys, err
	})
	return p
}

func fetchKeys(ctx context.Context, fetch *Fetcher, issuer, from string) ([]jose.JSONWebKey, error) {
	if from == "" {
		return nil, unreachable(issuer, "names no keys in its metadata", nil)
	}
	raw, err := fetch.Get(ctx, from)
	if err != nil {
		return nil, unreachable(issuer, "does not give its keys", err)
	}
	keys, err := parseKeys(raw)
	if err != nil {
		return nil, unreachable(issuer, "gives no usable keys", err)
	}
	return keys, nil
}

// discover reads an issuer's metadata: OpenID Connect discovery first, then
// RFC 8414 with the well-known part between authority and path. A document of
// another issuer is refused.
func discover(ctx context.Context, fetch *Fetcher, issuer string) (discovered, error) {
	var first error
	for _, from := range discoveryURLs(issuer) {
		meta, err := discoverAt(ctx, fetch, issuer, from)
		if err == nil {
			return meta, nil
		}
		if first == nil {
			first = err
		}
	}
	return discovered{}, unreachable(issuer, "has no usable metadata", first)
}

func discoverAt(ctx context.Context, fetch *Fetcher, issuer, from string) (discovered, error) {
	raw, err := fetch.Get(ctx, from)
	if err != nil {
		return discovered{}, err
	}
	var meta discovered
	if err := json.Unmarshal(raw, &meta); err != nil {
		return discovered{}, fmt.Errorf("metadata is no JSON object of the expected form")
	}
	if meta.Issuer != issuer {
		return discovered{}, &otherIssuer{clean(meta.Issuer, 200)}
	}
	meta.from = from
	return meta, nil
}

// otherIssuer is metadata that calls itself by another name.
type otherIssuer struct{ received string }

func (o *otherIssuer) Error() string {
	return fmt.Sprintf("metadata of another issuer: %q", o.received)
}

func discoveryURLs(issuer string) []string {
	urls := []string{strings.TrimSuffix(issuer, "/") + "/.well-known/openid-configuration"}
	if u, err := url.Parse(issuer); err == nil && u.Host != "" {
		path := strings.TrimSuffix(u.EscapedPath(), "/")
		for _, kind := range []string{"oauth-authorization-server", "openid-configuration"} {
			if at := u.Scheme + "://" + u.Host + "/.well-known/" + kind + path; !slices.Contains(urls, at) {
				urls = append(urls, at)
			}
		}
	}
	return urls
}

// unreachable is the fault of an issuer that nothing is known of. It names the
// issuer, which is no secret, and nothing of the network.
func unreachable(issuer, what string, cause error) error {
	f := fault.Newf(fault.Unavailable, "issuer_unreachable", "the identity provider %s %s", clean(issuer, 200), what).
		Do("try again in 10 seconds; an administrator can run the issuer's test")
	if cause != nil {
		f = f.Because(cause)
	}
	return f
}

package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	keyFloor   = 10 * time.Second // between two fetches of one issuer's keys
	keyAge     = 10 * time.Minute // after which keys are fetched again
	kidMemory  = 30 * time.Second // how long a key id counts as unknown after a fetch
	maxKeys    = 100              // of one key set
	maxKid     = 256              // bytes of a key id
	maxMissing = 1000             // key ids remembered as unknown
	minRSA     = 2048             // bits
)

// algorithms are the signature algorithms that are ever accepted: asymmetric
// ones only, so that no public key can serve as a secret.
func algorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}
}

var (
	errKid       = errors.New("no key with that id")
	errSignature = errors.New("no key fits the signature")
)

// keySet is one issuer's public keys. What go-oidc's own does not do, this one
// does: keys have a maximum age, an unknown key id costs a fetch at most once
// each floor and is remembered, and the last good keys stay while the issuer
// is down.
type keySet struct {
	keys *kept[[]jose.JSONWebKey]

	mu      sync.Mutex
	missing room[struct{}]
	unknown uint64
}

func newKeySet(get func(context.Context) ([]jose.JSONWebKey, error)) *keySet {
	return &keySet{keys: &kept[[]jose.JSONWebKey]{get: get, floor: keyFloor, age: keyAge}, missing: newRoom[struct{}](maxMissing)}
}

// verify checks a signature and returns the payload. errKid and errSignature
// are the token's fault, any other error says that no key is known.
func (s *keySet) verify(ctx context.Context, jws *jose.JSONWebSignature) ([]byte, error) {
	head, began := jws.Signatures[0].Header, time.Now()
	if len(head.KeyID) > maxKid {
		return nil, errKid
	}
	keys, err := s.keys.current(ctx, false)
	if err != nil {
		return nil, err
	}
	payload, err := tryKeys(jws, keys)
	if err == nil || errors.Is(err, errSignature) && head.KeyID != "" || s.knownMissing(head.KeyID) {
		return payload, err
	}
	if keys, err = s.keys.current(ctx, true); err != nil {
		return nil, err
	}
	if payload, err = tryKeys(jws, keys); err != nil {
		s.miss(head.KeyID, began)
	}
	return payload, err
}

// tryKeys tries the key that the token names, or each when it names none.
func tryKeys(jws *jose.JSONWebSignature, keys []jose.JSONWebKey) ([]byte, error) {
	head := jws.Signatures[0].Header
	err := errKid
	for i := range keys {
		k := &keys[i]
		if head.KeyID != "" && k.KeyID != head.KeyID || k.Algorithm != "" && k.Algorithm != head.Algorithm {
			continue
		}
		err = errSignature
		if payload, bad := jws.Verify(k.Key); bad == nil {
			return payload, nil
		}
	}
	return nil, err
}

// knownMissing reports whether a fetch showed lately that a key is not there.
func (s *keySet) knownMissing(kid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unknown++
	e := s.missing.get(kid)
	return e != nil && time.Since(e.since) < kidMemory
}

// miss remembers that a key is not among those fetched after a look-up began.
// Without such a fetch nothing is known: the key may have come meanwhile.
func (s *keySet) miss(kid string, began time.Time) {
	since := s.keys.since()
	if since.Before(began) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missing.remove(kid)
	s.missing.put(kid, struct{}{}, since)
}

// parseKeys reads a JWK set (RFC 7517). Keys of other kinds and uses, private
// and short ones are left out; a set without any other is an error.
func parseKeys(raw []byte) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, errors.New("not a JSON Web Key Set")
	}
	var keys []jose.JSONWebKey
	for _, one := range set.Keys[:min(len(set.Keys), maxKeys)] {
		var k jose.JSONWebKey
		if k.UnmarshalJSON(one) == nil && usable(k) {
			keys = append(keys, jose.JSONWebKey{Key: k.Key, KeyID: k.KeyID, Algorithm: k.Algorithm})
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("no public signature key among the keys")
	}
	return keys, nil
}

func usable(k jose.JSONWebKey) bool {
	if k.Use != "" && k.Use != "sig" || len(k.KeyID) > maxKid || !k.Valid() || !k.IsPublic() {
		return false
	}
	switch pub := k.Key.(type) {
	case *rsa.PublicKey:
		return pub.N.BitLen() >= minRSA && (k.Algorithm == "" || strings.HasPrefix(k.Algorithm, "RS") || strings.HasPrefix(k.Algorithm, "PS"))
	case *ecdsa.PublicKey:
		return k.Algorithm == "" || strings.HasPrefix(k.Algorithm, "ES")
	case ed25519.PublicKey:
		return k.Algorithm == "" || k.Algorithm == "EdDSA" || k.Algorithm == "Ed25519"
	}
	return false
}

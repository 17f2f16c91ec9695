package auth

import (
	"net/http"
	"strings"
)

// maxBearer bounds a bearer in bytes; a longer one is refused unread.
const maxBearer = 8 << 10

// Bearer takes the bearer from a request's one Authorization header (RFC 6750,
// section 2.1). Query strings, bodies and cookies are never looked at. A
// refusal is a *Failure: NoToken without a bearer, Repeated for more than one
// header, Malformed for one that is empty, too long or of foreign characters.
func Bearer(r *http.Request) (string, error) {
	headers := r.Header.Values("Authorization")
	switch len(headers) {
	case 0:
		return "", failed(NoToken)
	case 1:
	default:
		return "", failed(Repeated)
	}
	h := headers[0]
	if len(h) > maxBearer+len("Bearer ") {
		return "", failed(Malformed)
	}
	scheme, rest, _ := strings.Cut(h, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", failed(NoToken) // another scheme is no credential here
	}
	token := strings.Trim(rest, " ")
	if token == "" || len(token) > maxBearer || strings.IndexFunc(strings.TrimRight(token, "="), foreign) >= 0 {
		return "", failed(Malformed)
	}
	return token, nil
}

// foreign reports a character outside of b64token (RFC 6750).
func foreign(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._~+/", r)
}

package tenants

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strings"
)

// SecretKind is the leading word of a secret. It tells people and secret
// scanners what they found; a secret of one kind is never taken for another.
type SecretKind string

// The kinds of secret that the product makes.
const (
	OperatorSecret SecretKind = "tt"  // an operator token
	EnrolSecret    SecretKind = "tte" // an enrolment token
	SessionSecret  SecretKind = "tts" // a dashboard session's cookie
)

const (
	secretIDLen   = 16 // 80 random bits in base32
	secretBodyLen = 52 // 256 random bits in base32
	secretSumLen  = 8  // CRC-32 (IEEE) in hexadecimal
	secretMost    = len(EnrolSecret) + secretIDLen + secretBodyLen + secretSumLen + 3
)

var secretCode = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// SecretHash is the SHA-256 of a secret's whole text: all that is ever stored.
type SecretHash [sha256.Size]byte

// Equal compares in constant time. The zero hash equals nothing.
func (h SecretHash) Equal(other SecretHash) bool {
	if h == (SecretHash{}) {
		return false
	}
	return subtle.ConstantTimeCompare(h[:], other[:]) == 1
}

// Secret is a bearer secret in its two storable parts: a public look-up id,
// unrelated to any tenant, and the hash of the whole text.
type Secret struct {
	ID   string
	Hash SecretHash
}

// MintSecret makes a fresh secret. The text is shown once and kept nowhere.
func MintSecret(kind SecretKind) (text string, s Secret) {
	raw := make([]byte, 10+32)
	rand.Read(raw) // never fails: crypto/rand ends the process instead
	id := secretCode.EncodeToString(raw[:10])
	body := string(kind) + "_" + id + "_" + secretCode.EncodeToString(raw[10:])
	sum := checksum([]byte(body))
	text = body + "_" + string(sum[:])
	return text, Secret{ID: id, Hash: sha256.Sum256([]byte(text))}
}

// SecretFlaw says why a text is no secret. The zero value means it is one.
type SecretFlaw uint8

// The flaws of a text that should be a secret.
const (
	SecretSound     SecretFlaw = iota
	SecretMalformed            // another kind, another length, or a character that no secret holds
	SecretChecksum             // well formed, but mistyped or cut
)

// ParseSecret reads a secret of one kind and checks its checksum, so that a
// typing error costs no look-up. It costs the same little work for a text of
// any length and proves nothing about the secret being known.
func ParseSecret(kind SecretKind, text string) (Secret, SecretFlaw) {
	if len(text) != len(kind)+1+secretIDLen+1+secretBodyLen+1+secretSumLen {
		return Secret{}, SecretMalformed
	}
	rest, ok := strings.CutPrefix(text, string(kind)+"_")
	if !ok {
		return Secret{}, SecretMalformed
	}
	id, body, sum := rest[:secretIDLen], rest[secretIDLen+1:secretIDLen+1+secretBodyLen], rest[len(rest)-secretSumLen:]
	if rest[secretIDLen] != '_' || rest[len(rest)-secretSumLen-1] != '_' || !coded(id) || !coded(body) || !hexed(sum) {
		return Secret{}, SecretMalformed
	}
	var room [secretMost]byte // every request with a token comes by: nothing of this goes to the heap
	raw := room[:copy(room[:], text)]
	if want := checksum(raw[:len(raw)-secretSumLen-1]); string(want[:]) != sum {
		return Secret{}, SecretChecksum
	}
	return Secret{ID: id, Hash: sha256.Sum256(raw)}, SecretSound
}

// checksum is the CRC-32 of a secret's text up to it, in hexadecimal.
func checksum(body []byte) (text [secretSumLen]byte) {
	var sum [4]byte
	binary.BigEndian.PutUint32(sum[:], crc32.ChecksumIEEE(body))
	hex.Encode(text[:], sum[:])
	return text
}

func coded(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '2' || r > '7') }) < 0
}

func hexed(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') }) < 0
}

package auth

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// KeySize is the length in bytes of the key that seals other keys.
const KeySize = 32

// sealVersion leads every sealed value: AES-256-GCM, 12-byte nonce, then the
// ciphertext with its tag.
const sealVersion = 1

// Sealer encrypts secrets for storage. What is sealed for one use opens for no
// other. Safe for concurrent use.
type Sealer struct{ aead cipher.AEAD }

// NewSealer makes a Sealer from KeySize bytes of key.
func NewSealer(key []byte) (*Sealer, error) {
	if len(key) != KeySize {
		return nil, fmt.Errorf("the sealing key has %d bytes, want %d", len(key), KeySize)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return &Sealer{aead}, nil
}

// Seal encrypts plain for one use. A random nonce is safe here: a key seals
// far fewer values than the 2^32 that would matter.
func (s *Sealer) Seal(plain []byte, use string) []byte {
	nonce := make([]byte, s.aead.NonceSize())
	rand.Read(nonce) // never fails: crypto/rand ends the process instead
	return s.aead.Seal(append([]byte{sealVersion}, nonce...), nonce, plain, []byte(use))
}

// Open decrypts what was sealed for the same use with the same key.
func (s *Sealer) Open(sealed []byte, use string) ([]byte, error) {
	n := s.aead.NonceSize()
	if len(sealed) < 1+n || sealed[0] != sealVersion {
		return nil, errors.New("not a sealed value of a known version")
	}
	plain, err := s.aead.Open(nil, sealed[1:1+n], sealed[1+n:], []byte(use))
	if err != nil {
		return nil, errors.New("sealed with another key, for another use, or damaged")
	}
	return plain, nil
}

// LoadOrCreateKey reads the sealing key from a file of 64 hexadecimal digits,
// or makes the file, mode 0600, with a fresh key. A file that others may read
// is refused: the key would be worth nothing. Losing the file means that every
// tenant needs a new certificate authority and every node a new enrolment.
func LoadOrCreateKey(path string) ([]byte, error) {
	key, err := loadKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	fresh := make([]byte, KeySize)
	rand.Read(fresh)
	if err := createKey(path, fresh); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("create key file: %w", err)
	}
	return loadKey(path) // what is there, whoever was first
}

func loadKey(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("key file %s has mode %#o and others may read it: run chmod 600 on it, and replace the key if anyone did", path, info.Mode().Perm())
	}
	raw := make([]byte, 2*KeySize+2)
	n, _ := f.Read(raw)
	key, err := hex.DecodeString(string(bytes.TrimSpace(raw[:n])))
	if err != nil || len(key) != KeySize {
		return nil, fmt.Errorf("key file %s: want %d hexadecimal digits", path, 2*KeySize)
	}
	return key, nil
}

// createKey writes the whole file aside and links it into place: a reader
// never sees half a key, and a file that exists is never replaced.
func createKey(path string, key []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".key-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(hex.EncodeToString(key) + "\n")
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err != nil {
		return err
	}
	return os.Link(tmp.Name(), path)
}

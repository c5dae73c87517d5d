package throttle

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// sealVersion is the first byte of what is sealed.
const sealVersion = 1

// Keys seal tokens with AES-256-GCM (NIST SP 800-38D): always with the first one,
// while others still open what they have sealed. Each is known by an id, which
// says nothing of it.
type Keys struct {
	first string
	byID  map[string]cipher.AEAD
	// states sign those of authorizations, the current one first.
	states [][]byte
}

// NewKeys returns the keys made of secrets of 32 bytes, the current one first.
func NewKeys(secrets ...[]byte) (*Keys, error) {
	if len(secrets) == 0 {
		return nil, errors.New("token keys: there is none")
	}
	k := &Keys{byID: map[string]cipher.AEAD{}}
	for i, secret := range secrets {
		if len(secret) != 32 {
			return nil, fmt.Errorf("token keys: key %d has %d bytes, not 32", i+1, len(secret))
		}
		// The same secret seals certificates: this use has a key of its own.
		key, err := hkdf.Key(sha256.New, secret, nil, "takt throttle tokens", 32)
		if err != nil {
			return nil, fmt.Errorf("token keys: %w", err)
		}
		id, err := hkdf.Key(sha256.New, secret, nil, "takt throttle key id", 8)
		if err != nil {
			return nil, fmt.Errorf("token keys: %w", err)
		}
		state, err := hkdf.Key(sha256.New, secret, nil, "takt throttle states", sha256.Size)
		if err != nil {
			return nil, fmt.Errorf("token keys: %w", err)
		}
		k.states = append(k.states, state)
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, fmt.Errorf("token keys: %w", err)
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, fmt.Errorf("token keys: %w", err)
		}
		name := hex.EncodeToString(id)
		k.byID[name] = aead
		if i == 0 {
			k.first = name
		}
	}
	return k, nil
}

// ID names the current key.
func (k *Keys) ID() string { return k.first }

// Errors of open.
var (
	errNoKey    = errors.New("sealed with a key that is not known here")
	errTampered = errors.New("sealed text cannot be opened: it was changed, or belongs elsewhere")
)

// seal binds text to a portal and to what it is there.
func (k *Keys) seal(text string, portal int64, what string) []byte {
	aead := k.byID[k.first]
	nonce := make([]byte, aead.NonceSize())
	_, _ = rand.Read(nonce) // never fails: crypto/rand aborts the process instead
	out := append([]byte{sealVersion}, nonce...)
	return aead.Seal(out, nonce, []byte(text), binding(k.first, portal, what))
}

// open returns what was sealed with the key of that id.
func (k *Keys) open(id string, sealed []byte, portal int64, what string) (string, error) {
	aead := k.byID[id]
	if aead == nil {
		return "", errNoKey
	}
	n := 1 + aead.NonceSize()
	if len(sealed) < n || sealed[0] != sealVersion {
		return "", errTampered
	}
	text, err := aead.Open(nil, sealed[1:n], sealed[n:], binding(id, portal, what))
	if err != nil {
		return "", errTampered
	}
	return string(text), nil
}

func binding(id string, portal int64, what string) []byte {
	return []byte(id + " " + strconv.FormatInt(portal, 10) + " " + what)
}

// stateLife is how long an authorization may take.
const stateLife = 10 * time.Minute

// signState makes the state of an authorization: when it ends, signed together with
// its installer's secret.
func (k *Keys) signState(secret string, end time.Time) string {
	when := binary.BigEndian.AppendUint64(nil, uint64(end.Unix()))
	return base64.RawURLEncoding.EncodeToString(append(when, stateMAC(k.states[0], when, secret)...))
}

func (k *Keys) goodState(state, secret string, now time.Time) bool {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(state)
	if err != nil || len(raw) != 8+sha256.Size || secret == "" {
		return false
	}
	when, mac := raw[:8], raw[8:]
	signed := slices.ContainsFunc(k.states, func(key []byte) bool { return hmac.Equal(mac, stateMAC(key, when, secret)) })
	return signed && uint64(now.Unix()) < binary.BigEndian.Uint64(when)
}

func stateMAC(key, when []byte, secret string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(when)
	h.Write([]byte(secret))
	return h.Sum(nil)
}

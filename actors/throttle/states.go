package throttle

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"time"

	"takt/store/seal"
)

// stateLife is how long an authorization may take.
const stateLife = 10 * time.Minute

// states signs the state parameter that HubSpot passes from the beginning of an
// authorization to its end (RFC 6749, section 10.12). Because it is signed, nothing has to be
// stored. There is one signing key for each key of the ring, the current one first. Immutable.
type states [][]byte

func newStates(ring *seal.Ring) (s states) {
	for _, secret := range ring.Secrets() {
		key, err := hkdf.Key(sha256.New, secret, nil, "takt throttle states", sha256.Size)
		if err != nil {
			panic(err) // only if the key is too long
		}
		s = append(s, key)
	}
	return s
}

// sign returns the state of an authorization that is valid until end. The signature covers
// end and the installer's secret.
func (s states) sign(secret string, end time.Time) string {
	when := binary.BigEndian.AppendUint64(nil, uint64(end.Unix()))
	return base64.RawURLEncoding.EncodeToString(append(when, stateMAC(s[0], when, secret)...))
}

// good reports whether state was signed for the installer with this secret and has not
// expired.
func (s states) good(state, secret string, now time.Time) bool {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(state)
	if err != nil || len(raw) != 8+sha256.Size || secret == "" {
		return false
	}
	when, mac := raw[:8], raw[8:]
	signed := slices.ContainsFunc(s, func(key []byte) bool { return hmac.Equal(mac, stateMAC(key, when, secret)) })
	return signed && uint64(now.Unix()) < binary.BigEndian.Uint64(when)
}

func stateMAC(key, when []byte, secret string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(when)
	h.Write([]byte(secret))
	return h.Sum(nil)
}

package deployment

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

// A sealed credential is salt (32 bytes) · AES-256-GCM of the token, under a key
// of its own: HKDF-SHA256 of takt's encryption key and the salt. The deployment's
// id is authenticated with it, so that rows can't be swapped.
const (
	credentialKeySize = 32
	credentialSalt    = 32
)

var errSealedCredential = errors.New("the credential is damaged, or was sealed with another encryption key")

func credentialCipher(key, salt []byte) (cipher.AEAD, error) {
	own, err := hkdf.Key(sha256.New, key, salt, "takt deployment credential", credentialKeySize)
	if err != nil {
		return nil, fmt.Errorf("deriving a key: %w", err)
	}
	block, err := aes.NewCipher(own)
	if err != nil {
		return nil, fmt.Errorf("making a cipher: %w", err)
	}
	return cipher.NewGCM(block)
}

// seal seals a token for a deployment.
func seal(key []byte, id, token string) ([]byte, error) {
	salt := make([]byte, credentialSalt)
	_, _ = rand.Read(salt) // never fails
	aead, err := credentialCipher(key, salt)
	if err != nil {
		return nil, err
	}
	// The key is used once, so the nonce need not differ.
	return aead.Seal(salt, make([]byte, aead.NonceSize()), []byte(token), []byte(id)), nil //nolint:gosec // see above
}

// unseal opens what seal made.
func unseal(key []byte, id string, sealed []byte) (string, error) {
	if len(sealed) < credentialSalt {
		return "", errSealedCredential
	}
	aead, err := credentialCipher(key, sealed[:credentialSalt])
	if err != nil {
		return "", err
	}
	token, err := aead.Open(nil, make([]byte, aead.NonceSize()), sealed[credentialSalt:], []byte(id))
	if err != nil {
		return "", errSealedCredential
	}
	return string(token), nil
}

// credentialID tells tokens apart without giving them away.
func credentialID(key []byte, token string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("takt deployment credential id\x00" + token)) // never fails
	return mac.Sum(nil)
}

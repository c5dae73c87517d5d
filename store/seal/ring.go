package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
)

const (
	magic     = "tkt\x01"
	saltSize  = 32
	idStart   = len(magic)
	saltStart = idStart + len(ID{})
	// HeadSize is the number of bytes before the content.
	HeadSize  = saltStart + saltSize
	chunkSize = 64 << 10
	tagSize   = 16
	step      = chunkSize + tagSize
)

// Errors of opening. They say no more on purpose, because nothing more is known.
var (
	ErrUnknownKey = errors.New("sealed with a key that is not known here")
	ErrDamaged    = errors.New("sealed content is damaged, or belongs elsewhere")
)

// Broken reports whether err says that content can't be opened, as opposed to not read.
func Broken(err error) bool { return errors.Is(err, ErrUnknownKey) || errors.Is(err, ErrDamaged) }

// Kind is the kind of content. Content never opens as another kind.
type Kind string

// The kinds.
const (
	Certificates    Kind = "certificates"
	ForgeCredential Kind = "forge credential"
	AccessToken     Kind = "HubSpot access token"
	RefreshToken    Kind = "HubSpot refresh token"
	NoticeSecrets   Kind = "notice secrets"
	Secret          Kind = "secret"
	// KeyCheck is the value by which a database recognises its key.
	KeyCheck Kind = "key check"
)

// Key is an encryption key.
type Key [32]byte

// ParseKey reads a key in base64.
func ParseKey(text string) (k Key, err error) {
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(raw) != len(k) {
		return k, fmt.Errorf("must be %d bytes in base64", len(k))
	}
	return Key(raw), nil
}

// ID identifies a key without revealing anything of it.
type ID [8]byte

// String returns the id in hex.
func (i ID) String() string { return hex.EncodeToString(i[:]) }

// ID returns the key's name.
func (k Key) ID() ID { return ID(derive(k[:], nil, "takt key id", len(ID{}))) }

// Ring seals with its current key and opens with all of its keys.
type Ring struct {
	keys []Key // the current one first
	ids  []ID  // of keys
}

// NewRing returns the ring of the current key and of others that still open.
func NewRing(current Key, others ...Key) *Ring {
	r := &Ring{keys: append([]Key{current}, others...)}
	for _, k := range r.keys {
		r.ids = append(r.ids, k.ID())
	}
	return r
}

// Secrets returns the keys, the current one first. Keys for other uses are derived from
// them.
func (r *Ring) Secrets() (secrets [][]byte) {
	for i := range r.keys {
		secrets = append(secrets, r.keys[i][:])
	}
	return secrets
}

// Current names the key that seals.
func (r *Ring) Current() ID { return r.ids[0] }

// KeyOf returns the id of the key that sealed the content that begins with head. head
// has at least HeadSize bytes. Error: ErrDamaged.
func KeyOf(head []byte) (ID, error) {
	if len(head) < HeadSize || string(head[:len(magic)]) != magic {
		return ID{}, ErrDamaged
	}
	return ID(head[idStart:saltStart]), nil
}

// Seal returns content in sealed form. It makes one chunk, so it is for short content.
func (r *Ring) Seal(kind Kind, binding string, content []byte) []byte {
	head, aead := r.begin(kind)
	return aead.Seal(head, nonce(0, true), content, []byte(binding))
}

// Open returns the content that was passed to Seal. Errors: ErrUnknownKey, ErrDamaged.
func (r *Ring) Open(kind Kind, binding string, sealed []byte) ([]byte, error) {
	aead, err := r.cipher(kind, sealed)
	if err != nil {
		return nil, err
	}
	content, err := aead.Open(nil, nonce(0, true), sealed[HeadSize:], []byte(binding))
	if err != nil {
		return nil, ErrDamaged
	}
	return content, nil
}

// begin returns a new head and the cipher for it.
func (r *Ring) begin(kind Kind) (head []byte, aead cipher.AEAD) {
	head = make([]byte, HeadSize, HeadSize+512)
	copy(head, magic)
	copy(head[idStart:], r.ids[0][:])
	_, _ = rand.Read(head[saltStart:]) // never fails
	aead, _ = r.cipher(kind, head)
	return head, aead
}

// cipher returns the cipher for content that begins with head.
func (r *Ring) cipher(kind Kind, head []byte) (cipher.AEAD, error) {
	id, err := KeyOf(head)
	if err != nil {
		return nil, err
	}
	i := slices.Index(r.ids, id)
	if i < 0 {
		return nil, fmt.Errorf("%w: %s", ErrUnknownKey, id)
	}
	return must(cipher.NewGCM(block(r.keys[i][:], head[saltStart:HeadSize], "takt sealed "+string(kind)))), nil
}

// Cipher returns a cipher under a key derived from secret and salt, for one use only.
// It chooses nonces itself, at random.
func Cipher(secret, salt []byte, use string) cipher.AEAD {
	return must(cipher.NewGCMWithRandomNonce(block(secret, salt, use)))
}

func block(secret, salt []byte, use string) cipher.Block {
	return must(aes.NewCipher(derive(secret, salt, use, len(Key{}))))
}

func derive(secret, salt []byte, use string, size int) []byte {
	return must(hkdf.Key(sha256.New, secret, salt, use, size))
}

// must returns v. Its errors occur only with keys and sizes that are not used here.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func nonce(chunk int64, last bool) []byte {
	n := make([]byte, 12)
	binary.BigEndian.PutUint64(n[3:], uint64(chunk))
	if last {
		n[11] = 1
	}
	return n
}

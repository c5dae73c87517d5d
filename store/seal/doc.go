// Package seal makes content unreadable at rest. Certificates, forge credentials
// and HubSpot's tokens are sealed with the keys of one [Ring], replies under an
// Idempotency-Key with a cipher of their own ([Cipher]).
//
// # Format
//
// What a ring seals, in memory or as a file, is
//
//	magic (4 bytes) · key id (8) · salt (32) · chunk · chunk · …
//
// Each chunk is AES-256-GCM (NIST SP 800-38D) of 64 KiB of content; the last one is
// of less, perhaps of nothing. Its key is HKDF-SHA256 (RFC 5869) of the
// encryption key, the salt, and the kind of content, so each value has a key of its
// own and none opens as another kind. The nonce is the chunk's number and whether it
// is the last, so chunks can't be reordered, repeated or cut off. The binding, which
// names the row or file, is authenticated with each chunk, so values can't be swapped.
//
// The key id says which key of a ring opens the value, and nothing of the key. It is
// at a fixed place, so that SQL and a look at a file's first bytes can count what is
// left under an old key.
//
// # Change of the key
//
// A ring seals with its current key and opens with all. Whoever reads must know the
// new key before anybody seals with it: it is given to all as an old one first.
//
// # Concurrency
//
// A [Ring] never changes and may be used by many goroutines; a [Writer] and a
// [Reader] belong to one.
package seal

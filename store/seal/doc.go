// Package seal encrypts content for storage. Certificates, secrets, forge credentials
// and HubSpot's tokens are sealed with the keys of one [Ring]. Replies under an
// Idempotency-Key are sealed with a cipher of their own ([Cipher]).
//
// # Format
//
// What a ring seals, in memory or as a file, has this form:
//
//	magic (4 bytes) · key id (8) · salt (32) · chunk · chunk · …
//
// Each chunk is AES-256-GCM (NIST SP 800-38D) of 64 KiB of content; the last chunk is
// shorter and may be empty. The key of the chunks is HKDF-SHA256 (RFC 5869) of the
// encryption key, the salt and the kind of content. So each value has a key of its own,
// and no value opens as another kind. The nonce is the chunk's number and whether it is
// the last, so chunks can't be reordered, repeated or cut off. The binding, which names
// the row or file, is authenticated with each chunk, so values can't be swapped.
//
// The key id says which key of a ring opens the value, and reveals nothing of the key.
// It is at a fixed place, so SQL can count the values under an old key, and so can a
// reader of each file's first bytes.
//
// # Change of the key
//
// A ring seals with its current key and opens with all. Every reader must know the new
// key before any process seals with it. So the new key is first given to all processes
// as an old one.
//
// # Concurrency
//
// A [Ring] never changes and may be used by many goroutines; a [Writer] and a
// [Reader] belong to one.
package seal

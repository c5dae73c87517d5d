package client

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Digest is a SHA-256.
type Digest = [sha256.Size]byte

// Content is something to upload. Open may be called more than once.
type Content struct {
	Open func() (io.ReadCloser, error)
	// Size is in bytes. -1 means unknown; the upload is then sent in chunks.
	Size int64
	// Digest is sent so that the controller can verify the content; nil leaves it
	// out.
	Digest *Digest
}

// Bytes returns b as Content.
func Bytes(b []byte) Content {
	c, digest := plain(b), sha256.Sum256(b)
	c.Digest = &digest
	return c
}

// File returns the regular file at path as Content. It reads the file once for the
// digest, because the digest precedes the content on the wire.
func File(path string) (Content, error) {
	open := func() (io.ReadCloser, error) { return os.Open(path) }
	f, err := open()
	if err != nil {
		return Content{}, err
	}
	defer f.Close()
	info, err := f.(*os.File).Stat()
	if err != nil {
		return Content{}, err
	}
	if !info.Mode().IsRegular() {
		return Content{}, fmt.Errorf("%s: not a regular file", path)
	}
	hash := sha256.New()
	size, err := io.Copy(hash, f)
	if err != nil {
		return Content{}, fmt.Errorf("reading %s: %w", path, err)
	}
	digest := Digest(hash.Sum(nil))
	return Content{Open: open, Size: size, Digest: &digest}, nil
}

const digestPrefix = "sha-256=:"

// FormatDigest formats d for Content-Digest and Repr-Digest (RFC 9530).
func FormatDigest(d Digest) string {
	return digestPrefix + base64.StdEncoding.EncodeToString(d[:]) + ":"
}

// ParseDigest finds the SHA-256 in a digest header. ok is false if there is none.
func ParseDigest(header string) (d Digest, ok bool) {
	for field := range strings.SplitSeq(header, ",") {
		field = strings.TrimSpace(field)
		if len(field) < len(digestPrefix) || !strings.EqualFold(field[:len(digestPrefix)], digestPrefix) {
			continue
		}
		encoded, closed := strings.CutSuffix(field[len(digestPrefix):], ":")
		raw, err := base64.StdEncoding.DecodeString(encoded)
		if closed && err == nil && len(raw) == sha256.Size {
			return Digest(raw), true
		}
	}
	return Digest{}, false
}

// sequence reads contents one after the other. It opens each one only when it is
// reached.
type sequence struct {
	rest    []Content
	current io.ReadCloser
}

func (s *sequence) Read(p []byte) (int, error) {
	for {
		if s.current == nil {
			if len(s.rest) == 0 {
				return 0, io.EOF
			}
			r, err := s.rest[0].Open()
			if err != nil {
				return 0, err
			}
			s.current, s.rest = r, s.rest[1:]
		}
		n, err := s.current.Read(p)
		if errors.Is(err, io.EOF) {
			err = s.Close()
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// Close closes the open content. A later read would open the next one.
func (s *sequence) Close() error {
	if s.current == nil {
		return nil
	}
	err := s.current.Close()
	s.current = nil
	return err
}

package http

import (
	"crypto/rand"
	"fmt"
	"path"

	gonanoid "github.com/matoous/go-nanoid/v2"

	"takt/store"
)

// newID returns 21 characters of [A-Za-z0-9_-]. The first is no dash, so that
// an id is never taken for a flag on a command line.
func newID() (string, error) {
	for {
		id, err := gonanoid.New()
		if err != nil {
			return "", fmt.Errorf("making id: %w", err)
		}
		if id[0] != '-' {
			return id, nil
		}
	}
}

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Names of a build's files in storage.
func sourceName(id string) string { return path.Join("builds", id, "source.zip") }
func certsName(id string) string  { return path.Join("builds", id, "certs.zip") }
func resultName(id string, p store.Platform) string {
	return path.Join("builds", id, "result"+p.ResultExt())
}

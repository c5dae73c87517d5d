package http

import (
	"fmt"
	"net/http"
	"path"
	"strconv"

	gonanoid "github.com/matoous/go-nanoid/v2"

	"takt/http/api"
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

// Names of a build's files in storage.
func sourceName(id string) string { return path.Join("builds", id, "source.zip") }
func certsName(id string) string  { return path.Join("builds", id, "certs.zip") }
func resultName(id string, p store.Platform) string {
	return path.Join("builds", id, "result"+p.ResultExt())
}

func buildNotFound() error { return store.NewError(store.NotFound, "Build not found") }

// attempt reads X-Build-Attempt; 0 if it was not sent.
func attempt(h http.Header) (int, error) {
	v := h.Get(api.HeaderBuildAttempt)
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil || n < 1 {
		return 0, invalid("Invalid X-Build-Attempt header")
	}
	return int(n), nil
}

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"takt/store"
)

// Tokens keeps the access tokens of submitted builds, one file each, so that users can
// look at their builds without the API key.
type Tokens struct {
	// Dir is the directory of the files. It is created when needed.
	Dir string
}

// maxTokenAge is the age at which a token is deleted.
const maxTokenAge = 30 * 24 * time.Hour

type token struct {
	// URL is the controller that issued the token. The token is sent to no other.
	URL   string `json:"url"`
	Token string `json:"token"`
}

// Keep stores a token and deletes old ones. now is the current time.
func (t Tokens) Keep(controller, buildID, value string, now time.Time) error {
	if !store.ValidID(buildID) {
		return fmt.Errorf("%q is not a build id", buildID)
	}
	if err := os.MkdirAll(t.Dir, 0o700); err != nil {
		return err
	}
	t.forget(now)
	raw, err := json.Marshal(token{controller, value})
	if err != nil {
		return err
	}
	return WriteFile(filepath.Join(t.Dir, buildID), raw, 0o600)
}

// Find returns the token of a build of this controller, or "" if there is none.
func (t Tokens) Find(controller, buildID string) (string, error) {
	if t.Dir == "" || !store.ValidID(buildID) {
		return "", nil
	}
	raw, err := os.ReadFile(filepath.Join(t.Dir, buildID))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var kept token
	if err := json.Unmarshal(raw, &kept); err != nil {
		return "", fmt.Errorf("token of build %s: %w", buildID, err)
	}
	if kept.URL != controller {
		return "", nil
	}
	return kept.Token, nil
}

// Begin returns the ids of the builds of this controller whose tokens are kept and that begin
// with prefix.
func (t Tokens) Begin(controller, prefix string) (ids []string) {
	entries, _ := os.ReadDir(t.Dir) // without it there is none
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		if token, err := t.Find(controller, e.Name()); err == nil && token != "" {
			ids = append(ids, e.Name())
		}
	}
	return ids
}

// forget deletes old files. It ignores errors, because the next call tries again.
func (t Tokens) forget(now time.Time) {
	entries, err := os.ReadDir(t.Dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && now.Sub(info.ModTime()) > maxTokenAge {
			_ = os.Remove(filepath.Join(t.Dir, e.Name()))
		}
	}
}

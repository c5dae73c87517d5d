package main

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"takt/store/seal"
)

// fillKeys gives every key that the settings leave open the value kept in the
// data directory, making it at random (0600) on the first start. It returns the
// files that it made, so that the operator can be told where to look.
func fillKeys(cfg *Config) (made []string, err error) {
	for _, k := range []struct {
		file  string
		value *string
		fresh func() string
	}{
		{"api-key", &cfg.APIKey, func() string { return randomText(base64.RawURLEncoding) }},
		{"admin-key", &cfg.AdminKey, func() string { return randomText(base64.RawURLEncoding) }},
		{"encryption-key", &cfg.EncryptionKey, func() string { return randomText(base64.StdEncoding) }},
	} {
		if *k.value != "" {
			continue
		}
		path := filepath.Join(cfg.DataDir, k.file)
		value, fresh, err := readOrMakeKey(path, k.fresh)
		if err != nil {
			return nil, err
		}
		*k.value = value
		if fresh {
			made = append(made, path)
		}
	}
	return made, nil
}

// oldKeys reads the keys that only open.
func (c *Config) oldKeys() (keys []seal.Key, err error) {
	for text := range strings.SplitSeq(c.OldEncryptionKeys, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		key, err := seal.ParseKey(text)
		if err != nil {
			return nil, fmt.Errorf("each %w", err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// ring is the key ring of the settings.
func (c *Config) ring() (*seal.Ring, error) {
	current, err := seal.ParseKey(c.EncryptionKey)
	if err != nil {
		return nil, fmt.Errorf("encryption key: %w", err)
	}
	old, err := c.oldKeys()
	if err != nil {
		return nil, fmt.Errorf("old encryption keys: %w", err)
	}
	return seal.NewRing(current, old...), nil
}

func randomText(enc *base64.Encoding) string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails: crypto/rand aborts the process instead
	return enc.EncodeToString(b)
}

func readOrMakeKey(path string, fresh func() string) (value string, made bool, err error) {
	raw, err := os.ReadFile(path)
	switch {
	case err == nil:
		value = strings.TrimSpace(string(raw))
		if value == "" {
			return "", false, fmt.Errorf("%s is empty: remove it to have a new key made, or restore it", path)
		}
		return value, false, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", false, fmt.Errorf("reading a key: %w", err)
	}
	value = fresh()
	if err := writeDurably(path, []byte(value+"\n"), 0o600); err != nil {
		return "", false, fmt.Errorf("keeping a new key: %w", err)
	}
	return value, true, nil
}

// writeDurably replaces path by data in one step that survives a power cut.
func writeDurably(path string, data []byte, mode os.FileMode) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // gone already after the rename
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

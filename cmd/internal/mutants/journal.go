package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// news returns the mutants of list that the journal does not have as they are now: with these
// changed files and these tests. Without a journal it returns all.
func (r *runner) news(root string, list []*mutant) ([]*mutant, error) {
	if r.journal == "" {
		return list, nil
	}
	caught, err := os.ReadFile(r.journal)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	tests := map[string][]byte{} // by package
	for _, m := range list {
		if tests[m.pkg] == nil {
			files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(m.pkg), "*.go"))
			if err != nil {
				return nil, err
			}
			hash := sha256.New()
			for _, file := range files {
				source, err := os.ReadFile(file)
				if err != nil {
					return nil, err
				}
				_, _ = hash.Write(source) // a hash never fails
			}
			tests[m.pkg] = hash.Sum(nil)
		}
		hash := sha256.New()
		_, _ = fmt.Fprintf(hash, "%s %s\n%x\n", m.pkg, m.tests, tests[m.pkg])
		for _, name := range slices.Sorted(maps.Keys(m.files)) {
			_, _ = fmt.Fprintf(hash, "%s\n%s\n", name, m.files[name])
		}
		m.key = hex.EncodeToString(hash.Sum(nil))
	}
	return slices.DeleteFunc(slices.Clone(list), func(m *mutant) bool { return bytes.Contains(caught, []byte(m.key)) }), nil
}

// note adds m to the journal.
func (r *runner) note(m *mutant) error {
	f, err := os.OpenFile(r.journal, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, m.key, m.name)
	return errors.Join(err, f.Close())
}

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

	"takt/cmd/internal/must"
)

// news returns the mutants of list that the journal does not have as they are now: with these
// changed files and these tests. Without a journal it returns all.
func (r *runner) news(root string, list []*mutant) []*mutant {
	if r.journal == "" {
		return list
	}
	caught, err := os.ReadFile(r.journal)
	if !errors.Is(err, fs.ErrNotExist) {
		must.Do(err)
	}
	tests := map[string][]byte{} // by package
	for _, m := range list {
		if tests[m.pkg] == nil {
			hash := sha256.New()
			for _, file := range must.Get(filepath.Glob(filepath.Join(root, filepath.FromSlash(m.pkg), "*.go"))) {
				_, _ = hash.Write(must.Get(os.ReadFile(file))) // a hash never fails
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
	return slices.DeleteFunc(slices.Clone(list), func(m *mutant) bool { return bytes.Contains(caught, []byte(m.key)) })
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

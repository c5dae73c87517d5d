// Package pgbin finds the programs of an installed PostgreSQL server.
package pgbin

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// globs match the directories where packages install the server's programs, newest
// version last.
var globs = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
}

// errNoServer says how to install PostgreSQL.
var errNoServer = errors.New("no PostgreSQL server found: install it (apt-get install postgresql, " +
	"brew install postgresql@17) or set TAKT_TEST_DATABASE_URL")

// Dir returns the directory that holds initdb and postgres.
func Dir() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil && complete(filepath.Dir(path)) {
			return filepath.Dir(path), nil
		}
	}
	for _, pattern := range globs {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		for _, dir := range slices.Backward(dirs) { // Glob sorts
			if complete(dir) {
				return dir, nil
			}
		}
	}
	return "", errNoServer
}

func complete(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

package database

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestThePgDumpThatFitsTheServer(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir()} // without one
	for _, version := range []string{"14.9", "17.2", "16.1 (Debian)", "nonsense"} {
		dir := t.TempDir()
		dirs = append(dirs, dir)
		script := fmt.Sprintf("#!/bin/sh\necho 'pg_dump (PostgreSQL) %s'\n", version)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "pg_dump"), []byte(script), 0o700))
	}
	for server, want := range map[int]int{14: 1, 15: 3, 16: 3, 17: 2} {
		program := must(findDump(t.Context(), dirs, server))(t)
		require.Equal(t, filepath.Join(dirs[want], "pg_dump"), program, server)
	}
	_, err := findDump(t.Context(), dirs, 18)
	require.ErrorContains(t, err, "pg_dump of PostgreSQL 18 or newer is needed, because the server is PostgreSQL 18, and this machine has only version 17")
	_, err = findDump(t.Context(), dirs[:1], 15)
	require.ErrorContains(t, err, "this machine has none")
}

func TestTLSSettingsOfAURL(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"": "",
		"postgres://me:sslmode@db/takt?sslmode=verify-full&sslrootcert=%2Fa%20b%2Fca.pem&search_path=takt": ` sslmode='verify-full' sslrootcert='/a b/ca.pem'`,
		`host=db password='it\'s' sslmode = require sslkey='/it\'s/key'`:                                   ` sslmode=require sslkey='/it\'s/key'`,
	} {
		require.Equal(t, want, tlsSettings(address), address)
	}
}

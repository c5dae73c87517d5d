package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheDocumentIsCurrent(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "..")
	want, err := Document(root)
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(root, "http", "openapi.yaml"))
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "http/openapi.yaml is stale: make docs")
}

//go:build dev

package dashboard

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDevReadsFilesAnew changes, breaks and mends files that pages are made of.
func TestDevReadsFilesAnew(t *testing.T) { //nolint:paralleltest // the working directory is the process's
	root := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(root, devFiles), os.DirFS(".")))
	t.Chdir(root)
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(devFiles, "html", name), []byte(text), 0o600))
	}
	first := current()
	require.False(t, changed(first.version))
	write("dash.css", "body{}")
	require.True(t, changed(first.version))
	second := current()
	require.Equal(t, "body{}", string(second.assets["dash.css"].content))

	write("login.html", "{{nonsense}}")
	require.False(t, changed(second.version), "a file that is wrong changes nothing")
	require.NotNil(t, current().pages["login"])
	write("login.html", `{{define "main"}}mended{{end}}`)
	require.True(t, changed(second.version))
}

package settings

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func TestDataDirThatOthersCanChangeIsNotTrusted(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "data")
	var log bytes.Buffer
	require.NoError(t, OpenDataDir(dir, zerolog.New(&log)))
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	require.Empty(t, log.String())

	require.NoError(t, os.Chmod(dir, 0o750))
	require.NoError(t, OpenDataDir(dir, zerolog.New(&log)))
	require.Empty(t, log.String(), "names may be read")
	require.NoError(t, os.Chmod(dir, 0o770))
	require.NoError(t, OpenDataDir(dir, zerolog.New(&log)))
	require.Contains(t, log.String(), "group may write")
	require.NoError(t, os.Chmod(dir, 0o777))
	require.ErrorContains(t, OpenDataDir(dir, zerolog.New(&log)), "everybody may write")

	log.Reset()
	require.NoError(t, os.Chmod(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "api-key"), []byte("k"), 0o600))
	require.NoError(t, OpenDataDir(dir, zerolog.New(&log)))
	require.Empty(t, log.String())
	require.NoError(t, os.Chmod(filepath.Join(dir, "api-key"), 0o644))
	require.NoError(t, OpenDataDir(dir, zerolog.New(&log)))
	require.Contains(t, log.String(), "can be read by others")
}

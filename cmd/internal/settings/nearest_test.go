package settings

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnknownSettingsSayWhichKnownOneIsNearest(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "takt.yaml")
	require.NoError(t, os.WriteFile(file, []byte("quue_limit: 7\nweather: fine\n"), 0o600))
	_, err := Load(Sources{Lookup: env(), File: file, Names: []string{"HOME", "TAKT_LISTEN", "TAKT_S3_BUKET", "TAKT_ZZZZZZZZZZ"}})
	require.ErrorContains(t, err, `unknown setting "quue_limit"; did you mean queue_limit?`)
	require.ErrorContains(t, err, `unknown setting TAKT_S3_BUKET in the environment; did you mean TAKT_S3_BUCKET?`)
	require.Regexp(t, `(?m)unknown setting "weather"$`, err.Error())
	require.Regexp(t, `(?m)unknown setting TAKT_ZZZZZZZZZZ in the environment$`, err.Error())
}

func TestVariablesOfOthersAreNoSettings(t *testing.T) {
	t.Parallel()
	_, err := Load(Sources{Lookup: env(), Names: []string{
		"TAKT_URL", "TAKT_CA_FILE", "TAKT_API_KEY_FILE", "TAKT_GITHUB_TOKEN", "TAKT_ADMIN_KEY", // clients
		"TAKT_BUILD_ID", "TAKT_OUTPUT", // builds
		"TAKT_SERVICE_HOST", "TAKT_SERVICE_PORT", "TAKT_PORT", "TAKT_PORT_3000_TCP_ADDR", // Kubernetes, of a service named takt
		"TAKTSTOCK",
	}})
	require.NoError(t, err)
}

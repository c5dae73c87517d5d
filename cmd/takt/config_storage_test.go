package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStorageSettingsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := load(sources{lookup: env("TAKT_STORAGE", "tape")})
	require.ErrorContains(t, err, `storage: "tape" is not known: local, s3 or dual`)
	_, err = load(sources{lookup: env("TAKT_STORAGE", "s3", "TAKT_S3_ENDPOINT", "s3.example.com", "TAKT_S3_SECRET_KEY", "hidden")})
	for _, part := range []string{"s3-endpoint: must be the URL", "s3-bucket: must", "s3-access-key: must"} {
		require.ErrorContains(t, err, part)
	}
	require.NotContains(t, err.Error(), "hidden")

	cfg, err := load(sources{lookup: env("TAKT_STORAGE", "dual", "TAKT_S3_ENDPOINT", "http://s3.example.com", "TAKT_S3_BUCKET", "b",
		"TAKT_S3_ACCESS_KEY", "visible-to-nobody", "TAKT_S3_SECRET_KEY", "hidden")})
	require.NoError(t, err)
	var out bytes.Buffer
	cfg.print(&out)
	require.Contains(t, out.String(), `s3_endpoint: "http://s3.example.com"`)
	require.NotContains(t, out.String(), "hidden")
	require.NotContains(t, out.String(), "visible-to-nobody")
}

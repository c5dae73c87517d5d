package settings

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/janitor"
)

func TestStorageSettingsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := Load(Sources{Lookup: env("TAKT_STORAGE", "tape")})
	require.ErrorContains(t, err, `storage: "tape" is not known: local, s3 or dual`)
	_, err = Load(Sources{Lookup: env("TAKT_STORAGE", "s3", "TAKT_S3_ENDPOINT", "s3.example.com", "TAKT_S3_SECRET_KEY", "hidden")})
	for _, part := range []string{"s3-endpoint: must be the URL", "s3-bucket: must", "s3-access-key: must"} {
		require.ErrorContains(t, err, part)
	}
	require.NotContains(t, err.Error(), "hidden")

	cfg, err := Load(Sources{Lookup: env("TAKT_STORAGE", "dual", "TAKT_S3_ENDPOINT", "http://s3.example.com", "TAKT_S3_BUCKET", "b",
		"TAKT_S3_ACCESS_KEY", "visible-to-nobody", "TAKT_S3_SECRET_KEY", "hidden")})
	require.NoError(t, err)
	var out bytes.Buffer
	cfg.Print(&out)
	require.Contains(t, out.String(), `s3_endpoint: "http://s3.example.com"`)
	require.NotContains(t, out.String(), "hidden")
	require.NotContains(t, out.String(), "visible-to-nobody")
}

func TestRetentionIsAListOfKinds(t *testing.T) {
	t.Parallel()
	cfg, err := Load(Sources{Lookup: env("TAKT_RETAIN", "source=720h, logs=90")})
	require.NoError(t, err)
	require.Equal(t, janitor.Retention{Source: 720 * time.Hour, Logs: 90 * time.Second}, cfg.Retain)
	var out bytes.Buffer
	cfg.Print(&out)
	require.Contains(t, out.String(), `retain: "source=720h,logs=1m30s"`)
	for _, bad := range []string{"source", "source=-1h", "tapes=1h", "logs=soon", "720h"} {
		_, err := Load(Sources{Lookup: env("TAKT_RETAIN", bad)})
		require.ErrorContains(t, err, "retain (TAKT_RETAIN): ", bad)
	}
}

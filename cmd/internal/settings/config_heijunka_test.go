package settings

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/actors/heijunka"
	"takt/store"
)

func TestLoadLevellingIsAPresetAndWhatDiffers(t *testing.T) {
	t.Parallel()
	cfg, err := Load(Sources{Lookup: env()})
	require.NoError(t, err)
	want, _ := heijunka.Preset("medium")
	require.Equal(t, want, cfg.Heijunka.Config())

	// The preset comes last and takes back nothing.
	cfg, err = Load(Sources{Lookup: env(
		"TAKT_HEIJUNKA_HARD_LIMIT", "4000", "TAKT_HEIJUNKA_POOLS", "fleet=1/1/2/3/4", "TAKT_HEIJUNKA_PRESET", "large",
	)})
	require.NoError(t, err)
	got := cfg.Heijunka.Config()
	require.Equal(t, store.HeijunkaLimits{Soft: 3000, Hard: 4000, Reserved: 0.2}, got.Limits)
	require.Equal(t, heijunka.PoolConfig{Name: "fleet", Initial: 1, Min: 1, Max: 2, Overflow: 3, Queue: 4}, *got.Pool("fleet"))
	require.Equal(t, 20, got.Pool("submit").Initial)
	var out bytes.Buffer
	cfg.Print(&out)
	require.Contains(t, out.String(), `heijunka_pools: "fleet=1/1/2/3/4,submit=20/10/80/60/3000,`)
	require.Contains(t, out.String(), `transfer=128/64/512/384/3000"`)
	require.Contains(t, out.String(), `heijunka: "on"`)

	for name, value := range map[string]string{
		"TAKT_HEIJUNKA": "perhaps", "TAKT_HEIJUNKA_PRESET": "huge", "TAKT_HEIJUNKA_SOFT_LIMIT": "2000",
	} {
		_, err := Load(Sources{Lookup: env(name, value)})
		require.ErrorContains(t, err, "heijunka", name)
	}
	for _, pools := range []string{"fleet=1/2", "query=1/2/3/4/5", "other=1/1/1/1/1", "fleet=a/b/c/d/e", "fleet"} {
		_, err := Load(Sources{Lookup: env("TAKT_HEIJUNKA_POOLS", pools)})
		require.ErrorContains(t, err, "heijunka", pools)
	}
}

package actors

import (
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/heijunka"
	"takt/actors/repo"
)

func TestLoadIsMeasured(t *testing.T) {
	t.Parallel()
	tree := New(Config{Embedded: &repo.PostgresConfig{DataDir: t.TempDir()}}, Deps{Logger: zerolog.Nop()})
	token, err := tree.Heijunka.RequestAdmission(heijunka.Fleet, heijunka.Metadata{})
	require.NoError(t, err)
	defer tree.Heijunka.Release(token)
	families, err := tree.Telemetry.Gatherer().Gather()
	require.NoError(t, err)
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			found[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"takt_heijunka_load": 1, "takt_heijunka_hard_limit": 1200, "takt_heijunka_accepted_total": 1,
		"takt_heijunka_rejected_total regular": 0, "takt_heijunka_balance_coefficient": 1, "takt_heijunka_pool_workers fleet": 0,
		"takt_heijunka_pool_waiting transfer": 0, "takt_heijunka_spilled_total query": 0,
	} {
		got, ok := found[name]
		require.True(t, ok, name)
		require.InDelta(t, want, got, 0, name)
	}
}

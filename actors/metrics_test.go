package actors

import (
	"context"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/database"
	"takt/actors/heijunka"
	"takt/actors/otp"
	"takt/actors/request"
	"takt/store"
)

func TestLoadIsMeasured(t *testing.T) {
	t.Parallel()
	tree := New(Config{Embedded: &database.PostgresConfig{DataDir: t.TempDir()}}, Deps{Logger: zerolog.Nop()})
	_, err := tree.sys.StartRoot(t.Context(), root, otp.SupSpec{Children: []otp.ChildSpec{
		supervisor("request_sup", otp.OneForOne, time.Second, request.Specs(heijunka.Names()...)...),
	}})
	require.NoError(t, err)
	defer tree.sys.Shutdown(context.Background())
	var families []*dto.MetricFamily
	require.NoError(t, tree.Heijunka.Do(t.Context(), store.Work{Domain: heijunka.Fleet}, func(context.Context) (err error) {
		families, err = tree.Telemetry.Gatherer().Gather()
		return err
	}))
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
		"takt_heijunka_rejected_total regular": 0, "takt_heijunka_balance_coefficient": 1, "takt_heijunka_pool_workers fleet": 10,
		"takt_heijunka_pool_busy fleet": 1, "takt_heijunka_pool_overdue fleet": 0,
		"takt_heijunka_pool_waiting transfer": 0, "takt_heijunka_spilled_total query": 0,
	} {
		got, ok := found[name]
		require.True(t, ok, name)
		require.InDelta(t, want, got, 0, name)
	}
}

package settings

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSettingsAreFewAndSaidOnce(t *testing.T) {
	t.Parallel()
	def := Default("/state")
	table := Table(&def)
	require.LessOrEqual(t, len(table), 60, "a setting has to be worth its row: make it a constant with a comment")
	seen := map[string]bool{}
	for _, s := range table {
		require.NotEmpty(t, s.Group, s.Name)
		require.NotEmpty(t, s.Usage, s.Name)
		for _, name := range s.Env() {
			require.False(t, seen[name], name)
			seen[name] = true
		}
		if shown := s.Get(); shown != "" {
			require.NoError(t, s.set(shown), s.Name)
			require.Equal(t, shown, s.Get(), "%s reads what it shows", s.Name)
		}
	}
}

func TestSilenceIsCheckedForOftenEnough(t *testing.T) {
	t.Parallel()
	for timeout, want := range map[time.Duration]time.Duration{
		time.Second: time.Second, 3 * time.Second: time.Second, 50 * time.Second: 10 * time.Second,
		5 * time.Minute: time.Minute, time.Hour: time.Minute,
	} {
		cfg := Config{BuildTimeout: timeout, WorkerTimeout: time.Hour}
		require.Equal(t, want, cfg.CheckPeriod(), timeout)
		cfg = Config{BuildTimeout: time.Hour, WorkerTimeout: timeout}
		require.Equal(t, want, cfg.CheckPeriod(), timeout)
	}
}

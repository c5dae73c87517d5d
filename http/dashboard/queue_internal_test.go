package dashboard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/forecast"
	"takt/store"
)

func TestProgressOfABuild(t *testing.T) {
	t.Parallel()
	usual, reported := store.Durations{Count: 9, Median: time.Minute, Ninth: 2 * time.Minute}, 7
	row := func(elapsed time.Duration) runningRow {
		return runningRow{Run: forecast.Run{Elapsed: elapsed, Usual: usual}}
	}
	require.Equal(t, 50, row(30*time.Second).Percent())
	require.Equal(t, -1, row(time.Minute).Percent(), "it does not stand at 99 %")
	require.True(t, row(time.Minute).Over())
	require.False(t, row(time.Minute).Late())
	require.True(t, row(3*time.Minute).Late())
	require.Equal(t, -1, runningRow{Run: forecast.Run{Elapsed: time.Minute}}.Percent())
	told := row(time.Hour)
	told.Progress = &reported
	require.Equal(t, 7, told.Percent())
}

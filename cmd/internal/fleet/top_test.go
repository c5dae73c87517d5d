package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
)

// A build that was put back a moment ago is not the one that waits longest.
func TestTopCountsTheLongestWait(t *testing.T) {
	t.Parallel()
	build := func(submitted, since string) api.BuildItem {
		return api.BuildItem{SubmittedAt: submitted, WaitingSince: since}
	}
	require.Equal(t, "2026-01-01T12:03:00.000Z", oldest([]api.BuildItem{
		build("2026-01-01T12:05:00.000Z", "2026-01-01T12:05:00.000Z"),
		build("2026-01-01T12:00:00.000Z", "2026-01-01T12:09:00.000Z"),
		build("2026-01-01T12:03:00.000Z", ""), // by a controller of the release before
	}))
	require.Empty(t, oldest(nil))
}

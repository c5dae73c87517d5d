package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestTheCauseOfAnEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state store.BuildState
		ended store.Ended
		cause string
	}{
		{store.Pending, "exit:75", ""}, // of its last attempt
		{store.Building, "", ""},
		{store.Completed, "", ""},
		{store.Cancelled, "cancelled", "cancelled"},
		{store.Cancelled, "", "cancelled"}, // by the release before
		{store.Cancelled, "exit:75", "cancelled"},
		{store.Failed, "", "failed"},
		{store.Failed, "exit:65", "failed"},
		{store.Failed, "signal:9", "failed"},
		{store.Failed, "timeout", "timeout"},
		{store.Failed, store.EndedLost, "lost"},
	} {
		b := store.Build{State: c.state, Ended: c.ended}
		require.Equal(t, c.cause, b.Cause(), "%+v", c)
		if c.ended == store.EndedLost {
			require.Empty(t, c.ended.String(), "no command has ended")
			require.Zero(t, c.ended.Code())
		}
	}
	require.Equal(t, []string{"", " by key ci", ": superseded", " by key ci: superseded"}, []string{
		store.ByWhy("", ""), store.ByWhy("key ci", ""), store.ByWhy("", "superseded"), store.ByWhy("key ci", "superseded"),
	})
}

package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"takt/store"
)

// Whatever is submitted, taken, and comes and goes, in whatever order: the queue is bounded, and
// builds that nobody can take keep none out that somebody can.
func TestBuildsThatNobodyCanTakeKeepNoOthersOut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 30).Draw(t, "limit")
		pending, served := make([]int, 4), make([]bool, 4) // by class; the first is plain
		known := rapid.Bool().Draw(t, "some worker is known")
		unmatched := func(class int) bool { return class > 0 && known && !served[class] }
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			class := rapid.IntRange(0, 3).Draw(t, "class")
			room := store.QueueRoom{Limit: limit}
			for i, n := range pending {
				if room.Pending += n; unmatched(i) {
					room.Unmatched += n
				}
			}
			share, ordinary := max(limit/10, 1), room.Pending-room.Unmatched
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0: // a worker for the class comes or goes
				served[class] = !served[class]
			case 1:
				known = rapid.Bool().Draw(t, "some worker is known")
			case 2: // it takes a build
				if pending[class] > 0 && !unmatched(class) {
					pending[class]--
				}
			default:
				before := room
				err := room.Admit(unmatched(class))
				if err == nil {
					pending[class]++
				} else {
					require.Equal(t, before, room)
				}
				accepted := err == nil
				switch {
				case before.Unmatched > share: // as many don't count
				case ordinary > limit:
					require.False(t, accepted, "C17: %d wait", ordinary)
				case !unmatched(class):
					require.True(t, accepted, "C17: only %d wait", ordinary)
				default:
					require.Equal(t, before.Unmatched < share, accepted)
				}
				if accepted {
					require.LessOrEqual(t, room.Pending, limit+1+share, "the whole is bounded")
				}
				require.Equal(t, accepted, before.Reason() != store.RoomFull && (!unmatched(class) || before.Reason() == ""))
				require.Equal(t, before.Reason() == "", before.Refused() == "")
			}
		}
	})
}

func TestARefusalSaysWhatFillsTheQueue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		room      store.QueueRoom
		unmatched bool
		details   string
	}{
		{store.QueueRoom{Limit: 1000, Pending: 1001}, true, "The queue's limit is 1000, and 1001 builds wait."},
		{
			store.QueueRoom{Limit: 1000, Pending: 1104, Unmatched: 103},
			false, "The queue's limit is 1000, and 1104 builds wait. No known worker can take 103 of them; up to 100 such builds don't count.",
		},
		{
			store.QueueRoom{Limit: 3, Pending: 3, Unmatched: 1},
			true, "No known worker can take this build. The limit of such builds is 1, and 1 wait. The limit of all others is 3, and 2 wait.",
		},
		{store.QueueRoom{Limit: 3, Pending: 3, Unmatched: 1}, false, ""},
	} {
		err := c.room.Admit(c.unmatched)
		if c.details == "" {
			require.NoError(t, err)
			continue
		}
		require.Equal(t, &store.Error{Code: store.QueueFull, Message: "Build queue full, try again later", Details: c.details, RetryAfter: 5 * time.Second}, err)
		require.Contains(t, c.room.Refused(), "refused. ")
	}
}

package dashboard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestWhyABuildWaits(t *testing.T) {
	t.Parallel()
	usual := store.Durations{Count: 10, Quarter: time.Minute, Median: 2 * time.Minute, Ninth: 4 * time.Minute}
	fleet := func(known, able, draining, slots, held int) platformQueue {
		return platformQueue{FleetSummary: store.FleetSummary{Platform: "ios", Known: known, Able: able, Draining: draining, Slots: slots, Held: held, Pending: 9}, Usual: usual}
	}
	quarantined := fleet(3, 0, 0, 0, 0)
	quarantined.Quarantined = 3
	build := store.PendingBuild{Platform: "ios", Number: 5}
	for name, c := range map[string]struct {
		fleet platformQueue
		want  why
	}{
		"nobody":          {fleet(0, 0, 0, 0, 0), why{"worker", "There is no worker for ios.", ""}},
		"all offline":     {fleet(3, 0, 0, 0, 0), why{"worker", "No worker for ios is online (3 known).", ""}},
		"all draining":    {fleet(3, 0, 2, 0, 0), why{"paused", "All workers for ios that are online get no builds: 2 draining, 0 quarantined, 0 critical.", ""}},
		"all quarantined": {quarantined, why{"paused", "All workers for ios that are online get no builds: 0 draining, 3 quarantined, 0 critical.", ""}},
		"a slot free":     {fleet(3, 3, 0, 6, 1), why{"next", "A slot is free: the next poll of a worker gets it.", "now"}},
		"all slots busy":  {fleet(2, 2, 0, 2, 2), why{"busy", "Every slot is busy (2 slots, 2 workers); it is number 5 of 9 for ios.", "1 min to 12 min"}},
	} {
		require.Equal(t, c.want, whyWaiting(build, c.fleet), name)
	}
}

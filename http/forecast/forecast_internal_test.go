package forecast

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestWhyABuildWaits(t *testing.T) {
	t.Parallel()
	usual := store.Durations{Count: 10, Quarter: time.Minute, Median: 2 * time.Minute, Most: 3 * time.Minute, Ninth: 4 * time.Minute}
	fleet := func(f store.FleetSummary, elapsed ...time.Duration) Queue {
		f.Class, f.Pending = store.Class{ID: store.IOSClass, Platform: store.IOS}, 9
		q := Queue{FleetSummary: f, Usual: usual}
		for _, e := range elapsed {
			q.Busy = append(q.Busy, Run{e, usual})
		}
		return q
	}
	full, long := store.FleetSummary{Known: 2, Able: 2, Slots: 2, Held: 2}, 5*time.Minute
	shared := fleet(full, 0, 0)
	shared.Shared = true
	const busy = "Every slot is busy (2 slots, 2 workers); number 5 of 9 for ios."
	for name, c := range map[string]struct {
		fleet Queue
		want  Reason
	}{
		"nobody":            {fleet(store.FleetSummary{}), Reason{"unmatched", "There is no worker for ios.", "", nil, nil}},
		"all offline":       {fleet(store.FleetSummary{Known: 3}), Reason{"worker", "No worker for ios is online (3 known).", "", nil, nil}},
		"all draining":      {fleet(store.FleetSummary{Known: 3, Draining: 2}), Reason{"paused", "No worker for ios gets builds: 2 draining.", "", nil, nil}},
		"some quarantined":  {fleet(store.FleetSummary{Known: 3, Quarantined: 2, Silent: 1}), Reason{"paused", "No worker for ios gets builds: 2 quarantined, 1 silent.", "", nil, nil}},
		"all silent":        {fleet(store.FleetSummary{Known: 3, Silent: 3}), Reason{"worker", "No worker for ios gets builds: 3 silent.", "", nil, nil}},
		"a slot free":       {fleet(store.FleetSummary{Known: 3, Able: 3, Slots: 6, Held: 1, Free: 5}), Reason{"next", "A slot is free: the next poll of a worker gets it.", "any moment", nil, nil}},
		"no poll":           {fleet(store.FleetSummary{Known: 3, Able: 3, Slots: 6, Held: 1, Free: 4}), Reason{"busy", "A slot is free, but its worker does not poll now.", "", nil, nil}},
		"just begun":        {fleet(full, 0, 0), Reason{"busy", busy, "3 min to 12 min", nil, nil}},
		"half done":         {fleet(full, time.Minute, time.Minute), Reason{"busy", busy, "2 min to 11 min", nil, nil}},
		"one runs too long": {fleet(full, time.Minute, long), Reason{"busy", busy, "2 min to 19 min", nil, nil}},
		"all run too long":  {fleet(full, long, long), Reason{"busy", busy, "unknown: 2 builds run much longer than usual", nil, nil}},
		"shared":            {shared, Reason{"busy", busy, "3 min to 16 min", nil, nil}},
	} {
		require.Equal(t, c.want, why(store.PendingBuild{Platform: "ios", Number: 5, Place: 7}, c.fleet, store.NewFleet(nil)), name)
	}
	due := store.PendingBuild{Due: time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600)), Ended: "exit:75"}
	require.Equal(t, Reason{Kind: "retry", Text: "It waits until 02:04:05 UTC for its retry after exit code 75."}, (&Reading{}).Why(due))
	reason, err := NewReader(nil).Why(t.Context(), &due)
	require.NoError(t, err)
	require.Equal(t, (&Reading{}).Why(due), reason, "without a reading of the fleet")
	for own, turns := range map[int]string{4: "", 1: " Keys take turns: 1 of its own key and 3 of others are before it."} {
		require.Equal(t, busy+turns, why(store.PendingBuild{Number: 5, Own: &own}, fleet(full, 0, 0), nil).Text)
	}
	unmatched := fleet(store.FleetSummary{})
	unmatched.Class = store.Class{ID: 20, Platform: "linux", Require: store.StoredRequire("gpu,cuda>=12")}
	linux := func(name, state string, n int, labels store.Labels) store.FleetGroup {
		return store.FleetGroup{Platforms: []store.Platform{"linux"}, Name: name, State: state, N: n, Labels: labels}
	}
	all := []store.FleetGroup{
		linux("Gone", store.WorkerLeft, 9, store.Labels{"cuda": "12.1"}),
		linux("Pro", "idle", 1, store.Labels{"cuda": "11", "rack": "1"}), linux("Old", "idle", 1, store.Labels{"cuda": "10"}),
		{Name: "Phone", State: "idle", N: 1}, // builds ios and android
		linux("Pro 2", store.WorkerDraining, 2, store.Labels{"cuda": "11", "rack": "2"}),
		linux("Mini", "offline", 1, store.Labels{"cuda": "12.1"}),
	}
	require.Equal(t, Reason{
		"unmatched", "There is no worker for linux with cuda>=12,gpu.", "",
		[]string{"Mini lacks gpu", "Pro and 2 others lack cuda>=12 (it has cuda=11), gpu", "Old lacks cuda>=12 (it has cuda=10), gpu"},
		[]string{"1 worker lacks gpu", "4 workers lack cuda>=12, gpu"},
	}, why(store.PendingBuild{Platform: "linux", Number: 1}, unmatched, store.NewFleet(all)))
	soon := fleet(full, time.Minute, 3*time.Minute+40*time.Second)
	require.Equal(t, "within 20 s", why(store.PendingBuild{Platform: "ios", Number: 1, Place: 1}, soon, nil).Start)
	many := fleet(store.FleetSummary{Known: 9, Able: 9, Slots: 4000, Held: 4000}, make([]time.Duration, store.MaxRunning)...)
	require.Equal(t, "1 min to 4 min", why(store.PendingBuild{Platform: "ios", Number: 4000}, many, nil).Start, "they are a half of those that run")
}

// What happened to a build after its end stands below it, and each attempt says how long it waited for.
func TestTheStoryOfABuildIsInOrder(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	at := func(minutes int) time.Time { return begin.Add(time.Duration(minutes) * time.Minute) }
	past := []store.Milestone{
		{At: at(1), Kind: store.LineRetried, Facts: store.LineFacts{Build: "early"}},
		{At: at(2), Kind: store.LineAssigned, WorkerID: "w", Attempt: 1},
		{At: at(20), Kind: store.LineRequeued, WorkerID: "w", Attempt: 1, Facts: store.LineFacts{Reason: store.LostSilent}},
		{At: at(23), Kind: store.LineAssigned, WorkerID: "w", Attempt: 2},
		{At: at(31), Kind: store.LineRetried, Facts: store.LineFacts{Build: "late"}},
	}
	b := store.Build{State: store.Failed, SubmittedAt: begin, CompletedAt: at(30), WorkerID: "w", ErrorMessage: "exit 65", RetryOf: "old"}
	var titles, texts []string
	for _, s := range storyOf(b, past, nil) {
		titles, texts = append(titles, s.Title), append(texts, s.Text)
	}
	require.Equal(t, []string{
		"Submitted as a retry of build old", "Retried as build early", "Assigned", "Attempt 1 lost", "Assigned", "Failed", "Retried as build late",
	}, titles)
	require.Equal(t, []string{"after waiting 2 min", "attempt 2, after waiting 3 min"}, []string{texts[2], texts[4]})
	b.State, b.EndedBy, b.EndedWhy = store.Cancelled, "key ci", "superseded"
	steps := storyOf(b, past, nil)
	require.Equal(t, Step{At: at(30), Kind: store.LineCancelled, Mark: "done", Title: "Cancelled by key ci", Text: "superseded"}, steps[5])
}

// A build that needs a feature is building before its worker has sent anything.
func TestTheStoryOfABuildThatItsWorkerHasNotBegun(t *testing.T) {
	t.Parallel()
	now := time.Now()
	last := func(b store.Build) Step {
		steps := storyOf(b, nil, nil)
		return steps[slices.IndexFunc(steps, func(s Step) bool { return s.Mark == "now" })]
	}
	for _, b := range []store.Build{{State: store.Assigned}, {State: store.Building}, {State: store.Assigned, LastSeenAt: now}} {
		b.WorkerID, b.StartedAt = "w", now
		require.Equal(t, "Handed out", last(b).Title)
	}
	require.Equal(t, "Building", last(store.Build{State: store.Building, WorkerID: "w", StartedAt: now, LastSeenAt: now}).Title)
}

func TestRoomCountsWhatNoKnownWorkerCanTake(t *testing.T) {
	t.Parallel()
	class := func(id int32, require string, known, pending int) Queue {
		return Queue{FleetSummary: store.FleetSummary{Class: store.Class{ID: id, Platform: store.IOS, Require: store.StoredRequire(require)}, Known: known, Pending: pending}}
	}
	r := Reading{Fleet: map[int32]Queue{0: class(0, "", 2, 10), 1: class(1, "", 0, 1), 7: class(7, "gpu", 0, 3), 8: class(8, "xcode", 1, 2), 9: class(9, "pool=a", 0, 4)}}
	require.Equal(t, store.QueueRoom{Limit: store.DefaultQueueLimit, Pending: 10, Unmatched: 7}, r.Room())
	r.Limit, r.Fleet[0] = 5, class(0, "", 0, 10)
	require.Equal(t, store.QueueRoom{Limit: 5, Pending: 10}, r.Room(), "no worker is known")
}

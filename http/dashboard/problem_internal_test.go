package dashboard

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/forecast"
	"takt/storage"
	"takt/store"
)

// fleetOf is a situation with a fleet that takes ios builds.
func fleetOf(f store.FleetSummary) situation {
	all := f
	f.Class = store.Class{ID: store.IOSClass, Platform: store.IOS}
	return situation{
		Reading: forecast.Reading{
			Fleet:   map[int32]forecast.Queue{0: {FleetSummary: all}, store.IOSClass: {FleetSummary: f}},
			Figures: store.Figures{Now: time.Now()},
		},
		States: map[string]int{"idle": f.Able},
	}
}

func TestTheMostSevereProblemComesFirst(t *testing.T) {
	t.Parallel()
	well := store.FleetSummary{Known: 3, Able: 3, Slots: 4, Held: 1, Free: 3}
	workers := func(state string, n int, w store.WorkerDetail) func(s *situation) {
		return func(s *situation) {
			w.State, w.Name, w.ID = state, "mini-03", "w3"
			s.States[state], s.Workers = n, append(s.Workers, w)
		}
	}
	worse := fleetOf(well) // gets one after the other, each more severe
	for _, c := range []struct {
		kind, text string
		add        func(s *situation)
	}{
		{"load", "7 requests were rejected", func(s *situation) { s.Refused = 7 }},
		{"failures", "3 of 12 failed in the last hour.", func(s *situation) { s.Ended, s.Failed = 12, 3 }},
		{"waiting", "2 builds are waiting.", func(s *situation) {
			q := s.Fleet[0]
			q.Pending, s.Oldest = 2, s.Now.Add(-longWait-time.Second)
			s.Fleet[0] = q
		}},
		{"overrun", "1 build is running for longer than 90 % of builds do.", func(s *situation) {
			q := s.Fleet[0]
			q.Late = 1
			s.Fleet[0] = q
		}},
		{"disk", "The disk of mini-07 is 91 % full.", func(s *situation) { s.Disk, s.DiskName = 91.2, "mini-07" }},
		{"silent", "mini-03 is silent.", workers(store.WorkerSilent, 1, store.WorkerDetail{})},
		{"silent", "mini-03 is silent; 2 builds run on mini-03, lost soon after 02:08:05 UTC if nothing is heard.", func(s *situation) {
			s.Timeouts.BuildTimeout = 5 * time.Minute
			workers(store.WorkerSilent, 1, store.WorkerDetail{Worker: store.Worker{LastSeenAt: time.Date(2026, 1, 2, 3, 3, 5, 0, time.FixedZone("", 3600))}, Builds: []string{"a", "b"}})(s)
		}},
		{"offline", "mini-03 and 1 other worker are offline.", workers(string(store.Offline), 2, store.WorkerDetail{})},
		{"quarantined", "mini-03 is quarantined: 3 of 10 failed.", workers(store.WorkerQuarantined, 1, store.WorkerDetail{Worker: store.Worker{Quarantine: "3 of 10 failed."}})},
		{"suspect", "mini-03 is suspect: all 14 failures ran here.", workers(store.WorkerSuspect, 1, store.WorkerDetail{Worker: store.Worker{Suspect: "all 14 failures ran here"}})},
		{"critical", "mini-03 is critical: disk full.", workers(store.WorkerCritical, 1, store.WorkerDetail{Finding: "disk full"})},
		{"clock", "apart", func(s *situation) { s.Ahead = -time.Minute }},
		{"stuck", "4 builds can't start. No worker for android gets builds: 2 draining.", func(s *situation) {
			s.Fleet[store.AndroidClass] = forecast.Queue{FleetSummary: store.FleetSummary{Class: store.Class{ID: store.AndroidClass, Platform: store.Android}, Known: 2, Draining: 2, Pending: 4}}
		}},
		{"tree", "2 processes are not running: takt/a, takt/b.", func(s *situation) { s.Down = []string{"takt/a", "takt/b"} }},
		{"s3", "S3 does not answer: no file", func(s *situation) {
			s.Files = storage.Health{Mode: storage.ModeS3, S3: &storage.S3State{Err: errors.New("away")}}
		}},
		{"storage", "nearly full", func(s *situation) { s.Full = errors.New("full") }},
		{"database", "The database does not answer.", func(s *situation) { s.Away = true }},
	} {
		s := fleetOf(well)
		c.add(&s)
		alone := s.Problems()
		require.Equal(t, c.kind, alone[0].Kind)
		require.Contains(t, alone[0].Text, c.text)
		require.Contains(t, []string{"bad", "warn"}, alone[0].Severity)
		require.NotEmpty(t, alone[0].Todo)
		require.NotEmpty(t, alone[0].Link)
		require.Len(t, alone, 1, c.kind)
		c.add(&worse)
		require.Equal(t, c.kind, worse.Problems()[0].Kind)
	}
	s := fleetOf(well)
	require.Empty(t, s.Problems())

	for id := range int32(200) {
		s.Fleet[id+10] = forecast.Queue{FleetSummary: store.FleetSummary{Class: store.Class{ID: id + 10, Platform: "linux"}, Pending: 2}}
	}
	stuck := s.Problems()
	require.Len(t, stuck, maxStuck+1, "a page does not list any number of them")
	require.Equal(t, "380 more builds can't start.", stuck[maxStuck].Text)

	s = fleetOf(well)
	draining := fleetOf(store.FleetSummary{Known: 2, Draining: 2})
	require.Equal(t, "No build could start. No worker gets builds: 2 draining.", draining.Problems()[0].Text)
	s.States = map[string]int{string(store.Offline): 1, store.WorkerLeft: 3, store.WorkerDraining: 2}
	require.Equal(t, "1 worker is offline.", s.Problems()[0].Text, "whose name is not known")
}

func TestFailuresAreCountedUpToABound(t *testing.T) {
	t.Parallel()
	s := situation{Reading: forecast.Reading{Figures: store.Figures{Ended: 30, Failed: 9}}}
	require.Equal(t, "9 of 30 failed in the last hour", s.Failures())
	s.Ended = store.MaxEnded
	require.Equal(t, "9 of the last 5000 builds failed", s.Failures())
}

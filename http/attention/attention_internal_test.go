package attention

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/http/forecast"
	"takt/storage"
	"takt/store"
)

// fleetOf is a situation with a fleet that takes ios builds.
func fleetOf(f store.FleetSummary) Situation {
	all := f
	f.Class = store.Class{ID: store.IOSClass, Platform: store.IOS}
	return Situation{
		Reading: forecast.Reading{
			Fleet:   map[int32]forecast.Queue{0: {FleetSummary: all}, store.IOSClass: {FleetSummary: f}},
			Figures: store.Figures{Now: time.Now()},
		},
		States: map[string]int{"idle": f.Able}, Version: "0.2.0",
	}
}

// pending changes how many builds wait.
func pending(s *Situation, n int) {
	q := s.Fleet[0]
	q.Pending = n
	s.Fleet[0] = q
}

func TestTheMostSevereProblemComesFirst(t *testing.T) {
	t.Parallel()
	well := store.FleetSummary{Known: 3, Able: 3, Slots: 4, Held: 1, Free: 3}
	workers := func(state string, n int, w store.WorkerDetail) func(s *Situation) {
		return func(s *Situation) {
			w.State, w.Name, w.ID = state, "mini-03", "w3"
			s.States[state], s.Workers = n, append(s.Workers, w)
		}
	}
	worse := fleetOf(well) // gets one after the other, each more severe
	for _, c := range []struct {
		kind, text, command string
		add                 func(s *Situation)
	}{
		{"load", "7 requests were rejected", "takt heijunka", func(s *Situation) { s.Refused = 7 }},
		{"failures", "3 of 12 failed in the last hour.", "takt list --status failed", func(s *Situation) { s.Ended, s.Failed = 12, 3 }},
		{"waiting", "2 builds are waiting.", "takt list --status pending", func(s *Situation) {
			pending(s, 2)
			s.Oldest = s.Now.Add(-longWait - time.Second)
		}},
		{"overrun", "1 build is running for longer than 90 % of builds do.", "takt list --status building", func(s *Situation) {
			q := s.Fleet[0]
			q.Late = 1
			s.Fleet[0] = q
		}},
		{"disk", "The disk of mini-07 is 91 % full.", "takt workers show w7", func(s *Situation) { s.Disk, s.DiskName, s.DiskID = 91.2, "mini-07", "w7" }},
		{"versions", "2 workers have another version than this controller, which is 0.2.0: 0.1.0.", "takt workers", func(s *Situation) {
			s.Troubles.Workers = map[string]int{"0.1.0": 2, "0.2.0": 5, "": 3}
		}},
		{"versions", "Controllers of different versions use this database: an older one beside 0.2.0.", "takt workers", func(s *Situation) {
			s.Troubles.Controllers = []string{"", "0.2.0"}
		}},
		{"keys", "Key ci expires in 2 d.", "takt keys list", func(s *Situation) {
			s.Troubles.Keys = []store.ExpiringKey{{Name: "ci", Expires: s.Now.Add(50 * time.Hour)}}
		}},
		{"notices", "2 notices are not delivered to https://ci.example.com: it answered 500.", "takt notices deliveries n1", func(s *Situation) {
			s.Troubles.Notices = []store.FailingNotices{{ID: "n1", URL: "https://ci.example.com/secret", Failing: 2, Dead: 1, Error: "it answered 500"}}
		}},
		{"silent", "mini-03 is silent.", "takt workers show w3", workers(store.WorkerSilent, 1, store.WorkerDetail{})},
		{"silent", "mini-03 is silent; 2 builds run on mini-03, lost soon after 02:08:05 UTC if nothing is heard.", "takt workers show w3", func(s *Situation) {
			s.Timeouts.BuildTimeout = 5 * time.Minute
			workers(store.WorkerSilent, 1, store.WorkerDetail{Worker: store.Worker{LastSeenAt: time.Date(2026, 1, 2, 3, 3, 5, 0, time.FixedZone("", 3600))}, Builds: []string{"a", "b"}})(s)
		}},
		{"offline", "mini-03 and 1 other worker are offline.", "takt workers delete w3", workers(string(store.Offline), 2, store.WorkerDetail{})},
		{"quarantined", "mini-03 is quarantined: 3 of 10 failed.", "takt workers resume w3 --reason ...", workers(store.WorkerQuarantined, 1, store.WorkerDetail{Worker: store.Worker{Quarantine: "3 of 10 failed."}})},
		{"suspect", "mini-03 is suspect: all 14 failures ran here.", "takt workers drain w3 --reason ...", workers(store.WorkerSuspect, 1, store.WorkerDetail{Worker: store.Worker{Suspect: "all 14 failures ran here"}})},
		{"critical", "mini-03 is critical: disk full.", "takt workers show w3", workers(store.WorkerCritical, 1, store.WorkerDetail{Finding: "disk full"})},
		{"clock", "apart", "takt doctor", func(s *Situation) { s.Ahead = -time.Minute }},
		{"stuck", "4 builds can't start. No worker for android gets builds: 2 draining.", "takt workers", func(s *Situation) {
			s.Fleet[store.AndroidClass] = forecast.Queue{FleetSummary: store.FleetSummary{Class: store.Class{ID: store.AndroidClass, Platform: store.Android}, Known: 2, Draining: 2, Pending: 4}}
		}},
		{"queue", "All submits are refused. The queue's limit is 2, and 3 builds wait.", "takt list --status pending", func(s *Situation) {
			pending(s, 3)
			s.Limit, s.Oldest = 2, s.Now
		}},
		{"certificate", "has expired", "takt doctor", func(s *Situation) { s.Certificate = time.Now().Add(-time.Second) }},
		{"s3", "S3 does not answer: no file", "takt doctor", func(s *Situation) {
			s.Files = storage.Health{Mode: storage.ModeS3, S3: &storage.S3State{Err: errors.New("away")}}
		}},
		{"full", "nearly full", "takt doctor", func(s *Situation) { s.Full = errors.New("full") }},
		{"tree", "2 processes are not running: takt/a, takt/b.", "takt tree", func(s *Situation) { s.Down = []string{"takt/a", "takt/b"} }},
		{"terminated", "takt/c was terminated.", "takt start takt/c --reason ...", func(s *Situation) { s.Terminated = []api.TreeNode{{Path: "takt/c"}} }},
	} {
		s := fleetOf(well)
		c.add(&s)
		alone := s.Problems()
		require.Len(t, alone, 1, c.kind)
		require.Equal(t, c.kind, alone[0].Kind)
		require.Contains(t, alone[0].Text, c.text)
		require.Equal(t, c.command, alone[0].Command)
		require.NotRegexp(t, `%[^ ]|!\(`, alone[0].Text+alone[0].Todo, "formatted")
		require.Contains(t, []string{"bad", "warn"}, alone[0].Severity)
		require.NotEmpty(t, alone[0].Todo)
		require.NotEmpty(t, alone[0].Page)
		c.add(&worse)
		require.Equal(t, c.kind, worse.Problems()[0].Kind)
	}
	s := fleetOf(well)
	require.Empty(t, s.Problems())
	s.Certificate = time.Now().Add(10 * 24 * time.Hour)
	require.Equal(t, "warn", s.Problems()[0].Severity, "there is time")

	s = fleetOf(well)
	for id := range int32(200) {
		s.Fleet[id+10] = forecast.Queue{FleetSummary: store.FleetSummary{Class: store.Class{ID: id + 10, Platform: "linux"}, Pending: 2}}
	}
	stuck := s.Problems()
	require.Len(t, stuck, maxStuck+1, "a page does not list any number of them")
	require.Equal(t, "380 more builds can't start.", stuck[maxStuck].Text)

	draining := fleetOf(store.FleetSummary{Known: 2, Draining: 2})
	require.Equal(t, "No build could start. No worker gets builds: 2 draining.", draining.Problems()[0].Text)
	s = fleetOf(well)
	s.States = map[string]int{string(store.Offline): 1, store.WorkerLeft: 3, store.WorkerDraining: 2}
	require.Equal(t, "1 worker is offline.", s.Problems()[0].Text, "whose name is not known")

	leaving := fleetOf(well)
	workers(store.WorkerLeaving, 1, store.WorkerDetail{})(&leaving)
	require.Empty(t, leaving.Problems(), "while nothing waits")
	pending(&leaving, 3)
	require.Equal(t, "mini-03 is leaving, and 3 builds wait.", leaving.Problems()[0].Text)
}

// What one cause stops is one problem.
func TestADeadDatabaseIsOneProblem(t *testing.T) {
	t.Parallel()
	s := fleetOf(store.FleetSummary{Known: 1, Able: 1})
	s.Away, s.Down = true, []string{"takt/core/queue", "takt/core/monitor"}
	s.States[string(store.Offline)] = 3 // as it was known last
	one := s.Problems()
	require.Len(t, one, 1)
	require.Equal(t, "The database does not answer. No accepted work is lost.", one[0].Text)
	s.Terminated = []api.TreeNode{{Path: "takt/database/postgres"}, {Path: "takt/throttle"}}
	two := s.Problems()
	require.Len(t, two, 2)
	require.Equal(t, "The database does not answer, because takt/database/postgres was terminated. No accepted work is lost.", two[0].Text)
	require.Equal(t, "takt start takt/database/postgres --reason ...", two[0].Command)
	require.Equal(t, []string{"takt/throttle"}, two[1].Subjects)
	require.Equal(t, 4, s.Stopped())

	tree := api.TreeNode{Path: "takt", Status: "running", Children: []api.TreeNode{
		{Path: "takt/a", Status: "terminated", Children: []api.TreeNode{{Path: "takt/a/b", Status: "terminated"}}},
		{Path: "takt/c", Status: "suspended", Leaked: 2},
	}}
	s = Situation{}
	stopped(tree, &s)
	require.Equal(t, []api.TreeNode{tree.Children[0]}, s.Terminated, "what is below it is not listed")
	require.Equal(t, []string{"takt/c"}, s.Down)
	require.Equal(t, "takt/c has leaked 2 processes, which don't end.", s.Problems()[2].Text)
}

func TestWhatIsAcknowledgedNeedsNoAttention(t *testing.T) {
	t.Parallel()
	s := fleetOf(store.FleetSummary{Known: 4, Able: 1})
	s.Full = errors.New("full")
	s.Fleet[20] = forecast.Queue{FleetSummary: store.FleetSummary{Class: store.Class{ID: 20, Platform: "linux"}, Pending: 2}}
	s.Fleet[21] = forecast.Queue{FleetSummary: store.FleetSummary{Class: store.Class{ID: 21, Platform: "mac"}, Pending: 1}}
	s.States[string(store.Offline)] = 3
	for _, id := range []string{"w1", "w2", "w3"} {
		s.Workers = append(s.Workers, store.WorkerDetail{Worker: store.Worker{ID: id, Name: "name of " + id}, State: string(store.Offline)})
	}
	require.Equal(t, 4, s.Open(true))
	require.Equal(t, 3, s.Troubled())
	s.Acknowledged = []store.Acknowledgement{
		{Kind: "full", By: "ana"},
		{Kind: "stuck", Subject: "mac", By: "ben"},
		{Kind: "offline", Subject: "w1", By: "ana", State: "offline", Name: "name of w1"},
		{Kind: "offline", Subject: "w9", By: "ana", State: "idle", Name: "name of w9"}, // it is back
		{Kind: "silent", Subject: "w2", By: "ana", State: "offline", Name: "name of w2"},
	}
	require.Equal(t, 2, s.Open(true))
	require.Equal(t, 2, s.Troubled())
	all := s.Problems()
	require.Len(t, all, 5)
	require.Equal(t, "2 builds can't start. There is no worker for linux.", all[0].Text)
	require.Equal(t, "name of w2 and 1 other worker are offline.", all[1].Text)
	require.Equal(t, []string{"w2", "w3"}, all[1].Subjects)
	for i, by := range []string{"ana", "ben", "ana"} {
		require.Equal(t, by, all[2+i].By.By)
	}
	require.Equal(t, "name of w1 is offline.", all[4].Text)
	s.States[string(store.Offline)] = 1
	require.Equal(t, 1, s.Open(true), "only the one that is known")
}

func TestKeysAndReceiversAreForOperators(t *testing.T) {
	t.Parallel()
	s := fleetOf(store.FleetSummary{Known: 1, Able: 1})
	s.Troubles.Keys, s.Troubles.Notices = []store.ExpiringKey{{Name: "ci"}}, []store.FailingNotices{{ID: "n", Dead: 1}}
	require.Empty(t, s.For(false))
	require.Zero(t, s.Open(false))
	require.Len(t, s.For(true), 2)
}

func TestFailuresAreCountedUpToABound(t *testing.T) {
	t.Parallel()
	s := Situation{Reading: forecast.Reading{Figures: store.Figures{Ended: 30, Failed: 9}}}
	require.Equal(t, "9 of 30 failed in the last hour", s.Failures())
	s.Ended = store.MaxEnded
	require.Equal(t, "9 of the last 5000 builds failed", s.Failures())
}

// kept is a Store in memory.
type kept struct {
	Store
	away  bool
	known []store.Acknowledgement
}

func (k *kept) Acknowledged(context.Context) ([]store.Acknowledgement, error) {
	if k.away {
		return nil, errSlow
	}
	return k.known, nil
}

func (k *kept) Troubles(context.Context) (store.Troubles, error) {
	return store.Troubles{Keys: []store.ExpiringKey{{Name: "ci"}, {Name: "old"}}}, nil
}

func (k *kept) Acknowledge(_ context.Context, kind string, subjects []string, by, reason string, lasts time.Duration) error {
	<-time.After(time.Millisecond) // as a database takes
	for _, s := range subjects {
		k.known = append(k.known, store.Acknowledgement{Kind: kind, Subject: s, By: by, Reason: reason, Until: time.Now().Add(lasts)})
	}
	return nil
}

func TestAReaderShowsAnAcknowledgementAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := &kept{}
		r := NewReader(Deps{
			Store: db, Ready: func() bool { return true }, Refused: func() int { return 0 }, Certificate: func() (never time.Time) { return never },
			Tree: func(bool) api.TreeNode { return api.TreeNode{Path: "takt", Status: "running"} },
		})
		open := func() int {
			s, err := r.Now(t.Context())
			require.NoError(t, err)
			return s.Open(true)
		}
		require.Equal(t, 2, open())
		require.NoError(t, r.Acknowledge(t.Context(), "keys", []string{"old"}, "ana", "it is replaced", time.Hour))
		require.Equal(t, 1, open())
		for _, none := range []struct {
			kind     string
			subjects []string
		}{{"offline", nil}, {"keys", []string{"no"}}, {"", nil}} {
			require.Equal(t, store.NotFound, store.CodeOf(r.Acknowledge(t.Context(), none.kind, none.subjects, "ana", "x", time.Hour)))
		}
		require.NoError(t, r.Acknowledge(t.Context(), "keys", nil, "ana", "both", time.Hour))
		require.Zero(t, open())
		require.Len(t, db.known, 3)

		db.away = true
		<-time.After(2 * forecast.Age)
		s, err := r.Now(t.Context())
		require.NoError(t, err)
		require.True(t, s.Away)
		require.Equal(t, "database", s.Problems()[0].Kind)
	})
}

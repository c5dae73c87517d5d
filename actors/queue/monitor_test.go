package queue

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
)

// watch is a running HeartbeatMonitor on a fake database.
type watch struct {
	*testing.T
	sys     *otp.System
	bus     pubsub.Bus
	db      *fakeStore
	monitor *Monitor
	queue   *Queue
	ready   atomic.Pointer[time.Time] // since when; nil if it is not
	skew    atomic.Int64              // of the wall clock, against the bubble's
	log     strings.Builder           // read it when all goroutines wait
}

// isReady says that the controller is ready from now on, or is not.
func (w *watch) isReady(ready bool) {
	w.ready.Store(nil)
	if ready {
		now := w.now()
		w.ready.Store(&now)
	}
}

func (w *watch) readySince() (since time.Time, ready bool) {
	if at := w.ready.Load(); at != nil {
		return *at, true
	}
	return since, false
}

func (w *watch) now() time.Time { return time.Now().Add(time.Duration(w.skew.Load())) }

// onWatch runs f as a test of its own, with a HeartbeatMonitor that checks every second,
// after ten seconds of silence, in a bubble of fake time.
func onWatch(t *testing.T, name string, f func(w *watch)) {
	t.Helper()
	inTime(t, name, func(t bubbled) {
		w := &watch{T: t.T, bus: pubsub.New(), db: newFakeStore()}
		w.sys = otp.New(otp.Options{Logger: zerolog.New(zerolog.SyncWriter(io.MultiWriter(t.Output(), &w.log)))})
		w.isReady(true)
		w.queue = New(w.sys, w.db, w.bus, store.NewWorkerTokens(store.WorkerTokenTTL, make([]byte, 32)), Config{})
		w.monitor = NewMonitor(w.sys, w.db, w.queue, w.bus, MonitorConfig{
			Timeouts: store.Timeouts{CheckInterval: time.Second, BuildTimeout: 10 * time.Second, WorkerTimeout: 10 * time.Second},
			Rule:     store.LostRule{MaxAttempts: 3}, Unmatched: time.Hour,
			Ready: w.readySince,
			Now:   w.now,
		})
		_, err := w.sys.StartRoot(t.Context(), "takt", otp.SupSpec{
			Intensity: 100,
			Children:  []otp.ChildSpec{w.bus.Spec(), w.queue.Spec(), w.monitor.Spec()},
		})
		require.NoError(t, err)
		defer func() { w.sys.Shutdown(context.Background()); synctest.Wait() }()
		synctest.Wait()
		f(w)
	})
}

func (w *watch) passes(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (w *watch) sweeps() (n int) {
	w.db.set(func(s *fakeStore) { n = len(s.swept) })
	return n
}

func TestASweepLogsLostBuildsApartFromOfflineWorkers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		result store.SweepResult
		want   string
	}{
		{store.SweepResult{}, ""},
		{store.SweepResult{Offline: []string{"w"}}, `{"level":"info","workers":1,"message":"workers went offline"}` + "\n"},
		{
			store.SweepResult{Requeued: []store.BuildRef{{}, {}}, Failed: []store.BuildRef{{}}, Offline: []string{"w"}},
			`{"level":"warn","requeued":2,"failed":1,"message":"builds taken from silent workers"}` + "\n" +
				`{"level":"info","workers":1,"message":"workers went offline"}` + "\n",
		},
	} {
		var logged strings.Builder
		logger := zerolog.New(&logged)
		logSweep(&logger, tt.result)
		require.Equal(t, tt.want, logged.String())
	}
}

func TestSweeps(t *testing.T) {
	t.Parallel()

	onWatch(t, "it sweeps at each check once it has listened for a whole timeout", func(w *watch) {
		w.passes(10*time.Second - time.Millisecond)
		require.Zero(w, w.sweeps())
		w.passes(2 * time.Second)
		require.Equal(w, 2, w.sweeps())
		require.NotZero(w, w.db.swept[0].Clock)
		w.db.swept[0].Clock = store.ClockReading{}
		require.Equal(w, store.Sweep{
			Timeouts: w.monitor.cfg.Timeouts, Rule: w.monitor.cfg.Rule, Patience: 2500 * time.Millisecond,
		}, w.db.swept[0])
	})

	onWatch(t, "builds that are tried again are let in, which wakes polls", func(w *watch) {
		var updates []any // read when all goroutines wait
		defer w.bus.Subscribe(func(e pubsub.Event) { updates = append(updates, e.Data) }, pubsub.BuildUpdated)()
		w.passes(2500 * time.Millisecond) // between two counts, which would find them
		w.db.set(func(s *fakeStore) { s.due = []store.BuildRef{{ID: "b", Platform: store.IOS, ClassID: ios}} })
		w.passes(retryInterval)
		require.Len(w, updates, 1)
		require.Equal(w, 1, w.queue.Stats().Pending)
		require.Contains(w, w.log.String(), "builds are tried again after their exit codes")
	})

	onWatch(t, "an interruption of readiness starts the waiting anew", func(w *watch) {
		w.passes(9 * time.Second)
		w.isReady(false)
		w.passes(time.Millisecond)
		w.isReady(true)
		w.passes(9 * time.Second)
		require.Zero(w, w.sweeps())
		w.passes(2 * time.Second)
		require.Positive(w, w.sweeps())
		w.isReady(false)
		before := w.sweeps()
		w.passes(time.Minute)
		require.Equal(w, before, w.sweeps())
	})

	onWatch(t, "a suspended machine hears nothing", func(w *watch) {
		w.passes(12 * time.Second)
		before := w.sweeps()
		w.skew.Add(int64(time.Hour))
		w.passes(9 * time.Second)
		require.Equal(w, before, w.sweeps())
		w.passes(2 * time.Second)
		require.Greater(w, w.sweeps(), before)
	})

	onWatch(t, "a forward step of the database's clock starts the waiting anew", func(w *watch) {
		steps := func(d time.Duration) { w.db.set(func(s *fakeStore) { s.ahead += d }) }
		w.passes(12 * time.Second)
		steps(4 * time.Second) // which is ignored
		w.passes(2 * time.Second)
		steps(-time.Hour)
		w.passes(2 * time.Second)
		before := w.sweeps()
		require.Greater(w, before, 4)
		steps(6 * time.Second)
		w.passes(9 * time.Second)
		require.LessOrEqual(w, w.sweeps(), before+1, "one that had begun finds the step itself")
		w.passes(4 * time.Second)
		require.Greater(w, w.sweeps(), before+1)
	})

	onWatch(t, "so does one that only the sweep sees", func(w *watch) {
		w.passes(10500 * time.Millisecond)
		require.Equal(w, 1, w.sweeps())
		w.db.set(func(s *fakeStore) { s.sweep = store.SweepResult{ClockStep: true} })
		w.passes(time.Second)
		require.Equal(w, 2, w.sweeps())
		w.passes(9 * time.Second)
		require.Equal(w, 2, w.sweeps())
	})

	onWatch(t, "a database that was away starts the waiting anew", func(w *watch) {
		w.passes(12 * time.Second)
		before := w.sweeps()
		w.db.set(func(s *fakeStore) { s.err = errAway })
		w.passes(time.Second)
		w.db.set(func(s *fakeStore) { s.err = nil })
		w.passes(9 * time.Second)
		require.Equal(w, before, w.sweeps())
		w.passes(3 * time.Second)
		require.Greater(w, w.sweeps(), before)
	})

	onWatch(t, "requeued builds reach the queue and everybody hears", func(w *watch) {
		events := make(chan pubsub.Event, 100)
		defer w.bus.Subscribe(func(e pubsub.Event) { events <- e }, pubsub.BuildUpdated, pubsub.WorkerUpdated)()
		w.db.set(func(s *fakeStore) {
			s.sweep = store.SweepResult{
				Requeued: []store.BuildRef{{ID: "x", Platform: store.IOS, ClassID: ios, WorkerID: "w", Attempt: 1}},
				Failed:   []store.BuildRef{{ID: "y", Platform: store.Android}},
				Offline:  []string{"w"},
			}
		})
		w.db.worker("parked")
		parked, cancel := context.WithCancelCause(w.Context())
		go func() { _, _ = w.queue.Poll(parked, store.PollRequest{WorkerID: "parked"}, time.Minute) }() // ends with its context
		w.passes(10 * time.Second)
		require.EqualValues(w, 1, w.queue.Stats().Woken, "it looked for the build that waits again")
		cancel(context.Canceled)
		require.Equal(w, store.BuildUpdate{
			BuildID: "x", Platform: store.IOS, State: store.Pending,
			Step: store.Step{What: store.StepLost, Attempt: 1, WorkerID: "w", Lost: store.LostSilent},
			Was:  store.BuildRef{ID: "x", Platform: store.IOS, ClassID: ios, WorkerID: "w", Attempt: 1},
		}, (<-events).Data)
		require.Equal(w, store.BuildUpdate{
			BuildID: "y", Platform: store.Android, State: store.Failed, Step: store.Step{What: store.StepLost, Lost: store.LostSilent},
			Was: store.BuildRef{ID: "y", Platform: store.Android},
		}, (<-events).Data)
		require.Equal(w, store.WorkerUpdate{WorkerID: "w", Status: store.Offline, Step: store.Step{What: store.StepOffline}}, (<-events).Data)
	})

	onWatch(t, "everybody hears of builds that failed because no worker could take them", func(w *watch) {
		events := make(chan pubsub.Event, 100)
		defer w.bus.Subscribe(func(e pubsub.Event) { events <- e }, pubsub.BuildUpdated)()
		w.db.submit("z", "gpu")
		w.passes(10 * time.Second)
		was := store.BuildRef{ID: "z", Platform: store.IOS, ClassID: gpu}
		require.Equal(w, store.BuildUpdate{BuildID: "z", Platform: store.IOS, State: store.Failed, Was: was}, (<-events).Data)
		require.Contains(w, w.log.String(), "builds failed because no known worker could take them")
	})

	onWatch(t, "a sweep and the look for builds that no worker can take don't fail together", func(w *watch) {
		events := make(chan pubsub.Event, 100)
		defer w.bus.Subscribe(func(e pubsub.Event) { events <- e }, pubsub.BuildUpdated)()
		silent := store.SweepResult{Requeued: []store.BuildRef{{ID: "x", Platform: store.IOS, ClassID: ios}}}
		w.db.set(func(s *fakeStore) { s.sweep, s.classesErr = silent, errors.New("classes") })
		w.db.submit("z", "gpu")
		w.passes(10 * time.Second)
		require.Len(w, events, 1)
		require.Equal(w, "x", (<-events).Data.(store.BuildUpdate).BuildID) // by its topic
		require.Contains(w, w.log.String(), "builds taken from silent workers")
		require.Contains(w, w.log.String(), "looking for builds that no known worker can take failed")
		require.NotContains(w, w.log.String(), "sweep failed")

		// The database refuses to change the row of one worker.
		w.db.set(func(s *fakeStore) { s.sweepErr, s.classesErr = errors.New("refused"), nil })
		w.passes(time.Second)
		require.Len(w, events, 2)
		require.Equal(w, "x", (<-events).Data.(store.BuildUpdate).BuildID) // by its topic
		require.Equal(w, "z", (<-events).Data.(store.BuildUpdate).BuildID) // by its topic
		require.Contains(w, w.log.String(), "sweep failed")
	})

	onWatch(t, "a crash loses nothing but the time it listened", func(w *watch) {
		saved := store.Timeouts{CheckInterval: time.Second, BuildTimeout: 20 * time.Second, WorkerTimeout: time.Minute}
		require.NoError(w, w.monitor.Update(w.Context(), saved))
		w.passes(19 * time.Second)
		w.sys.Whereis(monitorName).Exit(errors.New("crashed"))
		w.passes(time.Second)
		got, err := w.monitor.Timeouts(w.Context())
		require.NoError(w, err)
		require.Equal(w, saved, got)
		w.passes(18 * time.Second)
		require.Zero(w, w.sweeps())
		w.passes(3 * time.Second)
		require.Positive(w, w.sweeps())
	})
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	short := store.Timeouts{CheckInterval: 200 * time.Millisecond, BuildTimeout: time.Second, WorkerTimeout: 2 * time.Second}

	onWatch(t, "an update is saved and applied at once", func(w *watch) {
		w.passes(2 * time.Second)
		require.NoError(w, w.monitor.Update(w.Context(), short))
		require.Equal(w, &short, w.db.saved)
		w.passes(200 * time.Millisecond)
		require.Equal(w, 1, w.sweeps())
		require.Equal(w, short, w.db.swept[0].Timeouts)
	})

	onWatch(t, "values out of bounds are refused by name", func(w *watch) {
		for text, edit := range map[string]func(*store.Timeouts){
			"check_interval must be between 0.1 and 3600 seconds, not 0":    func(t *store.Timeouts) { t.CheckInterval = 0 },
			"build_timeout must be between 1 and 86400 seconds, not -5":     func(t *store.Timeouts) { t.BuildTimeout = -5 * time.Second },
			"worker_timeout must be between 1 and 86400 seconds, not 90000": func(t *store.Timeouts) { t.WorkerTimeout = 25 * time.Hour },
		} {
			bad := short
			edit(&bad)
			err := w.monitor.Update(w.Context(), bad)
			require.Equal(w, store.InvalidArgument, store.CodeOf(err))
			require.ErrorContains(w, err, text)
		}
		require.Nil(w, w.db.saved)
	})

	onWatch(t, "what can't be saved is not applied", func(w *watch) {
		w.db.set(func(s *fakeStore) { s.err = errAway })
		require.ErrorIs(w, w.monitor.Update(w.Context(), short), errAway)
		got, err := w.monitor.Timeouts(w.Context())
		require.NoError(w, err)
		require.Equal(w, w.monitor.cfg.Timeouts, got)
	})

	onWatch(t, "another controller's update is heard", func(w *watch) {
		w.db.set(func(s *fakeStore) { s.saved = &short })
		w.bus.PublishRemote(pubsub.SettingsChanged, "heartbeat", 0)
		synctest.Wait()
		got, err := w.monitor.Timeouts(w.Context())
		require.NoError(w, err)
		require.Equal(w, short, got)
	})

	onWatch(t, "no sweep happens before the saved timeouts are known", func(w *watch) {
		w.db.set(func(s *fakeStore) {
			s.err = errAway
			s.saved = &store.Timeouts{CheckInterval: time.Second, BuildTimeout: time.Minute, WorkerTimeout: time.Minute}
		})
		w.sys.Whereis(monitorName).Exit(errors.New("crashed"))
		w.passes(20 * time.Second)
		w.db.set(func(s *fakeStore) { s.err = nil })
		w.passes(20 * time.Second)
		require.Zero(w, w.sweeps())
	})

	onWatch(t, "unusable saved timeouts fall back to the configured ones", func(w *watch) {
		w.db.set(func(s *fakeStore) { s.saved = &store.Timeouts{} })
		w.bus.PublishRemote(pubsub.SettingsChanged, "heartbeat", 0)
		synctest.Wait()
		got, err := w.monitor.Timeouts(w.Context())
		require.NoError(w, err)
		require.Equal(w, w.monitor.cfg.Timeouts, got)
	})
}

func TestListening(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }

	for _, c := range []struct {
		name    string
		answers []float64
		took    float64 // of the last answer
		ready   float64
		now     float64
		missing float64
	}{
		{"from the first answer", []float64{0, 1, 2}, 0, -100, 2, 8},
		{"from readiness, if that came later", []float64{0, 1, 2}, 0, 1.5, 2, 9.5},
		{"long enough", []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 0, 0, 11, 0},
		{"from after a gap", []float64{0, 1, 8, 9}, 0, 0, 9, 9},
		{"from after the clock was set back", []float64{5, 6, 1, 2}, 0, -100, 2, 9},
		{"from after a slow answer", []float64{0, 1, 2, 3, 4}, 2.5, -100, 4, 10},
		{"not while an answer is overdue", []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 0, 0, 13.5, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var l listening
			for i, b := range c.answers {
				asked := at(b)
				if i == len(c.answers)-1 {
					asked = at(b - c.took)
				}
				l.answered(asked, at(b), 2*time.Second)
			}
			require.Equal(t, at(c.missing), start.Add(l.missing(at(c.now), at(c.ready), 10*time.Second, 2*time.Second)))
		})
	}
}

func TestSuspectsAreLookedForOftenAndWhenAWorkerGoes(t *testing.T) {
	t.Parallel()
	onWatch(t, "each ten seconds", func(w *watch) {
		judged := func() (n int) {
			w.db.set(func(s *fakeStore) { n, s.judged = s.judged, 0 })
			return n
		}
		require.NoError(w, w.monitor.Update(w.Context(), store.Timeouts{CheckInterval: time.Hour, BuildTimeout: time.Hour, WorkerTimeout: time.Hour}))
		w.passes(time.Second)
		judged()
		w.passes(60 * time.Second)
		require.Equal(w, 6, judged(), "a suspect is found within ten seconds")
		w.passes(2 * time.Second)
		judged()
		told := 0
		defer w.bus.Subscribe(func(pubsub.Event) { told++ }, pubsub.WorkerUpdated)()
		w.db.set(func(s *fakeStore) { s.suspects = []store.WorkerUpdate{{WorkerID: "w"}} })
		for range 100 { // many at once
			w.bus.Publish(pubsub.WorkerUpdated, store.WorkerUpdate{WorkerID: "gone", Status: store.Offline})
		}
		w.passes(time.Second)
		require.Equal(w, 1, judged())
		require.Equal(w, 101, told)
	})
}

func TestAFullQueueIsRecordedWhileItIsFull(t *testing.T) {
	t.Parallel()
	onWatch(t, "every ten seconds", func(w *watch) {
		recorded := func() (rooms []store.QueueRoom) {
			w.db.set(func(s *fakeStore) { rooms, s.full = s.full, nil })
			return rooms
		}
		w.passes(30 * time.Second)
		require.Empty(w, recorded(), "an idle controller asks nothing")
		w.db.set(func(s *fakeStore) { s.unmatched = 100 })
		w.passes(6 * time.Second)
		require.Equal(w, []store.QueueRoom{{Limit: 1000, Unmatched: 100}}, recorded(), "soon")
		w.passes(30 * time.Second)
		require.Len(w, recorded(), 3)
		w.db.set(func(s *fakeStore) { s.unmatched = 99 })
		w.passes(6 * time.Second)
		recorded()
		w.passes(30 * time.Second)
		require.Empty(w, recorded(), "it has room")
	})
}

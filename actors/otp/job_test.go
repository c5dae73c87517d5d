package otp_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/otp/otptest"
)

// labourer is a server with a job. Its casts are functions that run in it.
type labourer struct {
	puppet
	job   otp.Job[int]
	takes time.Duration // of a run
	fails error
	none  bool // Begin returns no work
	next  time.Duration
	begun []time.Duration // since epoch
	done  []int           // results
	stale []bool          // Outdated, at each result
	epoch time.Time
	doing int // runs under way
}

func (l *labourer) Init(*otp.Ctx) error {
	l.epoch = time.Now()
	l.job = otp.Job[int]{
		Begin: func() func(context.Context) (int, error) {
			if l.none {
				return nil
			}
			if l.doing++; l.doing > 1 {
				panic("two runs at once")
			}
			l.begun = append(l.begun, time.Since(l.epoch))
			n, takes, fails := len(l.begun), l.takes, l.fails
			return func(ctx context.Context) (int, error) {
				select {
				case <-time.After(takes):
					return n, fails
				case <-ctx.Done():
					return 0, context.Cause(ctx)
				}
			}
		},
		Done: func(_ *otp.Ctx, n int, _ error) time.Duration {
			l.doing--
			l.done, l.stale = append(l.done, n), append(l.stale, l.job.Outdated())
			return l.next
		},
		Outage: func(err error) string {
			if err == errBoom { // as it was made
				return "away"
			}
			return ""
		},
	}
	return nil
}

func (l *labourer) HandleCast(c *otp.Ctx, msg any) { msg.(func(*otp.Ctx))(c) } // ours

// labour starts a labourer in a bubble. at runs a function in it after a time since its
// start, and returns when it has nothing to do at that moment.
func labour(t *testing.T, l *labourer, f func(sys *otp.System, at func(d time.Duration, do func(c *otp.Ctx)))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		sys := otptest.New(t)
		p := must(sys.Start("labourer", func() otp.Server { return l }))(t)
		begin := time.Now()
		f(sys, func(d time.Duration, do func(c *otp.Ctx)) {
			otptest.Advance(time.Until(begin.Add(d)))
			require.True(t, otp.Cast(p, do))
			synctest.Wait()
		})
	})
}

// batchless is a batch server that crashes when it gets a batch.
type batchless struct{ puppet }

func (batchless) HandleBatch(*otp.Ctx, []otp.Msg) { panic("a batch") }

func TestJob(t *testing.T) {
	t.Parallel()
	const s = time.Second

	t.Run("one run at a time, and one more however often it is requested meanwhile", func(t *testing.T) {
		t.Parallel()
		l := &labourer{takes: 10 * s}
		labour(t, l, func(_ *otp.System, at func(time.Duration, func(*otp.Ctx))) {
			for d := range 5 * s / s {
				at(d*s, l.job.Start)
			}
			at(12*s, l.job.Tick) // the second runs
			at(50*s, func(*otp.Ctx) { require.False(t, l.job.Running()) })
		})
		require.Equal(t, []time.Duration{0, 10 * s}, l.begun)
		require.Equal(t, []int{1, 2}, l.done)
		require.Equal(t, []bool{true, false}, l.stale)
	})
	t.Run("the next run is planned after the end of the last", func(t *testing.T) {
		t.Parallel()
		l := &labourer{takes: s, next: 10 * s}
		labour(t, l, func(_ *otp.System, at func(time.Duration, func(*otp.Ctx))) {
			at(0, l.job.Start)
			at(15*s, l.job.Start)                            // replaces the one planned for 22
			at(20*s, func(c *otp.Ctx) { l.job.In(c, 30*s) }) // one is planned for 26
			at(21*s, func(c *otp.Ctx) { l.job.In(c, 2*s) })  // earlier
			at(24*s, func(*otp.Ctx) { l.next = 0 })          // it has just ended and planned for 34
			at(60*s, func(*otp.Ctx) { require.False(t, l.job.Running()) })
		})
		require.Equal(t, []time.Duration{0, 11 * s, 15 * s, 23 * s, 34 * s}, l.begun)
	})
	t.Run("a run that is requested goes before one that is planned", func(t *testing.T) {
		t.Parallel()
		l := &labourer{takes: s, next: 10 * s}
		labour(t, l, func(_ *otp.System, at func(time.Duration, func(*otp.Ctx))) {
			at(0, l.job.Start)
			at(0, l.job.Start)
			at(5*s, func(*otp.Ctx) {})
		})
		require.Equal(t, []time.Duration{0, s}, l.begun)
	})
	t.Run("a tick is left out while a run is under way, or there is no work", func(t *testing.T) {
		t.Parallel()
		l := &labourer{takes: 15 * s}
		labour(t, l, func(_ *otp.System, at func(time.Duration, func(*otp.Ctx))) {
			cancel := func() {}
			at(0, func(c *otp.Ctx) { cancel = l.job.Every(c, 10*s) })
			at(35*s, func(*otp.Ctx) { l.none = true }) // the first began at 10, the second at 30
			at(55*s, func(*otp.Ctx) { l.none = false })
			at(61*s, func(*otp.Ctx) { cancel() })
			at(100*s, func(*otp.Ctx) {})
		})
		require.Equal(t, []time.Duration{10 * s, 30 * s, 60 * s}, l.begun)
	})
	t.Run("no work keeps the plan and ends the request", func(t *testing.T) {
		t.Parallel()
		l := &labourer{takes: 5 * s, none: true}
		labour(t, l, func(_ *otp.System, at func(time.Duration, func(*otp.Ctx))) {
			at(0, func(c *otp.Ctx) { l.job.In(c, 10*s) })
			at(s, l.job.Start)
			at(2*s, func(*otp.Ctx) { l.none = false })
			at(50*s, func(*otp.Ctx) {})
		})
		require.Equal(t, []time.Duration{10 * s}, l.begun)
	})
	t.Run("an outage suspends the process, and the next run that is none resumes it", func(t *testing.T) {
		t.Parallel()
		l := &labourer{takes: s, next: 10 * s, fails: errBoom}
		labour(t, l, func(sys *otp.System, at func(time.Duration, func(*otp.Ctx))) {
			status := func() otp.Status { return sys.Tree(false)[0].Status }
			at(0, l.job.Start)
			at(2*s, func(*otp.Ctx) { l.fails = otp.ErrTimeout })
			require.Equal(t, otp.StatusSuspended, status())
			at(13*s, func(*otp.Ctx) {})
			require.Equal(t, otp.StatusRunning, status())
		})
	})
	t.Run("a run ends with its process, which waits for it", func(t *testing.T) {
		t.Parallel()
		l := &labourer{takes: time.Hour}
		labour(t, l, func(sys *otp.System, at func(time.Duration, func(*otp.Ctx))) {
			at(0, l.job.Start)
			otptest.Crash(t, sys.Whereis("labourer"), errBoom)
		})
		require.Empty(t, l.done)
	})
	for name, job := range map[string]otp.Job[int]{
		"a panic of the work is a crash": {Begin: func() func(context.Context) (int, error) {
			return func(context.Context) (int, error) { panic(errBoom) }
		}},
		"a panic of its handler is a crash": {
			Begin: func() func(context.Context) (int, error) { return func(context.Context) (int, error) { return 0, nil } },
			Done:  func(*otp.Ctx, int, error) time.Duration { panic(errBoom) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := otptest.Start(t, puppet{init: func(c *otp.Ctx) error { job.Start(c); return nil }}.make)
			require.ErrorIs(t, otptest.Ended(t, p), errBoom)
		})
	}
	t.Run("a batch server gets results without messages", func(t *testing.T) {
		t.Parallel()
		results := make(chan int, 1)
		job := otp.Job[int]{
			Begin: func() func(context.Context) (int, error) { return func(context.Context) (int, error) { return 7, nil } },
			Done:  func(_ *otp.Ctx, n int, _ error) time.Duration { results <- n; return 0 },
		}
		otptest.Start(t, func() otp.Server { return batchless{puppet{init: func(c *otp.Ctx) error { job.In(c, 1); return nil }}} })
		require.Equal(t, 7, <-results)
	})
}

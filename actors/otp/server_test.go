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

func TestCall(t *testing.T) {
	t.Parallel()
	answers := puppet{call: func(c *otp.Ctx, from otp.From, req any) (any, error) {
		switch req {
		case "error":
			return nil, errBoom
		case "later":
			c.Async(func(context.Context) any {
				from.Reply("at last", nil)
				from.Reply("again", nil)
				return nil
			})
			return otp.NoReply, nil
		case "last":
			c.Stop(errBoom)
			return "bye", nil
		}
		return req, nil
	}}
	p := otptest.Start(t, answers.make)
	require.Equal(t, 7, must(otp.Call[int](t.Context(), p, 7))(t))
	_, err := otp.Call[int](t.Context(), p, "error")
	require.ErrorIs(t, err, errBoom)
	require.True(t, p.Alive(), "an error of the handler is no crash")
	require.Empty(t, must(otp.Call[string](t.Context(), p, nil))(t), "no value is the zero value")
	_, err = otp.Call[string](t.Context(), p, 7)
	require.ErrorIs(t, err, otp.ErrBadReply, "a reply of another type")
	for range 100 { // a deferred reply arrives, and a second one is dropped
		for _, want := range []string{"at last", "mine"} {
			require.Equal(t, want, must(otp.Call[string](t.Context(), p, map[string]string{"at last": "later", "mine": "mine"}[want]))(t))
		}
	}
	t.Run("reply and stop", func(t *testing.T) {
		t.Parallel()
		p := otptest.Start(t, answers.make)
		require.Equal(t, "bye", must(otp.Call[string](t.Context(), p, "last"))(t))
		require.Equal(t, errBoom, otptest.Ended(t, p))
	})
	t.Run("fails at once when there is no process", func(t *testing.T) {
		t.Parallel()
		p := otptest.Start(t, answers.make)
		otptest.Crash(t, p, nil)
		sys := otptest.New(t)
		for _, target := range []otp.Target{p, sys.Ref("nobody"), otp.Ref{}, (*otp.Proc)(nil)} {
			_, err := otp.Call[int](t.Context(), target, 7)
			require.ErrorIs(t, err, otp.ErrNoProc)
			var down *otp.DownError
			require.ErrorAs(t, err, &down)
			require.False(t, otp.Cast(target, 7))
		}
	})
}

func TestCallTimeout(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T) *otp.Proc {
		t.Helper()
		var from otp.From
		sys := otptest.New(t)
		p := must(sys.Start("mute", puppet{call: func(_ *otp.Ctx, f otp.From, req any) (any, error) {
			if req == "mute" {
				from = f
				return otp.NoReply, nil
			}
			from.Reply("late", nil)
			return "fresh", nil
		}}.make))(t)
		return p
	}
	otptest.Bubble(t, "after the system's time without a deadline", func(t otptest.T) {
		p := setup(t.T)
		begin := time.Now()
		_, err := otp.Call[int](t.Context(), p, "mute")
		require.ErrorIs(t, err, otp.ErrTimeout)
		require.Equal(t, 5*time.Second, time.Since(begin))

		got := must(otp.Call[string](t.Context(), p, "next"))(t)
		require.Equal(t, "fresh", got, "a late reply must not reach the next caller")
	})
	otptest.Bubble(t, "at the context's deadline, with its cause", func(t otptest.T) {
		p := setup(t.T)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		_, err := otp.Call[int](ctx, p, "mute")
		require.ErrorIs(t, err, otp.ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(begin))
	})
	otptest.Bubble(t, "when the caller gives up", func(t otptest.T) {
		p := setup(t.T)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errBoom) })
		_, err := otp.Call[int](ctx, p, "mute")
		require.ErrorIs(t, err, errBoom)
		require.NotErrorIs(t, err, otp.ErrTimeout)
	})
}

func TestBoundedMailbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sys := otptest.New(t)
		held, ticked := make(chan struct{}), false
		one(t, sys, otp.ChildSpec{Mailbox: 2, Server: puppet{
			cast: func(c *otp.Ctx, msg any) {
				if msg == "hold" {
					c.SendAfter(0, "tick")
					<-held
				}
			},
			info: func(*otp.Ctx, any) { ticked = true },
		}.make})
		p := sys.Whereis("root/child")
		require.True(t, otp.Cast(p, "hold"))
		synctest.Wait()
		require.Equal(t, 2, p.Mailbox(), "the one at work and the timer's")
		require.False(t, otp.Cast(p, "too many"))
		_, err := otp.Call[int](t.Context(), p, 7)
		require.ErrorIs(t, err, otp.ErrOverload)
		require.Equal(t, 2, p.Mailbox())
		close(held)
		synctest.Wait()
		require.True(t, ticked)
		require.Zero(t, p.Mailbox())
		require.True(t, otp.Cast(p, "fits again"))
	})
}

// committer counts what it gets at once.
type committer struct {
	puppet
	held  chan struct{}
	sizes []int
}

func (b *committer) HandleBatch(c *otp.Ctx, msgs []otp.Msg) {
	b.sizes = append(b.sizes, len(msgs))
	for _, m := range msgs {
		switch {
		case m.Kind == otp.CallMsg:
			m.From.Reply(b.sizes, nil)
		case m.Body == "hold":
			<-b.held
		case m.Body == "crash":
			panic(errBoom)
		}
	}
}

func TestBatchServer(t *testing.T) {
	t.Parallel()
	otptest.Bubble(t, "gets everything queued at once", func(t otptest.T) {
		held := make(chan struct{})
		p := otptest.Start(t, func() otp.Server { return &committer{held: held} })
		require.True(t, otp.Cast(p, "hold"))
		synctest.Wait()
		for range 10 {
			require.True(t, otp.Cast(p, "more"))
		}
		close(held)
		synctest.Wait()
		require.Equal(t, []int{1, 10, 1}, must(otp.Call[[]int](t.Context(), p, "sizes"))(t))
	})
}

// TestHandled counts messages, one by one and in batches, and the time that they
// take; a crash counts too.
func TestHandled(t *testing.T) {
	t.Parallel()
	for name, mk := range map[string]func(held chan struct{}) otp.Server{
		"one by one": func(held chan struct{}) otp.Server {
			return puppet{cast: func(_ *otp.Ctx, msg any) {
				switch msg {
				case "hold":
					<-held
				case "crash":
					panic(errBoom)
				}
			}}
		},
		"in batches": func(held chan struct{}) otp.Server { return &committer{held: held} },
	} {
		otptest.Bubble(t, name, func(t otptest.T) {
			held := make(chan struct{})
			sys := otptest.New(t)
			p := must(sys.Start("root", func() otp.Server { return mk(held) }))(t)
			require.True(t, otp.Cast(p, "hold"))
			otptest.Advance(time.Second)
			close(held)
			must(otp.Call[any](t.Context(), p, 7))(t)
			synctest.Wait()

			node := sys.Tree(false)[0]
			require.EqualValues(t, 2, node.Messages)
			require.Equal(t, time.Second, node.Busy)
			require.True(t, otp.Cast(p, "crash"))
			_ = otptest.Ended(t, p)
			synctest.Wait()
			messages, busy := p.Handled()
			require.EqualValues(t, 3, messages)
			require.Equal(t, time.Second, busy)
		})
	}
}

func TestOrdersOvertakeTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sys := otptest.New(t)
		held, handled := make(chan struct{}), 0
		root := one(t, sys, otp.ChildSpec{Server: puppet{cast: func(*otp.Ctx, any) { <-held; handled++ }}.make})
		for i := range 3 {
			require.True(t, otp.Cast(sys.Whereis("root/child"), i))
		}
		synctest.Wait()
		time.AfterFunc(time.Second, func() { close(held) })
		require.NoError(t, otp.TerminateChild(t.Context(), root, "child"))
		require.Equal(t, 1, handled)
	})
}

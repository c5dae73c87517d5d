package otp

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// tape is an invoker that records what it is given.
type tape struct {
	mu   sync.Mutex // guards seen
	seen []any
	hook func(message any)
}

func (r *tape) InvokeSystemMessage(message any) { r.take(message) }

func (r *tape) InvokeUserMessage(message any) {
	if b, ok := message.(*batch); ok {
		bodies := make([]any, 0, len(b.msgs))
		for _, l := range b.msgs {
			bodies = append(bodies, l.Body)
		}
		message = bodies
	}
	r.take(message)
}

func (r *tape) take(message any) {
	r.mu.Lock()
	r.seen = append(r.seen, message)
	r.mu.Unlock()
	if r.hook != nil {
		r.hook(message)
	}
}

func newTestMailbox(limit int, inv invoker) (m *mailbox, unwound *[]error, done func()) {
	pool, causes := newDispatcher(), []error{}
	m = newMailbox(limit, pool.Schedule, func(cause error) { causes = append(causes, cause) })
	m.invoker = inv
	return m, &causes, func() { close(pool.closed) }
}

func post(m *mailbox, msg Msg) postResult {
	p := &parcel{msg: msg}
	m.PostUserMessage(p)
	return p.result
}

type bubbled struct{ *testing.T }

// bubble is otptest.Bubble, which this package can't import.
func bubble(t *testing.T, name string, f func(t bubbled)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { f(bubbled{t}) })
	})
}

func cast(body any) Msg { return Msg{Kind: CastMsg, Body: body} }

func TestMailbox(t *testing.T) {
	t.Parallel()
	bubble(t, "keeps what is posted before the start, system messages first", func(t bubbled) {
		inv := &tape{}
		m, _, done := newTestMailbox(0, inv)
		defer done()
		require.Equal(t, posted, post(m, cast(1)))
		require.Equal(t, posted, post(m, cast(2)))
		m.poke()
		m.PostSystemMessage("started")
		synctest.Wait()
		require.Empty(t, inv.seen)
		m.Start()
		synctest.Wait()
		require.Equal(t, []any{"started", wake{}, []any{1, 2}}, inv.seen)
	})
	t.Run("refuses calls and casts beyond its limit, nothing else", func(t *testing.T) {
		t.Parallel()
		m, _, done := newTestMailbox(1, &tape{})
		defer done()
		require.Equal(t, posted, post(m, cast(1)))
		require.Equal(t, refused, post(m, cast(2)))
		require.Equal(t, refused, post(m, Msg{Kind: CallMsg}))
		require.Equal(t, posted, post(m, Msg{Kind: InfoMsg}))
		require.Equal(t, posted, post(m, Msg{Kind: orderMsg}))
		require.Equal(t, 3, m.UserMessageCount())
		m.close()
		require.Equal(t, dropped, post(m, cast(1)))
		require.Zero(t, m.UserMessageCount())
	})
	bubble(t, "goes on when a callback panics or ends its goroutine", func(t bubbled) {
		inv := &tape{}
		inv.hook = func(message any) {
			switch message {
			case "panic":
				panic("boom")
			case "goexit":
				runtime.Goexit()
			}
		}
		m, causes, done := newTestMailbox(0, inv)
		defer done()
		m.Start()
		for _, message := range []any{"panic", "goexit", "fine"} {
			m.PostSystemMessage(message)
		}
		synctest.Wait()
		require.Equal(t, []any{"panic", "goexit", "fine"}, inv.seen)
		require.Len(t, *causes, 2)
		require.EqualError(t, (*causes)[0], "panic: boom")
		require.Equal(t, ErrGoexit, (*causes)[1])
	})
	bubble(t, "loses nothing under concurrent posts", func(t bubbled) {
		inv := &tape{}
		m, _, done := newTestMailbox(0, inv)
		defer done()
		m.Start()
		var posters sync.WaitGroup
		for p := range 8 {
			posters.Go(func() {
				for i := range 1000 {
					post(m, cast([2]int{p, i}))
				}
			})
		}
		posters.Wait()
		synctest.Wait()
		next := [8]int{}
		for _, bodies := range inv.seen {
			for _, body := range bodies.([]any) { //nolint:forcetypeassert // only batches come
				at := body.([2]int) //nolint:forcetypeassert // ours
				require.Equal(t, next[at[0]], at[1], "in order of each poster")
				next[at[0]]++
			}
		}
		require.Equal(t, [8]int{1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000}, next)
	})
}

func TestWindow(t *testing.T) {
	t.Parallel()
	w := window{limit: 2, period: 5}
	for _, tc := range []struct {
		now int64
		ok  bool
	}{{0, true}, {1, true}, {5, false}, {7, true}, {8, false}, {20, true}, {20, true}, {25, false}, {31, true}} {
		require.Equal(t, tc.ok, w.add(tc.now), "at second %d", tc.now)
	}
}

package pubsub_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/actors/otp"
	"takt/actors/otp/otptest"
	"takt/actors/pubsub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fixture struct {
	*testing.T
	sys  *otp.System
	bus  pubsub.Bus
	logs *bytes.Buffer
}

// inBubble runs f with a bus in a bubble of fake time.
func inBubble(t *testing.T, name string, f func(b fixture)) {
	t.Helper()
	otptest.Bubble(t, name, func(t otptest.T) {
		b := fixture{T: t.T, bus: pubsub.New(), logs: &bytes.Buffer{}}
		b.sys = otptest.New(t, func(o *otp.Options) { o.Logger = zerolog.New(zerolog.SyncWriter(b.logs)) })
		_, err := b.sys.StartRoot(t.Context(), "takt", otp.SupSpec{Children: []otp.ChildSpec{b.bus.Spec()}})
		require.NoError(t, err)
		f(b)
	})
}

// crash ends the bus's process and waits for the next one.
func (b fixture) crash() {
	b.Helper()
	proc := b.sys.Whereis("takt/pubsub")
	require.NotNil(b, proc)
	proc.Exit(errors.New("crashed on purpose"))
	synctest.Wait()
	require.NotNil(b, b.sys.Whereis("takt/pubsub"))
}

// list keeps what a subscriber gets.
type list struct {
	mu  sync.Mutex // guards got
	got []any
}

func (l *list) add(v any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got = append(l.got, v)
}

func (l *list) event(e pubsub.Event) { l.add(e.Data) }

// take returns what came since the last time.
func (l *list) take() []any {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	got := l.got
	l.got = nil
	return got
}

// listener is a process that listens to settings:changed. It hangs at an event with
// a channel until that is closed.
type listener struct {
	otp.Base
	bus  pubsub.Bus
	list *list
}

func (h *listener) Init(c *otp.Ctx) error {
	h.bus.Listen(c, pubsub.SettingsChanged)
	return nil
}

func (h *listener) HandleCast(_ *otp.Ctx, msg any) {
	if e, ok := msg.(pubsub.Event); ok {
		if gate, ok := e.Data.(chan struct{}); ok {
			<-gate
		}
	}
	h.list.add(msg)
}

func (b fixture) listener(name string) (*otp.Proc, *list) {
	b.Helper()
	l := &list{}
	proc, err := b.sys.Start(name, func() otp.Server { return &listener{bus: b.bus, list: l} })
	require.NoError(b, err)
	return proc, l
}

func changed(data any) pubsub.Event { return pubsub.Event{Topic: pubsub.SettingsChanged, Data: data} }

func TestProcesses(t *testing.T) {
	t.Parallel()

	inBubble(t, "a process gets its topic's events from the moment in which Listen returns", func(b fixture) {
		_, one := b.listener("one")
		_, two := b.listener("two")
		b.bus.PublishRemote(pubsub.SettingsChanged, "heartbeat", 0)
		b.bus.Publish(pubsub.QueueUpdated, "nobody listens")
		want := []any{pubsub.Event{Topic: pubsub.SettingsChanged, Data: "heartbeat", Remote: true}}
		require.Equal(b, want, one.take())
		require.Equal(b, want, two.take())
	})

	inBubble(t, "the events of each publisher arrive in their order", func(b fixture) {
		_, l := b.listener("one")
		for publisher := range 4 {
			go func() {
				for i := range 100 {
					b.bus.Publish(pubsub.SettingsChanged, [2]int{publisher, i})
				}
			}()
		}
		next := [4]int{}
		for _, msg := range l.take() {
			e, ok := msg.(pubsub.Event)
			require.True(b, ok)
			data, ok := e.Data.([2]int)
			require.True(b, ok)
			require.Equal(b, next[data[0]], data[1])
			next[data[0]]++
		}
		require.Equal(b, [4]int{100, 100, 100, 100}, next)
	})

	inBubble(t, "a process that hangs hinders no publisher", func(b fixture) {
		_, slow := b.listener("slow")
		gate := make(chan struct{})
		b.bus.Publish(pubsub.SettingsChanged, gate)
		synctest.Wait()
		_, quick := b.listener("quick")
		for i := range 1000 {
			b.bus.Publish(pubsub.SettingsChanged, i)
		}
		require.Len(b, quick.take(), 1000)
		require.Empty(b, slow.take())
		close(gate)
		require.Len(b, slow.take(), 1001)
	})

	inBubble(t, "a restart of pubsub loses no subscriber and no event", func(b fixture) {
		_, l := b.listener("one")
		b.crash()
		b.bus.Publish(pubsub.SettingsChanged, 1)
		require.Equal(b, []any{changed(1)}, l.take())

		sup := b.sys.Ref("takt")
		require.NoError(b, otp.TerminateChild(b.Context(), sup, "pubsub"))
		_, late := b.listener("late")
		b.bus.Publish(pubsub.SettingsChanged, 2)
		require.Equal(b, []any{changed(2)}, l.take())
		require.Equal(b, []any{changed(2)}, late.take())
	})
}

func TestFunctions(t *testing.T) {
	t.Parallel()

	inBubble(t, "a function gets its topics' events until it is ended, twice if one likes", func(b fixture) {
		one, two := &list{}, &list{}
		end := b.bus.Subscribe(one.event, pubsub.QueueUpdated, pubsub.JobAvailable)
		defer b.bus.Subscribe(two.event, pubsub.JobAvailable)()
		b.bus.Publish(pubsub.QueueUpdated, 7)
		b.bus.PublishRemote(pubsub.JobAvailable, "ios", 0)
		require.Equal(b, []any{7, "ios"}, one.take())
		end()
		end()
		b.bus.Publish(pubsub.JobAvailable, "android")
		require.Empty(b, one.take())
		require.Equal(b, []any{"ios", "android"}, two.take())
	})

	t.Run("one that names no topic gets all events", func(t *testing.T) {
		t.Parallel()
		bus, all := pubsub.New(), &list{}
		end := bus.Subscribe(func(e pubsub.Event) { all.got = append(all.got, e.Topic) })
		bus.Publish(pubsub.QueueUpdated, nil)
		bus.PublishRemote(pubsub.JobAvailable, "ios", 0)
		end()
		bus.Publish(pubsub.QueueUpdated, nil)
		require.Equal(t, []any{pubsub.QueueUpdated, pubsub.JobAvailable}, all.got, "without a process too")
	})

	inBubble(t, "one that panics is told of and hurts neither its publisher nor others", func(b fixture) {
		other := &list{}
		defer b.bus.Subscribe(func(pubsub.Event) { panic("a defect") }, pubsub.QueueUpdated)()
		defer b.bus.Subscribe(other.event, pubsub.QueueUpdated)()
		b.bus.Publish(pubsub.QueueUpdated, 1)
		require.Equal(b, []any{1}, other.take())
		require.Contains(b, b.logs.String(), "a defect")
	})

	inBubble(t, "one may publish, subscribe and end while it is called", func(b fixture) {
		l := &list{}
		var end func()
		end = b.bus.Subscribe(func(pubsub.Event) {
			end()
			b.bus.Subscribe(l.event, pubsub.JobAvailable)
			b.bus.Publish(pubsub.JobAvailable, "inner")
		}, pubsub.QueueUpdated)
		b.bus.Publish(pubsub.QueueUpdated, nil)
		b.bus.Publish(pubsub.QueueUpdated, nil)
		require.Equal(b, []any{"inner"}, l.take())
	})
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	inBubble(t, "ten at once", func(b fixture) {
		var wg sync.WaitGroup
		_, l := b.listener("one")
		for i := range 10 {
			wg.Go(func() {
				for j := range 50 {
					b.bus.Subscribe(func(pubsub.Event) {}, pubsub.SettingsChanged)()
					b.bus.Publish(pubsub.SettingsChanged, nil)
					if j%10 == 0 {
						proc, _ := b.listener(fmt.Sprint("brief", i, j))
						proc.Exit(nil)
						<-proc.Done()
					}
				}
			})
		}
		b.crash()
		wg.Wait()
		require.Len(b, l.take(), 500)
	})
}

package settings

import (
	"context"
	"errors"
	"time"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
)

const (
	// retryDelay is how soon a failed read is tried again.
	retryDelay = time.Second
	// limit bounds one transaction.
	limit = 5 * time.Second
)

var errTooSlow = errors.New("settings took too long")

// Watcher keeps one kind of saved settings in force. Its actor sets the exported
// fields, calls Start in Init, and passes the messages of HandleCast and HandleInfo to
// Handle.
type Watcher[T any] struct {
	// Key is the argument of settings:changed after these were saved.
	Key string
	// Read returns the saved settings. It runs in a goroutine of its own.
	Read func(ctx context.Context) (T, error)
	// Apply puts them in force. It runs in the actor.
	Apply func(c *otp.Ctx, saved T)

	reads otp.Job[T]
}

// written is the result of Change.
type written[T any] struct {
	from  otp.From
	saved T
	err   error
}

// Start subscribes to changes and begins to read the saved settings.
func (w *Watcher[T]) Start(c *otp.Ctx, bus pubsub.Bus) {
	bus.Listen(c, pubsub.SettingsChanged, pubsub.ListenerResumed)
	w.reads = otp.Job[T]{Begin: w.read, Done: w.done}
	w.reads.Start(c)
}

// Handle handles msg. It returns false if msg is not for the watcher.
func (w *Watcher[T]) Handle(c *otp.Ctx, msg any) bool {
	switch msg := msg.(type) {
	case pubsub.Event:
		changed := msg.Topic == pubsub.SettingsChanged
		resumed := msg.Topic == pubsub.ListenerResumed
		if resumed || changed && msg.Data == w.Key {
			w.reads.Start(c)
		}
		return resumed || changed
	case written[T]:
		w.written(c, msg)
	default:
		return false
	}
	return true
}

// Change runs write, which is one transaction, in a goroutine of its own and puts in
// force the settings that it returns. Then it replies to from with nil, or with write's
// error; after an error the change may have been saved or not. HandleCall returns what
// Change returns.
func (w *Watcher[T]) Change(c *otp.Ctx, from otp.From, write func(ctx context.Context) (T, error)) (any, error) {
	c.Async(func(ctx context.Context) any {
		saved, err := within(ctx, write)
		return written[T]{from, saved, err}
	})
	return otp.NoReply, nil
}

func (w *Watcher[T]) written(c *otp.Ctx, m written[T]) {
	if m.err == nil {
		// Read as well, because only the database knows which of two concurrent
		// changes was the later.
		w.Apply(c, m.saved)
		w.reads.Start(c)
	}
	m.from.Reply(nil, m.err)
}

// read reads the saved settings.
func (w *Watcher[T]) read() func(context.Context) (T, error) {
	f := w.Read
	return func(ctx context.Context) (T, error) { return within(ctx, f) }
}

func (w *Watcher[T]) done(c *otp.Ctx, saved T, err error) (next time.Duration) {
	switch {
	case err != nil:
		if !store.IsUnavailable(err) && !errors.Is(err, errTooSlow) && !errors.Is(err, context.DeadlineExceeded) {
			c.Logger().Error().Err(err).Str("key", w.Key).Msg("reading saved settings failed")
		}
		return retryDelay
	case !w.reads.Outdated(): // else it is being read again
		w.Apply(c, saved)
	}
	return 0
}

func within[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTooSlow)
	defer cancel()
	return f(ctx)
}

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

	reading bool
	stale   bool // changed while it was being read
}

// The messages, besides pubsub's.
type (
	again[T any] struct{} // timer: read again
	read[T any]  struct {
		saved T
		err   error
	}
	written[T any] struct {
		from  otp.From
		saved T
		err   error
	}
)

// Start subscribes to changes and begins to read the saved settings.
func (w *Watcher[T]) Start(c *otp.Ctx, bus pubsub.Bus) {
	bus.Listen(c, pubsub.SettingsChanged, pubsub.ListenerResumed)
	w.read(c)
}

// Handle handles msg. It returns false if msg is not for the watcher.
func (w *Watcher[T]) Handle(c *otp.Ctx, msg any) bool {
	switch msg := msg.(type) {
	case pubsub.Event:
		changed := msg.Topic == pubsub.SettingsChanged
		resumed := msg.Topic == pubsub.ListenerResumed
		if resumed || changed && msg.Data == w.Key {
			w.read(c)
		}
		return resumed || changed
	case again[T]:
		w.read(c)
	case read[T]:
		w.done(c, msg)
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
		w.read(c)
	}
	m.from.Reply(nil, m.err)
}

// read begins to read the saved settings, one read at a time.
func (w *Watcher[T]) read(c *otp.Ctx) {
	if w.reading {
		w.stale = true
		return
	}
	w.reading, w.stale = true, false
	f := w.Read
	c.Async(func(ctx context.Context) any {
		saved, err := within(ctx, f)
		return read[T]{saved, err}
	})
}

func (w *Watcher[T]) done(c *otp.Ctx, m read[T]) {
	w.reading = false
	switch {
	case m.err != nil:
		if !store.IsUnavailable(m.err) && !errors.Is(m.err, errTooSlow) && !errors.Is(m.err, context.DeadlineExceeded) {
			c.Logger().Error().Err(m.err).Str("key", w.Key).Msg("saved settings could not be read")
		}
		c.SendAfter(retryDelay, again[T]{})
	case w.stale:
		w.read(c)
	default:
		w.Apply(c, m.saved)
	}
}

func within[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTooSlow)
	defer cancel()
	return f(ctx)
}

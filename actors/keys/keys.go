// Package keys keeps this controller's copy of the named keys up to date.
//
// The actor reads the keys when it starts, when a controller notifies that it has changed
// them, and each second if they have changed, because a notification may be lost. So a
// revoked key stops working everywhere within two seconds. Once a minute the actor records
// which keys were used.
//
// # State
//
// When the use was last recorded. The keys themselves are in a [store.KeyRing], which
// outlives the actor.
//
// # Failure
//
// While the database is unavailable, the keys that were read last stay valid. A controller
// that has not read any yet answers named keys with 503 and not as wrong keys.
//
// # Concurrency
//
// Only its supervisor uses the actor. Statements run beside it, one at a time.
package keys

import (
	"context"
	"time"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store"
)

const (
	name = "takt/orchestration/keys"
	// checkInterval is the time between two looks for changes.
	checkInterval = time.Second
	// useInterval is the time between two records of what was used.
	useInterval = time.Minute
	// limit bounds one look.
	limit = 5 * time.Second
)

// Store is the SQL of the actor.
type Store interface {
	// Refresh loads the keys into the ring if they have changed.
	Refresh(ctx context.Context) error
	// RecordUse records which keys were used since the last call.
	RecordUse(ctx context.Context) error
}

// Spec describes the actor to its supervisor.
func Spec(db Store, bus pubsub.Bus) otp.ChildSpec {
	return otp.ChildSpec{ID: "keys", Name: name, Server: func() otp.Server { return &keys{db: db, bus: bus} }}
}

// keys is the actor.
type keys struct {
	otp.Base
	db       Store
	bus      pubsub.Bus
	looks    otp.Job[struct{}]
	recorded time.Time
}

// Init begins to read the keys.
func (k *keys) Init(c *otp.Ctx) error {
	k.recorded = time.Now()
	k.bus.Listen(c, pubsub.SettingsChanged, pubsub.ListenerResumed)
	k.looks = otp.Job[struct{}]{Begin: k.look, Done: k.looked, Outage: store.DescribeOutage}
	k.looks.Every(c, checkInterval)
	k.looks.Start(c)
	return nil
}

// HandleCast implements otp.Server.
func (k *keys) HandleCast(c *otp.Ctx, msg any) {
	if e, ok := msg.(pubsub.Event); !ok {
		k.Base.HandleCast(c, msg)
	} else if e.Topic == pubsub.ListenerResumed || e.Data == "keys" {
		k.looks.Start(c)
	}
}

func (k *keys) look() func(context.Context) (struct{}, error) {
	due := time.Since(k.recorded) >= useInterval
	if due {
		k.recorded = time.Now()
	}
	return func(ctx context.Context) (none struct{}, err error) {
		ctx, cancel := context.WithTimeoutCause(ctx, limit, otp.ErrTimeout)
		defer cancel()
		if err = k.db.Refresh(ctx); err == nil && due {
			err = k.db.RecordUse(ctx)
		}
		return none, err
	}
}

func (k *keys) looked(c *otp.Ctx, _ struct{}, err error) (next time.Duration) {
	if err != nil && !store.IsUnavailable(err) {
		c.Logger().Error().Err(err).Msg("reading keys failed")
	}
	return 0
}

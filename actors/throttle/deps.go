package throttle

import (
	"context"
	"time"

	"github.com/riverqueue/river"

	"takt/actors/pubsub"
	"takt/store"
	"takt/store/hubspot"
	"takt/store/seal"
)

// Store is the throttle's part of the database. All methods fail at once with
// store.Unavailable during an outage of the database.
type Store interface {
	// Actions.

	// Accept makes actions durable, together with their queues' jobs. The result has the
	// same order.
	Accept(ctx context.Context, actions []store.Action) ([]store.Acceptance, error)
	Claim(ctx context.Context, r store.ClaimRequest) (store.Claims, error)
	Confirm(ctx context.Context, claim, portal int64, callbacks []string) (held []string, left time.Duration, err error)
	Record(ctx context.Context, o store.Outcome) (store.Recorded, error)
	Heartbeat(ctx context.Context, queues []string) error
	// Note records why queues are not served, for operators.
	Note(ctx context.Context, queues []string, text string) error

	// Queues, for jobs and operators.
	Waiting(ctx context.Context, queue string) (bool, error)
	EndJob(ctx context.Context, job *river.Job[store.ThrottleJob]) (ended bool, err error)
	BusyQueues(ctx context.Context, portal, action int64, limit int) ([]store.QueueKey, error)
	Restore(ctx context.Context, limit int) ([]store.QueueKey, error)
	Forget(ctx context.Context, age time.Duration, limit int) (int, error)
	ForgetQueues(ctx context.Context, age time.Duration, limit int) (int, error)
	SweepWindows(ctx context.Context, after int64, limit int) (n int, next int64, err error)
	Backlog(ctx context.Context) (n int, oldest time.Duration, err error)

	// Rates.

	PutConfig(ctx context.Context, c store.ThrottleConfig) (store.ThrottleConfig, error)
	Config(ctx context.Context, portal, action int64) (store.ThrottleConfig, error)
	DeleteConfig(ctx context.Context, portal, action int64) error
	// HasConfigs reports whether there is any rate. Without one there are no actions, and so
	// no jobs.
	HasConfigs(ctx context.Context) (bool, error)

	// Sealed tokens.
	Install(ctx context.Context, k store.SealedTokens) error
	Tokens(ctx context.Context, portal int64) (store.SealedTokens, error)
	BeginRefresh(ctx context.Context, portal, version int64, lease time.Duration) (claim int64, err error)
	EndRefresh(ctx context.Context, claim int64, k store.SealedTokens) (version int64, err error)
	FailRefresh(ctx context.Context, portal, claim int64, why string) error
}

// Deps are the throttle's dependencies. All are required.
type Deps struct {
	Store   Store
	HubSpot *hubspot.Client
	App     hubspot.App
	Keys    *seal.Ring
	Bus     pubsub.Bus
}

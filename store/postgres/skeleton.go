package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"takt/store"
)

var errSkeleton = errors.New("not written yet")

type DB struct{}

func New() *DB                                { return &DB{} }
func (db *DB) Use(pool *pgxpool.Pool)         {}
func (db *DB) Drop(cause error)               {}
func (db *DB) Ping(ctx context.Context) error { return errSkeleton }

type BuildsConfig struct {
	// QueueLimit is how many builds may be pending when one more is
	// submitted. Defaults to 1000.
	QueueLimit int
}

type Builds struct{ db *DB }

func NewBuilds(db *DB, cfg BuildsConfig) *Builds { return &Builds{db: db} }

func (b *Builds) Submit(ctx context.Context, s store.Submission, place func() error) (store.Build, error) {
	return store.Build{}, errSkeleton
}
func (b *Builds) Find(ctx context.Context, id string) (store.Build, error) {
	return store.Build{}, errSkeleton
}
func (b *Builds) List(ctx context.Context, f store.BuildFilter) ([]store.Build, error) {
	return nil, errSkeleton
}
func (b *Builds) Cancel(ctx context.Context, id string) error { return errSkeleton }
func (b *Builds) Held(ctx context.Context, s store.Sign) (store.Build, error) {
	return store.Build{}, errSkeleton
}
func (b *Builds) Touch(ctx context.Context, s store.Sign) error { return errSkeleton }
func (b *Builds) Heartbeat(ctx context.Context, s store.Sign) (cancelled bool, err error) {
	return false, errSkeleton
}
func (b *Builds) Finish(ctx context.Context, r store.Result, place func() error) (repeat bool, err error) {
	return false, errSkeleton
}
func (b *Builds) Logs(ctx context.Context, id string, after int64, limit int) ([]store.LogLine, error) {
	return nil, errSkeleton
}
func (b *Builds) Counts(ctx context.Context) (store.Counts, error) {
	return store.Counts{}, errSkeleton
}

type Workers struct{ db *DB }

func NewWorkers(db *DB) *Workers { return &Workers{db: db} }

func (w *Workers) Register(ctx context.Context, r store.Registration) (re bool, err error) {
	return false, errSkeleton
}
func (w *Workers) Unregister(ctx context.Context, token store.TokenHash) ([]store.BuildRef, error) {
	return nil, errSkeleton
}
func (w *Workers) UnregisterID(ctx context.Context, id string) ([]store.BuildRef, error) {
	return nil, errSkeleton
}
func (w *Workers) Find(ctx context.Context, id string) (store.Worker, error) {
	return store.Worker{}, errSkeleton
}

type QueueConfig struct {
	// TokenTTL is how long a worker token is valid. Defaults to 90 s.
	TokenTTL time.Duration
	// Quarantined, if set, is told of a build that cannot be handed out.
	Quarantined func(b store.BuildRef, cause error)
}

type Queue struct{ db *DB }

func NewQueue(db *DB, cfg QueueConfig) *Queue { return &Queue{db: db} }

func (q *Queue) Serve(ctx context.Context, polls []store.Poll) ([]store.PollResult, error) {
	return nil, errSkeleton
}
func (q *Queue) Pending(ctx context.Context, limit int) (map[store.Platform]int, error) {
	return nil, errSkeleton
}
func (q *Queue) Sweep(ctx context.Context, s store.Sweep) (store.SweepResult, error) {
	return store.SweepResult{}, errSkeleton
}
func (q *Queue) Timeouts(ctx context.Context) (store.Timeouts, bool, error) {
	return store.Timeouts{}, false, errSkeleton
}
func (q *Queue) SaveTimeouts(ctx context.Context, t store.Timeouts) error { return errSkeleton }

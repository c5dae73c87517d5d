package janitor

import (
	"cmp"
	"context"
	"errors"
	"time"

	"takt/actors/otp"
	"takt/storage"
	"takt/store"
	"takt/store/backoff"
)

// Rows is the janitor's part of the database. All methods fail at once with
// store.Unavailable while the database is away.
type Rows interface {
	// Unnamed returns those of the files, or objects, that no row names.
	Unnamed(ctx context.Context, names []string, objects bool) ([]string, error)
	// IfUnnamed calls remove if no row names the file, and no row can begin to
	// name it meanwhile.
	IfUnnamed(ctx context.Context, build, name string, object bool, remove func() error) (bool, error)
	// ClaimChores reports whether it is this controller's turn.
	ClaimChores(ctx context.Context, every time.Duration) (bool, error)
	// ExpireFiles and ExpireLogs remove the rows of builds that ended at least age
	// ago, page by page; next is 0 at the end.
	ExpireFiles(ctx context.Context, kind store.FileKind, age time.Duration, after int64, limit int) (expired []store.FileRow, next int64, err error)
	ExpireLogs(ctx context.Context, age time.Duration, after int64, limit int) (builds int, next int64, err error)
	// ForgetKeys removes idempotency keys that have expired.
	ForgetKeys(ctx context.Context, limit int) (removed int64, err error)
	// ForgetWrongKeys removes old entries about wrong keys from the audit.
	ForgetWrongKeys(ctx context.Context, limit int) (removed int64, err error)
	// ExpireReports removes the rows of reports that arrived at least age ago.
	ExpireReports(ctx context.Context, age time.Duration, limit int) ([]store.File, error)
	// PendingCopies lists copies that are due; Postpone claims one.
	PendingCopies(ctx context.Context, after store.FileKey, limit int) ([]store.FileRow, error)
	Postpone(ctx context.Context, key store.FileKey, wait time.Duration) (bool, error)
	CountPendingCopies(ctx context.Context) (int, error)
	// Move records where a file is, unless its row has changed.
	Move(ctx context.Context, from store.FileRow, location store.Location, object string) (bool, error)
}

// Files is the storage; *storage.Files implements it.
type Files interface {
	SweepTemporary(olderThan time.Duration) (int, error)
	AbortUploads(ctx context.Context, olderThan time.Duration) (int, error)
	Walk(ctx context.Context, visit func(storage.Stored) error) error
	WalkObjects(ctx context.Context, visit func(storage.Stored) error) error
	// Stat and Remove are about this controller's disk.
	Stat(name string) (storage.Stored, error)
	Remove(name string) (bool, error)
	RemoveEmpty(ctx context.Context, olderThan time.Duration) (int, error)
	RemoveObject(ctx context.Context, key string) error

	HasS3() bool
	Probe(ctx context.Context) error
	CopyToS3(ctx context.Context, row store.FileRow) (key string, err error)
}

// Retention is how long data is kept after its build has ended, diagnostic
// reports once they have arrived; 0 keeps them for ever.
type Retention struct {
	Source, Certs, Result, Logs, Diagnostics time.Duration
}

const (
	// name is the registered name of the actor.
	name = "takt/orchestration/janitor"
	// firstRound is when the first round begins, if rounds are not more frequent.
	firstRound = time.Minute
	// minAge is how old a file that no row names has to be before it is removed.
	minAge = 24 * time.Hour
	// copyLease is how long a copy may take before another controller may try.
	copyLease = 15 * time.Minute
)

// Janitor is the handle. It stays valid over restarts.
type Janitor struct {
	ref     otp.Ref
	rows    Rows
	files   Files
	keep    Retention
	figures *figures

	// The time between two rounds, the time between two checks of S3 and the due
	// copies, and the longest time between these while S3 is away, after which a round that
	// an outage has ended is made again, too. Tests shorten them.
	interval, copyInterval, maxBackoff time.Duration
}

// New returns the handle for the actor that Spec describes. It starts nothing. files is nil
// without the service builds; then only the audit is tidied.
func New(sys *otp.System, rows Rows, files Files, keep Retention) *Janitor {
	return &Janitor{
		ref: sys.Ref(name), rows: rows, files: files, keep: keep, figures: newFigures(),
		interval: time.Hour, copyInterval: 10 * time.Second, maxBackoff: 30 * time.Second,
	}
}

// Spec describes the actor to its supervisor.
func (j *Janitor) Spec() otp.ChildSpec {
	return otp.ChildSpec{ID: "janitor", Name: name, Server: func() otp.Server { return &janitor{j: j} }}
}

// Sweep makes a round now, or waits for the current one. The error is why the round
// could not be finished.
func (j *Janitor) Sweep(ctx context.Context) error {
	_, err := otp.CallWait[any](ctx, j.ref, time.Second, sweepNow{})
	return err
}

// sweepNow is the only message, a call.
type sweepNow struct{}

// janitor is the actor. A restart loses nothing: see the package comment.
type janitor struct {
	otp.Base
	j        *Janitor
	rounds   otp.Job[any]
	copies   otp.Job[any]
	callers  []otp.From // callers that wait for the current round
	failures int        // consecutive failed checks of S3
	outage   error      // the outage that ended the last round
	away     error      // why S3 gets no copies
}

// Init starts the timers. S3 is checked at once.
func (s *janitor) Init(c *otp.Ctx) error {
	s.rounds = otp.Job[any]{Begin: beside(s.j.round), Done: s.swept}
	s.copies = otp.Job[any]{Begin: beside(s.j.copies), Done: s.copied}
	if firstRound < s.j.interval {
		s.rounds.In(c, firstRound)
	}
	s.rounds.Every(c, s.j.interval)
	if s.j.files != nil && s.j.files.HasS3() {
		s.copies.Start(c)
	}
	return nil
}

// HandleCall implements otp.Server.
func (s *janitor) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	if _, ok := req.(sweepNow); !ok {
		return s.Base.HandleCall(c, from, req)
	}
	s.callers = append(s.callers, from)
	s.rounds.Tick(c)
	return otp.NoReply, nil
}

// beside makes every run of a job the same work.
func beside(work func(ctx context.Context) error) func() func(context.Context) (any, error) {
	return func() func(context.Context) (any, error) {
		return func(ctx context.Context) (any, error) { return nil, work(ctx) }
	}
}

func (s *janitor) swept(c *otp.Ctx, _ any, err error) (next time.Duration) {
	for _, from := range s.callers {
		from.Reply(nil, err)
	}
	s.callers = nil
	s.outage = err
	switch {
	case err == nil:
	case store.IsUnavailable(err):
		next = s.j.maxBackoff
	default:
		c.Logger().Error().Err(err).Msg("cleaning storage failed")
		s.outage = nil // nothing to wait for: it is tried again at the next round
	}
	s.show(c)
	return next
}

// copied schedules the next check of S3, with a back-off after failures.
func (s *janitor) copied(c *otp.Ctx, _ any, err error) (next time.Duration) {
	next = s.j.copyInterval
	if err == nil {
		s.failures = 0
		if s.away != nil {
			c.Logger().Info().Msg("copying to S3 resumed")
		}
	} else {
		next = backoff.Backoff{Min: time.Second, Max: s.j.maxBackoff}.Wait(s.failures)
		s.failures++
		if !store.IsUnavailable(err) {
			c.Logger().Error().Err(err).Msg("copying to S3 failed")
			err = nil
		} else if s.away == nil {
			c.Logger().Warn().Err(err).Msg("copying to S3 suspended")
		}
	}
	s.away = err
	s.show(c)
	return next
}

// show makes the tree show what the janitor waits for.
func (s *janitor) show(c *otp.Ctx) {
	if e, ok := errors.AsType[*store.Error](cmp.Or(s.away, s.outage)); ok && store.IsOutage(e) {
		c.Suspend(e.Message)
		return
	}
	c.Resume()
}

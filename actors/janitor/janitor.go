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

// Rows is what the janitor needs of the database. All fail at once with
// store.Unavailable while it is away.
type Rows interface {
	// Unnamed returns those of the files, or objects, that no row names.
	Unnamed(ctx context.Context, names []string, objects bool) ([]string, error)
	// IfUnnamed calls remove if no row names it, and none can begin to.
	IfUnnamed(ctx context.Context, build, name string, object bool, remove func() error) (bool, error)
	// ClaimChores reports whether it is this controller's turn.
	ClaimChores(ctx context.Context, every time.Duration) (bool, error)
	// ExpireFiles and ExpireLogs take the rows of builds that ended age ago,
	// page by page; next is 0 at the end.
	ExpireFiles(ctx context.Context, kind store.FileKind, age time.Duration, after int64, limit int) (expired []store.FileRow, next int64, err error)
	ExpireLogs(ctx context.Context, age time.Duration, after int64, limit int) (builds int, next int64, err error)
	// ForgetKeys removes idempotency keys that have expired.
	ForgetKeys(ctx context.Context, limit int) (removed int64, err error)
	// ExpireReports takes the rows of reports that arrived age ago.
	ExpireReports(ctx context.Context, age time.Duration, limit int) ([]store.File, error)
	// Owed lists copies that are due; Postpone claims one.
	Owed(ctx context.Context, after store.FileKey, limit int) ([]store.FileRow, error)
	Postpone(ctx context.Context, key store.FileKey, wait time.Duration) (bool, error)
	CountOwed(ctx context.Context) (int, error)
	// Move records where a file is, unless its row has changed.
	Move(ctx context.Context, from store.FileRow, location store.Location, object string) (bool, error)
}

// Files is what it needs of storage; *storage.Files is one.
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

// Retention is how long things are kept once their build has ended, diagnostic
// reports once they have arrived; 0 keeps them for ever.
type Retention struct {
	Source, Certs, Result, Logs, Diagnostics time.Duration
}

// Config are the janitor's settings.
type Config struct {
	// Name is the registered name. Defaults to "takt/orchestration/janitor".
	Name string
	// Interval is the time between two rounds. Defaults to 1 hour.
	Interval time.Duration
	// First is when the first round begins. Defaults to 1 minute, or Interval if
	// that is less.
	First time.Duration
	// Age is how old a file has to be that nobody names. Defaults to 24 hours.
	Age time.Duration
	// CopyInterval is the time between two looks at S3 and what it is owed.
	// Defaults to 10 seconds. MaxBackoff is the longest one while S3 is away.
	// Defaults to 30 seconds.
	CopyInterval, MaxBackoff time.Duration
	// Lease is how long a copy may take before somebody else tries. Defaults to
	// 15 minutes.
	Lease time.Duration
	// Keep is how long what is kept.
	Keep Retention
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
}

func (c Config) withDefaults() Config {
	c.Name = cmp.Or(c.Name, "takt/orchestration/janitor")
	c.Interval = cmp.Or(c.Interval, time.Hour)
	c.First = cmp.Or(c.First, min(time.Minute, c.Interval))
	c.Age = cmp.Or(c.Age, 24*time.Hour)
	c.CopyInterval = cmp.Or(c.CopyInterval, 10*time.Second)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 30*time.Second)
	c.Lease = cmp.Or(c.Lease, 15*time.Minute)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Janitor is the handle. It stays valid over restarts.
type Janitor struct {
	ref     otp.Ref
	rows    Rows
	files   Files
	cfg     Config
	figures figures
}

// New returns the handle for the actor that Spec describes. It starts nothing.
func New(sys *otp.System, rows Rows, files Files, cfg Config) *Janitor {
	cfg = cfg.withDefaults()
	return &Janitor{ref: sys.Ref(cfg.Name), rows: rows, files: files, cfg: cfg}
}

// Spec describes the actor to its supervisor.
func (j *Janitor) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID: "janitor", Name: j.cfg.Name,
		Server: func() otp.Server { return &janitor{j: j} },
	}
}

// Sweep makes a round now, or waits for the one under way, and returns why it
// could not be finished.
func (j *Janitor) Sweep(ctx context.Context) error {
	_, err := otp.CallWait[any](ctx, j.ref, time.Second, sweepNow{})
	return err
}

// The messages.
type (
	sweepNow struct{} // call

	sweepDue struct{} // timer
	copyDue  struct{} // timer

	swept  struct{ err error }
	copied struct{ err error }
)

// janitor is the actor. A restart loses nothing: see the package comment.
type janitor struct {
	otp.Base
	j        *Janitor
	sweeping bool
	askers   []otp.From // wait for the round under way
	failures int        // of looks at S3, in a row
	dry      error      // what the last round waits for
	away     error      // why S3 gets no copies
}

// Init arms the timers. S3 is looked at at once.
func (s *janitor) Init(c *otp.Ctx) error {
	c.SendAfter(s.j.cfg.First, sweepDue{})
	c.SendAfter(0, copyDue{})
	return nil
}

// HandleCall implements otp.Server.
func (s *janitor) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	switch req := req.(type) {
	case sweepNow:
		s.askers = append(s.askers, from)
		s.sweep(c)
		return otp.NoReply, nil
	default:
		return s.Base.HandleCall(c, from, req)
	}
}

// HandleInfo implements otp.Server.
func (s *janitor) HandleInfo(c *otp.Ctx, msg any) {
	switch msg := msg.(type) {
	case sweepDue:
		c.SendAfter(s.j.cfg.Interval, sweepDue{})
		s.sweep(c)
	case swept:
		s.swept(c, msg.err)
	case copyDue:
		j := s.j
		c.Async(func(ctx context.Context) any { return copied{j.copies(ctx)} })
	case copied:
		s.copied(c, msg.err)
	default:
		s.Base.HandleInfo(c, msg)
	}
}

// sweep makes one round beside the actor, one at a time.
func (s *janitor) sweep(c *otp.Ctx) {
	if s.sweeping {
		return
	}
	s.sweeping = true
	j := s.j
	c.Async(func(ctx context.Context) any { return swept{j.round(ctx)} })
}

func (s *janitor) swept(c *otp.Ctx, err error) {
	s.sweeping = false
	for _, from := range s.askers {
		from.Reply(nil, err)
	}
	s.askers = nil
	s.dry = err
	if err != nil && !store.IsUnavailable(err) {
		l := c.Logger()
		l.Error().Err(err).Msg("storage could not be tidied")
		s.dry = nil // nothing to wait for: it is tried again at the next round
	}
	s.show(c)
}

// copied arms the next look at S3: soon if all went well, else later each time.
func (s *janitor) copied(c *otp.Ctx, err error) {
	wait := s.j.cfg.CopyInterval
	logger := c.Logger()
	if err == nil {
		s.failures = 0
		if s.away != nil {
			logger.Info().Msg("S3 gets its copies again")
		}
	} else {
		wait = backoff.Backoff{Min: time.Second, Max: s.j.cfg.MaxBackoff}.Wait(s.failures)
		s.failures++
		if !store.IsUnavailable(err) {
			logger.Error().Err(err).Msg("copies could not be brought to S3")
			err = nil
		} else if s.away == nil {
			logger.Warn().Err(err).Msg("S3 gets no copies for now")
		}
	}
	s.away = err
	s.show(c)
	c.SendAfter(wait, copyDue{})
}

// show says in the tree what the janitor waits for.
func (s *janitor) show(c *otp.Ctx) {
	if e, ok := errors.AsType[*store.Error](cmp.Or(s.away, s.dry)); ok {
		c.Suspend(e.Message)
		return
	}
	c.Resume()
}

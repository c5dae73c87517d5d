package attention

import (
	"context"
	"slices"
	"sync"
	"time"

	"takt/http/api"
	"takt/http/edge"
	"takt/http/forecast"
	"takt/storage"
	"takt/store"
)

// Store reads what needs attention, and keeps acknowledgements.
type Store interface {
	Fleet(ctx context.Context, f store.WorkerFilter, p store.Page) (rows []store.WorkerDetail, next store.Cursor, states map[string]int, err error)
	Troubles(ctx context.Context) (store.Troubles, error)
	Acknowledged(ctx context.Context) ([]store.Acknowledgement, error)
	Acknowledge(ctx context.Context, kind string, subjects []string, by, reason string, lasts time.Duration) error
	Unacknowledge(ctx context.Context, kind string, subjects []string) error
}

// Deps are what a Reader reads. Those of the service builds are nil without it.
type Deps struct {
	Store Store
	Ready func() bool
	Tree  func(all bool) api.TreeNode
	// Refused counts the requests refused within five minutes.
	Refused func() int
	// Certificate is when the server's certificate expires; zero if it has none.
	Certificate func() time.Time
	Version     string

	Forecast *forecast.Reader
	Timeouts func(ctx context.Context) (store.Timeouts, error)
	Files    Files
}

// Files is the storage.
type Files interface {
	Health() storage.Health
	// Room returns DiskFull while the disk is nearly full.
	Room() error
}

const (
	// troublesAge is how old what is read seldom may be.
	troublesAge = 8 * time.Second
	// workersRead is how many workers are read, those with problems first.
	workersRead = 50
)

var errSlow = store.NewError(store.Unavailable, "It took too long to read what needs attention")

// Reader reads the situation. Its readings are shared by all callers.
type Reader struct {
	deps     Deps
	now      *edge.Cache[*Situation]
	troubles *edge.Cache[store.Troubles]

	mu   sync.Mutex // guards what follows
	last Situation
}

// NewReader returns a Reader.
func NewReader(d Deps) *Reader {
	return &Reader{deps: d, now: edge.NewCache[*Situation](forecast.Age), troubles: edge.NewCache[store.Troubles](troublesAge)}
}

// Now returns the situation, which is read within [forecast.Age]. It fails only when ctx has ended.
func (r *Reader) Now(ctx context.Context) (*Situation, error) { return r.now.Get(ctx, r.read) }

func (r *Reader) read(ctx context.Context) (*Situation, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), forecast.Age, errSlow)
	defer cancel()
	s := &Situation{}
	away := !r.deps.Ready() || r.readDatabase(ctx, s) != nil
	r.mu.Lock()
	defer r.mu.Unlock()
	if away {
		*s = r.last
		s.Away = true
	}
	r.last = *s
	r.readProcess(s)
	return s, nil
}

// readDatabase reads what a situation has from the database.
func (r *Reader) readDatabase(ctx context.Context, s *Situation) (err error) {
	if s.Acknowledged, err = r.deps.Store.Acknowledged(ctx); err != nil {
		return err
	}
	if s.Troubles, err = r.troubles.Get(ctx, r.deps.Store.Troubles); err != nil {
		r.mu.Lock()
		s.Troubles = r.last.Troubles // the rest is still true
		r.mu.Unlock()
	}
	if r.deps.Forecast == nil {
		return nil
	}
	now, err := r.deps.Forecast.Now(ctx)
	if err != nil {
		return err
	}
	s.Reading = *now
	s.Workers, _, s.States, err = r.deps.Store.Fleet(ctx, store.WorkerFilter{Sort: "state", Present: true}, store.Page{Limit: workersRead})
	if err == nil && s.States[store.WorkerSilent] > 0 {
		s.Timeouts, _ = r.deps.Timeouts(ctx) // it does without
	}
	return err
}

// readProcess reads what a situation has from this process.
func (r *Reader) readProcess(s *Situation) {
	s.Version, s.Certificate, s.Refused = r.deps.Version, r.deps.Certificate(), r.deps.Refused()
	s.Terminated, s.Down, s.Leaked = nil, nil, nil
	stopped(r.deps.Tree(false), s)
	if r.deps.Files != nil {
		s.Files, s.Full = r.deps.Files.Health(), r.deps.Files.Room()
	}
}

// stopped adds what does not run of a tree. What is below a terminated process stands still for the
// same reason.
func stopped(n api.TreeNode, s *Situation) {
	if n.Leaked > 0 {
		s.Leaked = append(s.Leaked, n)
	}
	switch n.Status {
	case "terminated":
		s.Terminated = append(s.Terminated, n)
		return
	case "running":
	default:
		s.Down = append(s.Down, n.Path)
	}
	for _, child := range n.Children {
		stopped(child, s)
	}
}

// Acknowledge has a problem need no attention for a while: all of a kind, or only what some subjects
// have. Errors: NotFound if there is no such problem now, Conflict, Unavailable.
func (r *Reader) Acknowledge(ctx context.Context, kind string, subjects []string, by, reason string, lasts time.Duration) error {
	s, err := r.now.Since(ctx, time.Now().Add(-1), 0, r.read)
	if err != nil {
		return err
	}
	is, those := false, []string{}
	for _, p := range s.Problems() {
		if p.Kind == kind {
			is, those = true, append(those, p.Subjects...)
		}
	}
	switch {
	case !is:
		return store.NewError(store.NotFound, "There is no such problem now: takt attention lists what there is")
	case len(subjects) == 0 && len(those) == 0:
		subjects = []string{""}
	case len(subjects) == 0:
		subjects = those
	default:
		subjects = slices.Clone(subjects)
		for i, subject := range subjects {
			for _, w := range s.Workers { // by its name
				if w.Name == subject && w.State == kind {
					subjects[i], subject = w.ID, w.ID
				}
			}
			if !slices.Contains(those, subject) {
				return store.NewError(store.NotFound, "There is no such problem of "+store.Clip(store.Text(subject), 100)+" now: takt attention lists what there is")
			}
		}
	}
	if err := r.deps.Store.Acknowledge(ctx, kind, subjects, by, reason, lasts); err != nil {
		return err
	}
	return r.again(ctx)
}

// Recall ends acknowledgements of a kind: those of some subjects, or without them all. Errors:
// NotFound, Unavailable.
func (r *Reader) Recall(ctx context.Context, kind string, subjects []string) error {
	if err := r.deps.Store.Unacknowledge(ctx, kind, subjects); err != nil {
		return err
	}
	return r.again(ctx)
}

// again has the next page show what was just changed.
func (r *Reader) again(ctx context.Context) error {
	_, err := r.now.Since(ctx, time.Now().Add(-1), 0, r.read)
	return err
}

package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"takt/http/api"
	"takt/http/client"
	"takt/store"
	"takt/store/backoff"
)

// Why a worker ends.
var (
	errDraining = errors.New("worker drains")
	errStopped  = errors.New("worker was stopped")
)

// errUnregistered is why a worker registers instead of polling.
var errUnregistered = errors.New("the last registration was not answered, or by a controller of an earlier release")

// Worker takes builds from a controller and runs them.
type Worker struct {
	cfg   Config
	api   *client.Client
	log   zerolog.Logger
	retry client.Retry

	drain chan struct{}
	once  sync.Once
	where func(context.Context) machine

	// asked holds a request for a diagnostic report.
	asked chan struct{}

	// unlimited is why builds are not limited as they should be. Written
	// before the first build.
	unlimited error

	// asking holds a value while a request with the token, or a registration, is on its way:
	// there is one at a time, because each ends the token of the one before. Heartbeats only
	// renew it.
	asking chan struct{}

	// Written by whoever has put a value into asking, id and image under mu.
	state *state
	id    string
	// unanswered is true from sending a registration until one is answered.
	unanswered bool
	// older counts the last registrations in a row that controllers of an earlier release answered. The
	// next one is due at again, because a newer controller may get it.
	older int
	again time.Time
	// image is the base image that the controller named last, "" for none.
	image string

	mu     sync.Mutex
	token  string                 // heartbeats renew it
	active map[string]*assignment // by build id
	health health
	// stuck are users of builds with processes that could not be ended. Guarded by mu.
	stuck map[*Owner]error
}

// New returns a worker. It does no I/O.
func New(c *client.Client, log zerolog.Logger, cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Worker{
		cfg: cfg, api: c, log: log, retry: client.Retry{Backoff: cfg.Backoff, Patience: cfg.Patience},
		where: thisMachine,
		drain: make(chan struct{}), asking: make(chan struct{}, 1), asked: make(chan struct{}, 1), active: map[string]*assignment{},
		stuck: map[*Owner]error{},
	}, nil
}

// Drain makes Run take no further builds, finish those it has, and return.
func (w *Worker) Drain() { w.once.Do(func() { close(w.drain) }) }

// Report requests a diagnostic report to the controller. It may be called from anywhere.
func (w *Worker) Report() {
	select {
	case w.asked <- struct{}{}:
	default: // one is already requested
	}
}

// Run runs builds until it is drained (nil), its context ends (nil: running builds
// are killed and reported as failed), or the controller refuses it at the
// start. It returns ErrUnfit if the machine can't run builds.
func (w *Worker) Run(ctx context.Context) error {
	var err error
	if w.state, err = openState(w.cfg.StateDir, w.cfg.IDFile); err != nil {
		return fmt.Errorf("worker state: %w", err)
	}
	defer w.state.close()
	release, err := claimOwners(ctx, w.cfg.Owners, len(w.state.left) > 0, w.cfg.KillGrace)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	defer release()
	if err := w.state.clear(); err != nil {
		return fmt.Errorf("worker state: %w", err)
	}
	copied, err := w.state.identify(w.where(ctx))
	if err != nil {
		return fmt.Errorf("worker id: %w", err)
	}
	w.id = w.state.id
	if copied {
		w.log.Warn().Str("worker", w.id).Str("directory", w.state.dir).
			Msg("new worker id: the state directory was made on another machine")
	}
	polling, stop := context.WithCancelCause(ctx)
	defer stop(errStopped)
	go func() {
		select {
		case <-w.drain:
			w.log.Info().Msg("draining: no new builds")
			stop(errDraining)
			w.leave(ctx)
		case <-polling.Done():
		}
	}()
	err = w.cfg.Command.Check(ctx, "")
	if _, image := errors.AsType[imageError](err); err != nil && !image && polling.Err() == nil {
		return fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	w.limits(ctx)
	w.removeLeft(ctx)
	if err := w.forever("register").Do(polling, w.begin); err != nil {
		if polling.Err() != nil {
			return nil // stopped before it had registered
		}
		return fmt.Errorf("registering: %w", err)
	}
	telling, enough := context.WithCancelCause(ctx)
	var builds, beside sync.WaitGroup
	image := w.image
	beside.Go(func() { w.telemetry(telling) })
	beside.Go(func() { w.diagnose(telling) })
	beside.Go(func() { w.prepareAhead(polling, image) })
	w.serve(ctx, polling, &builds)
	builds.Wait()
	enough(errStopped)
	beside.Wait()
	w.unregister(ctx)
	if unfit := w.health.unfit; unfit != nil { // no build is left
		return fmt.Errorf("%w: %w", ErrUnfit, unfit)
	}
	return nil
}

// removeLeft removes containers and cgroups of builds that were running when the machine
// crashed.
func (w *Worker) removeLeft(ctx context.Context) {
	for _, dir := range w.state.left {
		cut := max(strings.LastIndexByte(dir, '-'), 0)
		attempt, _ := strconv.Atoi(strings.TrimPrefix(dir[cut:], "-"))
		w.cfg.Command.Plan(Workspace{BuildID: dir[:cut], Attempt: attempt}).cleanUp(ctx)
	}
}

// prepareAhead fetches the image before the first build needs it, and reports.
func (w *Worker) prepareAhead(ctx context.Context, image string) {
	if err := w.cfg.Command.Prepare(ctx, image); err != nil && ctx.Err() == nil {
		w.log.Warn().Err(err).Msg("pulling the image failed; the first build will retry")
	}
	w.Report()
}

// limits prepares the limits of builds and logs them.
func (w *Worker) limits(ctx context.Context) {
	r := w.cfg.Resources
	w.log.Info().Float64("cpus", r.CPUs).Int64("memory", r.Memory).Int64("disk", r.Disk).Stringer("timeout", w.cfg.Timeout).
		Msg("limits of each build, 0 for none")
	if w.unlimited = w.cfg.Command.Limit(ctx, r); w.unlimited != nil {
		w.log.Warn().Err(w.unlimited).Msg("some limits of builds can't be enforced here")
	}
}

// serve takes builds until polling ends. Builds run until ctx ends.
func (w *Worker) serve(ctx, polling context.Context, builds *sync.WaitGroup) {
	slots := make(chan *Owner, w.cfg.Concurrency) // nil: the worker's own user
	for i := range cap(slots) {
		slots <- w.cfg.owner(i)
	}
	err := w.cfg.Command.Check(polling, w.image)
	if _, refused := errors.AsType[imageError](err); refused { // the controller has named it already
		w.awaitRepair(polling, err)
	}
	for {
		var free []*Owner
		select {
		case owner := <-slots:
			free = append(free, owner)
		case <-polling.Done():
			return
		}
		for len(slots) > 0 { // nobody else takes from it
			free = append(free, <-slots)
		}
		for _, a := range w.take(ctx, polling, len(free)) {
			owner := free[0]
			free = free[1:]
			builds.Go(func() {
				defer w.vacate(polling, slots, owner)
				for ; a != nil; a = a.next {
					if a.owner = owner; ctx.Err() == nil { // else unregistering gives it back
						w.build(ctx, a)
					}
					w.release(a)
				}
			})
		}
		if polling.Err() != nil {
			return
		}
		for _, owner := range free {
			slots <- owner
		}
	}
}

// take polls until there are builds, at most n. It returns none if they can't be run now, or
// polling has ended.
func (w *Worker) take(ctx, polling context.Context, n int) (all []*assignment) {
	select {
	case w.asking <- struct{}{}:
	case <-polling.Done():
		return nil
	}
	defer func() { <-w.asking }()
	jobs := w.next(polling, n)
	if len(jobs) == 0 {
		return nil
	}
	w.know(w.id, jobs[0].BaseImageID) // they all have the controller's
	if err := w.cfg.Command.Check(ctx, w.image); err != nil {
		w.awaitRepair(polling, err)
		return nil
	}
	for _, job := range jobs[:min(len(jobs), n)] {
		if a := w.accept(ctx, job); a != nil {
			all = append(all, a)
		}
	}
	if len(all) == 0 { // already running: the controller believes that its reply was lost
		_ = backoff.Pause(polling, w.cfg.Backoff.Wait(0))
	}
	return all
}

// next polls until there are jobs, or ctx ends (none). No failure ends it: a
// controller that refuses us may be under repair.
func (w *Worker) next(ctx context.Context, n int) []api.Job {
	for failures, idle := 0, 0; ; {
		asked := time.Now()
		reply, err := w.poll(ctx, n)
		jobs := reply.All()
		if i := slices.IndexFunc(jobs, func(j api.Job) bool { return !store.ValidID(j.ID) }); err == nil && i >= 0 {
			w.log.Error().Str("build", jobs[i].ID).Msg("job with an invalid id")
			err = errors.New("bad job")
		}
		switch {
		case err == nil && len(jobs) > 0:
			w.keep(reply.AccessToken)
			return jobs
		case err == nil:
			w.keep(reply.AccessToken)
			failures = 0
			if time.Since(asked) > time.Second {
				idle = 0
				continue
			}
			// The controller does not hold polls open, so pause here.
			_ = backoff.Pause(ctx, backoff.Backoff{Max: 5 * time.Second}.Wait(idle))
			idle++
		case ctx.Err() != nil:
			return nil
		default:
			w.recover(ctx, err, failures)
			failures++
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// poll asks for n builds, unless the last registration was not answered: that may still be
// executed, and would then take the builds away. Nor does it if another registration is due.
func (w *Worker) poll(ctx context.Context, n int) (api.PollReply, error) {
	if w.unanswered || w.older > 0 && !time.Now().Before(w.again) {
		return api.PollReply{}, errUnregistered
	}
	if n > 1 && w.exhausted(ctx) {
		n = 1
	}
	return w.api.Poll(ctx, client.Poll{
		Token: w.shown(), WorkerID: w.id, Instance: w.state.instance, Wait: w.cfg.PollWait, Active: w.running(), Max: n,
	})
}

// recover handles a failed poll: it waits, or registers until that is answered, which may be
// when another process that uses the worker's id has fallen silent. Only the first of several
// failures in a row is handled without a wait.
func (w *Worker) recover(ctx context.Context, err error, failures int) {
	status := client.StatusOf(err)
	duplicate := store.CodeOf(err) == store.DuplicateWorker
	again := errors.Is(err, errUnregistered) || status == http.StatusUnauthorized || status == http.StatusNotFound || duplicate
	if !again || failures > 0 || duplicate {
		wait := w.cfg.Backoff.WaitAtLeast(failures, client.RetryAfter(err))
		w.waiting("poll")(err, wait)
		_ = backoff.Pause(ctx, wait)
	}
	if !again || ctx.Err() != nil {
		return
	}
	if status == http.StatusNotFound {
		w.log.Warn().Str("worker", w.id).Msg("unknown to the controller; registering as a new worker")
		id, err := w.state.newID()
		if err != nil {
			w.log.Error().Err(err).Msg("creating a worker id failed")
			return
		}
		w.know(id, w.image)
	}
	if err := w.forever("register").Do(ctx, w.register); err != nil && ctx.Err() == nil {
		w.log.Warn().Err(err).Msg("registering again failed")
	}
}

// begin resumes the previous session, or registers.
func (w *Worker) begin(ctx context.Context) error {
	token := w.state.token(w.registration())
	if token == "" {
		return w.register(ctx)
	}
	w.show(token)
	w.log.Info().Str("worker", w.id).Str("name", w.cfg.Name).Msg("previous session resumed")
	return nil
}

func (w *Worker) capabilities() json.RawMessage {
	can := api.Capabilities{
		MaxConcurrentBuilds: w.cfg.Concurrency, Version: w.cfg.Version, Labels: w.cfg.Labels,
		Features: w.cfg.features(), MaxTimeout: int(w.cfg.MaxTimeout / time.Second),
	}
	for _, p := range w.cfg.Platforms {
		can.Platforms = append(can.Platforms, string(p))
	}
	raw, _ := json.Marshal(can) // can't fail: only plain members
	return raw
}

// registration identifies what a token was issued for: a worker that would register
// something else has to register, and one that an earlier release registered.
func (w *Worker) registration() []byte {
	return fmt.Appendf(nil, "%s\n%s\n%s\n%s\n%s%s", w.api.BaseURL(), w.id, w.state.instance, w.cfg.Name, w.capabilities(), strings.Repeat("\nolder", min(w.older, 1)))
}

// keep stores the token of the last reply, also for the worker after a restart. The file
// may lag behind: the controller then refuses its token, and the worker registers.
func (w *Worker) keep(token string) {
	w.show(token)
	if err := w.state.keepToken(token, w.registration()); err != nil {
		w.log.Warn().Err(err).Msg("token not saved; the next start will register again")
	}
}

// shown returns the token for the next call.
func (w *Worker) shown() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.token
}

func (w *Worker) show(token string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.token = token
}

// renew replaces a token by the same one with a new expiry, unless a poll has replaced it
// meanwhile. It is not saved on disk: a worker that is killed with a build registers.
func (w *Worker) renew(shown, token string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if token != "" && w.token == shown {
		w.token = token
	}
}

// know sets the fields that other goroutines read under mu.
func (w *Worker) know(id, image string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.id, w.image = id, image
}

// register makes the worker known under its id. Each call sends a higher number, so that a
// controller that executes an earlier request later changes nothing.
func (w *Worker) register(ctx context.Context) error {
	number, err := w.state.nextRegistration(time.Now())
	if err != nil {
		w.log.Warn().Err(err).Msg("number of the registration not saved")
	}
	w.unanswered = true
	if err := w.state.dropToken(); err != nil { // the next process must not poll with it either
		w.log.Warn().Err(err).Msg("removing the token failed")
	}
	reply, err := w.api.Register(ctx, api.Register{
		ID: w.id, Name: w.cfg.Name, Capabilities: w.capabilities(), ActiveBuilds: w.running(), Instance: w.state.instance, Registration: number,
	})
	if err != nil {
		return err
	}
	if !store.ValidID(reply.ID) {
		return fmt.Errorf("controller gave us the id %q", reply.ID)
	}
	if reply.ID != w.id {
		if err := w.state.keepID(reply.ID); err != nil {
			return err
		}
	}
	w.unanswered = false
	if len(reply.Features) > 0 {
		w.older = 0
	} else {
		w.again = time.Now().Add(w.cfg.Again.Wait(w.older))
		w.older++
	}
	w.know(reply.ID, reply.BaseImageID)
	w.keep(reply.AccessToken)
	w.log.Info().Str("worker", w.id).Str("name", w.cfg.Name).Msg(reply.Status)
	return nil
}

// leave says that the builds that run are the last ones. Older controllers don't know that.
func (w *Worker) leave(ctx context.Context) {
	if len(w.running()) == 0 { // it unregisters at once
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, w.cfg.StopGrace, errStopped)
	defer cancel()
	if _, err := w.api.Leaving(ctx, w.shown()); err != nil {
		w.log.Debug().Err(err).Msg("saying that the worker leaves failed")
	}
}

// unregister removes the worker from the controller. The token may have expired during a
// long build, so it is renewed if need be.
func (w *Worker) unregister(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), w.cfg.StopGrace, errStopped)
	defer cancel()
	retry := client.Retry{Backoff: w.cfg.Backoff}
	err := retry.Do(ctx, func(ctx context.Context) error {
		_, err := w.api.Unregister(ctx, w.shown())
		if client.StatusOf(err) != http.StatusUnauthorized {
			return err
		}
		if err := w.register(ctx); err != nil {
			return err
		}
		_, err = w.api.Unregister(ctx, w.shown())
		return err
	})
	if err != nil {
		w.log.Warn().Err(err).Msg("unregistering failed")
		return
	}
	if err := w.state.dropToken(); err != nil { // it is void
		w.log.Warn().Err(err).Msg("removing the token failed")
	}
	w.log.Info().Msg("unregistered")
}

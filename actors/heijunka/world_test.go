package heijunka

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/actors/request"
	"takt/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is heijunka in a tree, with real request actors.
type world struct {
	testing.TB
	sys      *otp.System
	bus      pubsub.Bus
	settings *memory
	h        *Heijunka
}

// start builds the tree. Supervisors may restart as often as a test wants.
func start(tb testing.TB, cfg Config) *world {
	tb.Helper()
	logger := zerolog.Nop()
	if testing.Verbose() {
		if _, bench := tb.(*testing.B); !bench {
			logger = zerolog.New(tb.Output()).Level(zerolog.WarnLevel)
		}
	}
	w := &world{TB: tb, sys: otp.New(otp.Options{Logger: logger}), bus: pubsub.New(), settings: &memory{}}
	require.NoError(tb, cfg.Validate())
	w.h = New(w.sys, Deps{Requests: request.New(w.sys.Ref("takt/request_sup")), Bus: w.bus, Settings: w.settings}, cfg)
	_, err := w.sys.StartRoot(context.Background(), "takt", otp.SupSpec{Intensity: 1_000_000, Children: []otp.ChildSpec{
		w.bus.Spec(), generous(w.h.Spec()),
		{ID: "request_sup", Supervisor: func() otp.SupSpec { return request.Supervisor(time.Second) }},
	}})
	require.NoError(tb, err)
	return w
}

// generous lifts the restart budgets of a supervisor and of those below it.
func generous(spec otp.ChildSpec) otp.ChildSpec {
	if mk := spec.Supervisor; mk != nil {
		spec.Supervisor = func() otp.SupSpec {
			s := mk()
			s.Intensity = 1_000_000
			for i := range s.Children {
				s.Children[i] = generous(s.Children[i])
			}
			return s
		}
	}
	return spec
}

func (w *world) stop() { w.sys.Shutdown(context.Background()) }

// inBubble runs f with heijunka in fake time.
func inBubble(t *testing.T, cfg Config, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := start(t, cfg)
		defer func() {
			w.stop()
			synctest.Wait()
		}()
		synctest.Wait()
		f(w)
	})
}

// passes lets d pass in a bubble, and everything that follows from it.
func passes(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// steady is a configuration of one priority and some regular domains, each with
// a pool of its own in one list. Nothing scales, and who waits waits on.
func steady(workers int, names ...string) Config {
	cfg := Config{Limits: Limits{Soft: 80, Hard: 100, Reserved: 0.2}, Wait: time.Hour}
	for i, name := range names {
		cfg.Pools = append(cfg.Pools, PoolConfig{Name: name, Initial: workers, Min: workers, Max: workers, Queue: 1000})
		cfg.Domains = append(cfg.Domains, DomainConfig{Name: name, Priority: i == 0, Pools: names, Affinity: []string{name}})
	}
	return cfg
}

// separate keeps each domain in its own pool.
func separate(cfg Config) Config {
	for i := range cfg.Domains {
		cfg.Domains[i].Pools = cfg.Domains[i].Affinity
	}
	return cfg
}

// held is a request that stays at work until it is let go.
type held struct {
	cancel context.CancelCauseFunc
	letGo  chan struct{}
	done   chan error
}

// hold begins a request and returns; its handler waits.
func (w *world) hold(domain string) *held {
	ctx, cancel := context.WithCancelCause(context.Background())
	r := &held{cancel: cancel, letGo: make(chan struct{}), done: make(chan error, 1)}
	go func() {
		r.done <- w.h.Do(ctx, Work{Domain: domain, Route: "/" + domain, ID: "id", Key: "key"}, func(ctx context.Context) error {
			select {
			case <-r.letGo:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	return r
}

func (w *world) holdAll(domain string, n int) (all []*held) {
	for range n {
		all = append(all, w.hold(domain))
	}
	return all
}

func (r *held) end() error {
	close(r.letGo)
	return <-r.done
}

func (w *world) end(all []*held) {
	for _, r := range all {
		close(r.letGo)
	}
	for _, r := range all {
		require.NoError(w, <-r.done)
	}
}

// serve is a request that takes d.
func (w *world) serve(ctx context.Context, domain string, d time.Duration) error {
	return w.h.Do(ctx, Work{Domain: domain, Route: "/" + domain, Key: domain}, func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// requireNothingHeld checks that no token and no slot is out, by every count.
func (w *world) requireNothingHeld() {
	w.Helper()
	require.Zero(w, w.h.gate.load.Load(), "tokens")
	w.h.gate.each(func(e *entry) { require.Fail(w, "a token is out", "%s %s", e.domain.Name, e.route) })
	for _, p := range w.h.pools {
		p.lanes.mu.Lock()
		for l := range p.lanes.all {
			require.False(w, l.busy, "lane of %s", p.name)
		}
		require.Zero(w, p.lanes.line.n)
		require.Nil(w, p.lanes.line.head)
		require.Zero(w, p.lanes.waiting.Load())
		require.Equal(w, p.lanes.total.taken, p.lanes.total.ended)
		p.lanes.mu.Unlock()
		require.Zero(w, p.lanes.busy.Load(), "slots of %s", p.name)
	}
}

func requireOverload(tb testing.TB, err error, rule string, load, limit int) {
	tb.Helper()
	var o *OverloadError
	require.ErrorAs(tb, err, &o)
	require.Equal(tb, store.Overloaded, store.CodeOf(err))
	require.Equal(tb, []any{rule, load, limit}, []any{o.Rule, o.Load, o.Limit})
	require.GreaterOrEqual(tb, o.Failure.RetryAfter, time.Second)
}

// memory keeps settings as the database does: as JSON.
type memory struct {
	mu    sync.Mutex
	saved []byte
	err   error
}

func (m *memory) LoadSettings(context.Context) (s store.LoadSettings, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.read()
}

func (m *memory) read() (s store.LoadSettings, err error) {
	if m.err != nil || m.saved == nil {
		return s, m.err
	}
	return s, json.Unmarshal(m.saved, &s)
}

func (m *memory) ChangeLoadSettings(_ context.Context, change func(*store.LoadSettings) error) (store.LoadSettings, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.read()
	if err == nil {
		err = change(&s)
	}
	if err != nil {
		return store.LoadSettings{}, err
	}
	m.saved, err = json.Marshal(s)
	return s, err
}

func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

var errDefect = errors.New("a defect")

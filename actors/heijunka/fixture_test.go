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

// fixture is heijunka in a tree, with real request actors.
type fixture struct {
	testing.TB
	sys      *otp.System
	bus      pubsub.Bus
	settings *memory
	h        *Heijunka
	levels   levels
}

// levels are the lines about the load in the log: level, load, and its limits.
type levels chan []any

func (l levels) Write(line []byte) (int, error) {
	var v map[string]any
	if err := json.Unmarshal(line, &v); err == nil && v["message"] == "load" {
		select {
		case l <- []any{v["load_level"], v["load"], v["soft_limit"], v["hard_limit"]}:
		default: // nobody reads them
		}
	}
	return len(line), nil
}

// start builds the tree. Supervisors may restart as often as a test wants.
func start(tb testing.TB, cfg Config) *fixture {
	tb.Helper()
	w := &fixture{TB: tb, bus: pubsub.New(), settings: &memory{}, levels: make(levels, 100)}
	w.sys = otp.New(otp.Options{Logger: zerolog.New(w.levels).Level(zerolog.InfoLevel)})
	require.NoError(tb, cfg.Validate())
	var pools []string
	for _, p := range cfg.withDefaults().Pools {
		pools = append(pools, p.Name)
	}
	w.h = New(w.sys, Deps{Run: request.New(w.sys, pools...).Run, Bus: w.bus, Settings: w.settings}, cfg)
	_, err := w.sys.StartRoot(context.Background(), "takt", otp.SupSpec{Intensity: 1_000_000, Children: []otp.ChildSpec{
		w.bus.Spec(),
		generous("heijunka", otp.OneForAll, generous("pool_sup", otp.OneForOne, w.h.PoolManagers()...), w.h.LoadRegulator(), w.h.Balancer(), w.h.BurstHandler()),
		generous("request_sup", otp.OneForOne, request.Specs(pools...)...),
	}})
	require.NoError(tb, err)
	return w
}

// generous is a supervisor that never gives up.
func generous(id string, strategy otp.Strategy, children ...otp.ChildSpec) otp.ChildSpec {
	return otp.ChildSpec{ID: id, Supervisor: func() otp.SupSpec { return otp.SupSpec{Strategy: strategy, Intensity: 1_000_000, Children: children} }}
}

func (w *fixture) stop() { w.sys.Shutdown(context.Background()) }

// inBubble runs f with heijunka in fake time.
func inBubble(t *testing.T, cfg Config, f func(w *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := start(t, cfg)
		defer func() { w.stop(); synctest.Wait() }()
		synctest.Wait()
		f(w)
	})
}

// passes lets d pass in a bubble, and everything that follows from it.
func passes(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// steady is a configuration of one priority and some regular domains, whose pools
// are one list. Nothing scales, and who waits waits on.
func steady(workers int, names ...string) Config {
	cfg := Config{Limits: store.HeijunkaLimits{Soft: 80, Hard: 100, Reserved: 0.2}, Wait: time.Hour}
	for i, name := range names {
		cfg.Pools = append(cfg.Pools, PoolConfig{Name: name, Initial: workers, Min: workers, Max: workers, Queue: 1000, Priority: i == 0, List: names})
	}
	return cfg
}

// separate keeps each domain in its own pool.
func separate(cfg Config) Config {
	for i := range cfg.Pools {
		cfg.Pools[i].List = nil
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
func (w *fixture) hold(domain string) *held { return w.holdAs(domain, store.Share{}) }

// holdAs is hold for a client.
func (w *fixture) holdAs(domain string, who store.Share) *held {
	ctx, cancel := context.WithCancelCause(context.Background())
	r := &held{cancel: cancel, letGo: make(chan struct{}), done: make(chan error, 1)}
	go func() {
		r.done <- w.h.Do(ctx, store.Work{Domain: domain, Route: "/" + domain, ID: "id", Key: "key", Share: who}, func(ctx context.Context) error {
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

func (w *fixture) holdAll(domain string, n int) (all []*held) {
	for range n {
		all = append(all, w.hold(domain))
	}
	return all
}

func (r *held) end() error {
	close(r.letGo)
	return <-r.done
}

func (w *fixture) end(all []*held) {
	for _, r := range all {
		close(r.letGo)
	}
	for _, r := range all {
		require.NoError(w, <-r.done)
	}
}

// serve is a request that takes d.
func (w *fixture) serve(ctx context.Context, domain string, d time.Duration) error {
	return w.h.Do(ctx, store.Work{Domain: domain, Route: "/" + domain, Key: domain}, func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// pool returns a pool that there is.
func (w *fixture) pool(name string) *Pool {
	p, err := w.h.pool(name)
	require.NoError(w, err)
	return p
}

// load is how many tokens are out, by the count and by the table.
func (w *fixture) load() int {
	g := w.h.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for t := g.table.next; t != &g.table; t = t.next {
		n++
	}
	require.Equal(w, n, g.load)
	return n
}

// requireNothingHeld checks that no token and no place is out, by every count.
func (w *fixture) requireNothingHeld() {
	w.Helper()
	require.Zero(w, w.load(), "tokens")
	for _, p := range w.h.pools {
		c := p.places.Counts()
		require.Zero(w, c.Held, "places of %s", p.name)
		require.Zero(w, c.Waiting, "waiters of %s", p.name)
		counts, err := otp.CountChildren(context.Background(), w.sys.Ref("takt/request_sup/"+p.name))
		require.NoError(w, err)
		require.Zero(w, counts.Active, "requests of %s", p.name)
	}
}

func requireOverload(tb testing.TB, err error, rule string, load, limit int) {
	tb.Helper()
	var e *store.Error
	require.ErrorAs(tb, err, &e)
	require.Equal(tb, store.Overloaded, e.Code)
	require.Equal(tb, &store.Overload{Rule: rule, Load: load, Limit: limit}, e.Overload)
	require.GreaterOrEqual(tb, e.RetryAfter, time.Second)
}

// memory keeps settings as the database does: as JSON.
type memory struct {
	mu    sync.Mutex
	saved []byte
	err   error
}

func (m *memory) HeijunkaSettings(context.Context) (s store.HeijunkaSettings, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.read()
}

func (m *memory) read() (s store.HeijunkaSettings, err error) {
	if m.err != nil || m.saved == nil {
		return s, m.err
	}
	return s, json.Unmarshal(m.saved, &s)
}

func (m *memory) ChangeHeijunkaSettings(_ context.Context, change func(*store.HeijunkaSettings) error) (store.HeijunkaSettings, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.read()
	if err == nil {
		err = change(&s)
	}
	if err != nil {
		return store.HeijunkaSettings{}, err
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

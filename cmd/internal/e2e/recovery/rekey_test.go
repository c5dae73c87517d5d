package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/database"
	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/cmd/internal/upkeep"
	"takt/http/api"
	"takt/http/client"
	"takt/http/hubspottest"
	"takt/storage/s3test"
	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
	"takt/store/storetest/needs"
)

// externalDatabase runs a PostgreSQL that belongs to no controller, and returns the URL of
// its empty database.
func externalDatabase(t *testing.T) string {
	t.Helper()
	dir := takttest.ShortDir(t)
	server := database.NewPostgres(database.PostgresConfig{DataDir: dir, SearchPath: os.Getenv("PATH")})
	db := postgres.New()
	stop, err := upkeep.StartDatabase(t.Context(), t.Output(), database.NewPool(database.PoolConfig{
		Source: server.ConnConfig, Sinks: []database.PoolUser{db}, Size: 1,
	}), server)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stop()) })
	return (&process.Controller{DataDir: dir}).DatabaseURL()
}

// rekey runs takt rekey on the data of c, and returns its exit status and summary.
func rekey(env *takttest.Env, c *process.Controller, settings []string, args ...string) (code int, sum rekeySummary) {
	env.T.Helper()
	p := launchRekey(env, c, settings, args...)
	<-p.Done()
	for line := range strings.Lines(p.Output()) {
		var m struct{ Summary *rekeySummary }
		if json.Unmarshal([]byte(line), &m) == nil && m.Summary != nil {
			sum = *m.Summary
		}
	}
	env.T.Log(p.Tail())
	return p.ExitCode(), sum
}

type rekeySummary struct {
	Key        string
	Kinds      []struct{ Resealed int }
	Left, Lost int
	MayGo      time.Time `json:"old_keys_may_go"`
}

func (r rekeySummary) resealed() (n int) {
	for _, k := range r.Kinds {
		n += k.Resealed
	}
	return n
}

func launchRekey(env *takttest.Env, c *process.Controller, settings []string, args ...string) *process.Process {
	env.T.Helper()
	p, err := env.Launch("rekey", append(slices.Clone(settings), "TAKT_DATA_DIR="+c.DataDir), append([]string{"rekey", "--json"}, args...)...)
	require.NoError(env.T, err)
	return p
}

// ringOf are the settings of the current key and the others.
func ringOf(current string, others ...string) []string {
	return []string{"TAKT_ENCRYPTION_KEY=" + current, "TAKT_OLD_ENCRYPTION_KEYS=" + strings.Join(others, ",")}
}

// sealedUnder counts the certificates below dir that the key of this id has sealed.
func sealedUnder(t *testing.T, dir string, id seal.ID) (n int) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !strings.HasPrefix(d.Name(), "certs") {
			return nil //nolint:nilerr // it was replaced meanwhile
		}
		raw, err := os.ReadFile(path)
		if key, kerr := seal.KeyOf(raw); err == nil && kerr == nil && key == id {
			n++
		}
		return nil
	}))
	return n
}

// killInTheMiddle kills takt rekey this often, each time when it has sealed something
// more below dir.
func killInTheMiddle(env *takttest.Env, c *process.Controller, settings []string, times int, dir string) {
	env.T.Helper()
	key, err := seal.ParseKey(strings.TrimPrefix(settings[len(settings)-2], "TAKT_ENCRYPTION_KEY="))
	require.NoError(env.T, err)
	for range times {
		before := sealedUnder(env.T, dir, key.ID())
		victim := launchRekey(env, c, settings)
		for victim.Alive() && sealedUnder(env.T, dir, key.ID()) == before { // it seals hundreds a second
			takttest.Pause(env.T.Context(), time.Millisecond)
		}
		victim.Kill()
		<-victim.Done()
		require.Equal(env.T, -1, victim.ExitCode(), "it was killed in the middle of it")
	}
}

// certified is a build with certificates: its result is both files.
type certified struct {
	id, want string
	replay   client.Submit
}

// submitCertified submits the nth build until it is acknowledged.
func submitCertified(ctx context.Context, t *testing.T, url, apiKey string, platform store.Platform, n int) (b certified, ok bool) {
	t.Helper()
	c, err := client.New(client.Config{BaseURL: url, APIKey: apiKey})
	if err != nil {
		t.Error(err)
		return b, false
	}
	order, cert := fmt.Sprintf("order %s %d\n", platform, n), strings.Repeat(fmt.Sprintf("certificate %s %d\n", platform, n), 20_000)
	certs := client.Bytes(takttest.Zip(t, map[string]string{"cert.txt": cert}))
	b.want = order + cert
	b.replay = client.Submit{
		Platform: platform, Source: client.Bytes(takttest.Zip(t, map[string]string{"order.txt": order})), Certs: &certs, IdempotencyKey: client.NewIdempotencyKey(),
	}
	for ctx.Err() == nil {
		if sub, err := c.Submit(ctx, b.replay); err == nil {
			b.id = sub.ID
			return b, true
		}
		takttest.Pause(ctx, 50*time.Millisecond)
	}
	return b, false
}

// certifiedOrder is a build command that needs the certificates.
const certifiedOrder = `cat order.txt "$TAKT_CERTS/cert.txt" > "$TAKT_OUTPUT"`

// TestTheKeyIsChangedUnderLoad gives two controllers another encryption key, while
// both have work of every kind, and reads all of it with the new key alone.
func TestTheKeyIsChangedUnderLoad(t *testing.T) {
	t.Parallel()
	env := takttest.NewThrottleEnv(t, hubspottest.Config{RollingLimit: -1, Rotate: true}, takttest.Portal+1)
	bucket := s3test.Start(t)
	old, fresh := takttest.NewKey(), takttest.NewKey()
	shared := slices.Concat(env.HubSpot.Env(env.Base), bucket.Env(), []string{
		"TAKT_PUBLIC_URL=" + takttest.PublicURL, "TAKT_HUBSPOT_TIMEOUT=3s", "TAKT_STORAGE=dual", "TAKT_DATABASE_URL=" + externalDatabase(t),
		"TAKT_API_KEY=the-key-of-the-fleet-0123456789", "TAKT_ADMIN_KEY=the-key-of-operators-0123456789",
	})
	both := []*process.Controller{env.StartController("a", slices.Concat(shared, ringOf(old))...), env.StartController("b", slices.Concat(shared, ringOf(old))...)}
	roll := func(keys ...string) { // one after the other, at the addresses that they had
		t.Helper()
		for i, c := range both {
			require.NoError(t, c.Stop(t.Context(), takttest.Patience))
			both[i] = env.StartController(c.Name, slices.Concat(shared, []string{"TAKT_LISTEN=" + c.Address}, keys)...)
		}
	}

	// What waits for the end: builds that nobody takes.
	env.Install(both[0], takttest.PerSecond(1000), takttest.Portal, takttest.Portal+1)
	subscribed := takttest.Call(t, both[0], api.CreateSubscription, api.CreateSubscriptionIn{
		URL: "https://example.org/", SubscriptionFilter: api.SubscriptionFilter{Events: []string{"deployment.failed"}},
	})
	var builds []certified
	var waiting []certified
	for n := range 12 {
		b, ok := submitCertified(t.Context(), t, both[n%2].URL, both[0].APIKey, store.IOS, n)
		require.True(t, ok)
		waiting = append(waiting, b)
	}
	first, err := both[0].Client.Submit(t.Context(), waiting[0].replay)
	require.NoError(t, err)

	// What goes on all the time.
	var workers []*process.Process
	for i, c := range both {
		for j := range 2 {
			w, err := env.Worker(c, fmt.Sprintf("worker-%d-%d", i, j), certifiedOrder, nil, "--heartbeat", "500ms", "--platform", "android")
			require.NoError(t, err)
			t.Cleanup(w.Kill)
			workers = append(workers, w)
		}
	}
	var mu sync.Mutex
	fired := 0
	loaded, end := context.WithCancelCause(t.Context())
	endLoad := func() { end(errors.New("enough")) }
	defer endLoad()
	var load sync.WaitGroup
	apiKey := both[0].APIKey
	for i, url := range []string{both[0].URL, both[1].URL} {
		load.Go(func() {
			for n := i; loaded.Err() == nil; n += 2 {
				if b, ok := submitCertified(loaded, t, url, apiKey, store.Android, n); ok {
					mu.Lock()
					builds = append(builds, b)
					mu.Unlock()
				}
				takttest.Pause(loaded, 500*time.Millisecond)
			}
		})
		load.Go(func() {
			for n := 0; loaded.Err() == nil; n++ {
				if env.Fire(loaded, url, takttest.Portal, fmt.Sprintf("hook-%d-%d", i, n)) {
					mu.Lock()
					fired++
					mu.Unlock()
				}
				if n%20 == 0 {
					env.HubSpot.Revoke(takttest.Portal)
				}
				takttest.Pause(loaded, 200*time.Millisecond)
			}
		})
	}
	built := func() map[string]int {
		t.Helper()
		list, err := both[0].Client.Workers(t.Context(), client.WorkerFilter{})
		require.NoError(t, err)
		n := map[string]int{}
		for _, w := range list.Workers {
			n[w.ID] = w.Completed
		}
		return n
	}
	goesOn := func() { // everybody has had a build, and a token for it
		t.Helper()
		before := built()
		require.Len(t, before, len(workers))
		takttest.Eventually(t, "all workers build", func() bool {
			now := built()
			for id, n := range before {
				if now[id] < n+2 {
					return false
				}
			}
			return true
		})
	}
	takttest.Eventually(t, "all workers register", func() bool { return len(built()) == len(workers) })
	goesOn()

	roll(ringOf(old, fresh)...)
	goesOn()
	roll(ringOf(fresh, old)...)
	goesOn()

	// Without the old key no controller starts as long as something needs it.
	settings := slices.Concat(shared, ringOf(fresh, old))
	early := env.T.TempDir()
	p, err := env.Launch("early", slices.Concat(shared, ringOf(fresh), []string{"TAKT_DATA_DIR=" + early, "TAKT_LISTEN=127.0.0.1:0"}), "serve")
	require.NoError(t, err)
	<-p.Done()
	require.Equal(t, 1, p.ExitCode())
	require.Contains(t, p.Output(), "this database was sealed with the encryption key")
	require.Contains(t, p.Output(), "TAKT_OLD_ENCRYPTION_KEYS")
	code, sum := rekey(env.Env, both[0], settings, "--dry-run")
	require.Equal(t, 1, code)
	require.Positive(t, sum.Left)
	require.Zero(t, sum.resealed())

	killInTheMiddle(env.Env, both[0], settings, needs.Repeat(1, 5), bucket.Dir)
	for _, c := range both { // each has a disk
		require.Eventually(t, func() bool { // a process each time
			code, sum = rekey(env.Env, c, settings)
			return code == 0
		}, takttest.Patience, time.Second, "the copies that are missing in S3 are uploaded")
		require.Zero(t, sum.Left+sum.Lost)
		require.False(t, sum.MayGo.IsZero())
	}
	goesOn()

	roll(ringOf(fresh)...)
	goesOn()
	endLoad()
	load.Wait()
	for _, c := range both {
		code, sum = rekey(env.Env, c, slices.Concat(shared, ringOf(fresh)), "--dry-run")
		require.Zero(t, code)
		require.Len(t, sum.Kinds, 7)
		code, found, _ := storage(env.Env, c, slices.Concat(shared, ringOf(fresh)), "verify", "--digest", "--any-copy")
		require.Zero(t, code, found)
	}

	// Every kind is read with the new key alone.
	again, err := both[1].Client.Submit(t.Context(), waiting[0].replay)
	require.NoError(t, err)
	require.Equal(t, first, again, "the reply is still told")
	_, err = client.Call(t.Context(), both[1].Client, api.RotateSubscription, api.SubscriptionIn{ID: subscribed.ID})
	require.NoError(t, err, "the secret before the new one is read")
	env.StartWorker(both[0], "ios", certifiedOrder)
	for _, b := range append(waiting, builds...) {
		takttest.Eventually(t, "build completes", func() bool { return takttest.Status(t, both[0], b.id).Status == string(store.Completed) })
		require.Equal(t, b.want, takttest.Download(t, both[0], b.id))
	}
	env.HubSpot.Revoke(takttest.Portal)
	require.True(t, env.Fire(t.Context(), both[0].URL, takttest.Portal, "last"))
	require.True(t, env.Fire(t.Context(), both[0].URL, takttest.Portal+1, "with a token that only takt rekey has touched"))
	// What a killed takt rekey or an expired token has held up comes back within a minute.
	require.Eventually(t, func() bool { return env.HubSpot.Distinct() >= fired+2 }, 2*takttest.Patience, takttest.Tick, "all actions are completed")
	require.Zero(t, env.HubSpot.Refreshes(takttest.Portal+1))
	for _, dir := range []string{both[0].DataDir, both[1].DataDir, bucket.Dir} { // the certificates of one build are lost
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && strings.HasPrefix(d.Name(), "certs") && strings.Contains(path, builds[0].id) {
				err = os.Remove(path)
			}
			return err
		}))
	}
	code, sum = rekey(env.Env, both[0], slices.Concat(shared, ringOf(fresh)))
	require.Equal(t, 1, code)
	require.Equal(t, 1, sum.Lost)
	entries, err := both[0].Client.Audit(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "rekey", entries.Entries[0].Action)
	for _, w := range workers {
		require.NotContains(t, w.Output(), "registering", "nobody was logged out")
		require.NoError(t, w.Stop(t.Context(), takttest.Patience))
	}
	t.Logf("%d builds, %d actions, %d refreshes", len(builds), fired, env.HubSpot.Refreshes(takttest.Portal))
}

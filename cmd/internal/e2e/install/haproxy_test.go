package install

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/http/hubspottest"
	"takt/http/tlstest"
	"takt/store"
)

// crew is a fleet and its submitters behind HAProxy. Every call is noted.
type crew struct {
	c        *client.Client
	mu       sync.Mutex // guards what follows
	polls    []time.Time
	failed   []failedCall
	refused  []string          // what may not be tried again, and what was handed out twice
	handed   map[string]string // attempts of builds, and which worker has them
	accepted int
}

// failedCall is a call that was answered with 5xx, or not at all.
type failedCall struct {
	begun, ended time.Time
	refused      bool // by takt, to be repeated
	what         string
}

// call makes a call until it succeeds, as takt's own clients do.
func (c *crew) call(ctx context.Context, what string, f func(context.Context) error) bool {
	retry := client.Retry{Temporary: client.Temporary}
	retry.Min, retry.Max = 100*time.Millisecond, 2*time.Second
	err := retry.Do(ctx, func(ctx context.Context) error {
		begun := time.Now()
		if what == "poll" {
			c.mu.Lock()
			c.polls = append(c.polls, begun)
			c.mu.Unlock()
		}
		err := f(ctx)
		if client.Temporary(err) && ctx.Err() == nil {
			c.mu.Lock()
			c.failed = append(c.failed, failedCall{begun, time.Now(), client.StatusOf(err) == 503 && client.RetryAfter(err) > 0, fmt.Sprintf("%s: %v", what, err)})
			c.mu.Unlock()
		}
		return err
	})
	if err != nil && ctx.Err() == nil {
		c.mu.Lock()
		c.refused = append(c.refused, fmt.Sprintf("%s: %v", what, err))
		c.mu.Unlock()
	}
	return err == nil
}

// work builds until ctx ends, over calls. A forgetful worker keeps its first build for ever.
func (c *crew) work(ctx context.Context, calls *client.Client, forgetful bool) {
	var me api.Registered
	instance := store.NewID()
	if !c.call(ctx, "register", func(ctx context.Context) (err error) {
		me, err = calls.Register(ctx, api.Register{Name: "crew", Instance: instance, Capabilities: []byte("{}"), ActiveBuilds: []string{}})
		return err
	}) {
		return
	}
	for {
		var reply api.PollReply
		if !c.call(ctx, "poll", func(ctx context.Context) (err error) {
			reply, err = calls.Poll(ctx, client.Poll{Token: me.AccessToken, WorkerID: me.ID, Instance: instance, Wait: 20 * time.Second, Active: []string{}})
			return err
		}) {
			return
		}
		if reply.AccessToken != "" {
			me.AccessToken = reply.AccessToken
		}
		if reply.Job == nil {
			continue
		}
		c.mu.Lock()
		attempt := fmt.Sprintf("attempt %d of %s", reply.Job.Attempt, reply.Job.ID)
		if other := c.handed[attempt]; other != "" && other != me.ID {
			c.refused = append(c.refused, attempt+" is handed out to two workers")
		}
		c.handed[attempt] = me.ID
		c.mu.Unlock()
		if forgetful {
			return
		}
		result := client.Bytes([]byte("result of " + reply.Job.ID))
		if !c.call(ctx, "result", func(ctx context.Context) error {
			_, err := calls.Upload(ctx, client.Upload{
				Held:    client.Held{BuildID: reply.Job.ID, WorkerID: me.ID, Instance: instance, Attempt: reply.Job.Attempt},
				Success: true, Result: &result,
			})
			return err
		}) {
			return
		}
	}
}

// submit submits builds until over is closed.
func (c *crew) submit(ctx context.Context, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-time.After(300*time.Millisecond + rand.N(600*time.Millisecond)):
		}
		build := client.Submit{Platform: store.Android, Source: client.Bytes([]byte("source")), IdempotencyKey: client.NewIdempotencyKey()}
		if !c.call(ctx, "submit", func(ctx context.Context) error {
			_, err := c.c.Submit(ctx, build)
			return err
		}) {
			return
		}
		c.mu.Lock()
		c.accepted++
		c.mu.Unlock()
	}
}

// since returns the calls that failed, and began after then, and the most polls in 5 s.
func (c *crew) since(then time.Time) (failed []failedCall, most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.failed {
		if f.begun.After(then) {
			failed = append(failed, f)
		}
	}
	polls := slices.SortedFunc(slices.Values(c.polls), time.Time.Compare)
	first := 0
	for i, at := range polls {
		for at.Sub(polls[first]) > 5*time.Second {
			first++
		}
		if polls[first].After(then) {
			most = max(most, i-first+1)
		}
	}
	return failed, most
}

// balancer is HAProxy in front of three controllers, and clients that go through it.
type balancer struct {
	*proxy
	t *testing.T
	// through keeps connections, over HTTP/2. plain has a connection with HTTP/1.1 for each call.
	through, plain *client.Client
}

// startHAProxy starts HAProxy in front of three addresses. It logs each request that a
// controller did not answer.
func startHAProxy(t *testing.T, dir string, addresses []string, keys client.Config) *balancer {
	t.Helper()
	raw, err := os.ReadFile(takttest.File("deploy", "haproxy", "haproxy.cfg"))
	require.NoError(t, err)
	config := string(raw)
	for i, address := range addresses {
		config = replaced(t, config, fmt.Sprintf("127.0.0.1:300%d", i+1), address)
	}
	authority := tlstest.NewAuthority(t)
	cert, key := authority.Issue(t, dir, 1)
	var pem []byte
	for _, file := range []string{cert, key} {
		part, err := os.ReadFile(file)
		require.NoError(t, err)
		pem = append(pem, part...)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "takt.pem"), pem, 0o600))
	port := takttest.FreePort(t)
	config = replaced(t, config, "bind :443", "bind 127.0.0.1:"+port, "/etc/haproxy/takt.pem", filepath.Join(dir, "takt.pem"), "/run/haproxy/admin.sock", filepath.Join(dir, "admin.sock"),
		"global\n", "global\n\tlog stdout format raw local0\n",
		"defaults\n", "defaults\n\tlog global\n\tlog-format \"ended %[date(0,ms)] %s %ts %ST %HM %HPO %HV %trg\"\n")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "haproxy.cfg"), []byte(config), 0o600))
	b := &balancer{t: t, proxy: &proxy{url: "https://localhost:" + port, caFile: filepath.Join(dir, "ca.pem"), dir: dir}}
	require.NoError(t, os.WriteFile(b.caFile, authority.PEM, 0o600))
	startProxy(t, b.proxy, "", "haproxy", "-db", "-f", filepath.Join(dir, "haproxy.cfg"))
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(authority.PEM))
	keys.BaseURL, keys.RootCAs = b.url, roots
	b.through, err = client.New(keys)
	require.NoError(t, err)
	t.Cleanup(b.through.CloseIdle)
	each := client.NewTransport()
	each.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	each.ForceAttemptHTTP2, each.DisableKeepAlives = false, true
	keys.HTTPClient = &http.Client{Transport: each}
	b.plain, err = client.New(keys)
	require.NoError(t, err)
	takttest.Eventually(t, "it answers", func() bool {
		_, err := client.Call(t.Context(), b.through, api.IsReady, api.None{})
		return err == nil
	})
	return b
}

// admin gives HAProxy a command.
func (b *balancer) admin(command string) {
	conn, err := new(net.Dialer).DialContext(b.t.Context(), "unix", filepath.Join(b.dir, "admin.sock"))
	require.NoError(b.t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, command+"\n")
	require.NoError(b.t, err)
	reply, err := io.ReadAll(conn)
	require.NoError(b.t, err)
	require.Empty(b.t, strings.TrimSpace(string(reply)))
}

// cut is a request that a controller took and did not answer in full. HAProxy logs none of
// HTTP/2: it resets their streams as refused, so that the client repeats them.
type cut struct {
	at             time.Time
	server, detail string
}

// cuts returns the requests that ended because the controller's connection did.
func (b *balancer) cuts() (all []cut) {
	raw, err := os.ReadFile(b.log)
	require.NoError(b.t, err)
	for line := range strings.Lines(string(raw)) {
		var ms int64
		var server, state string
		if n, _ := fmt.Sscanf(line, "ended %d %s %s", &ms, &server, &state); n < 3 {
			continue // not of a request
		}
		// S: the controller closed the connection.
		if state[0] == 'S' {
			all = append(all, cut{time.UnixMilli(ms), server, strings.TrimSpace(line)})
		}
	}
	return all
}

// requireCuts checks that only requests at a killed controller were cut, right after the kill,
// and that polls were among them.
func (b *balancer) requireCuts(server string, killed time.Time) {
	b.t.Helper()
	polls := 0
	all := b.cuts()
	for _, c := range all {
		require.Equal(b.t, server, c.server, c.detail)
		require.WithinRange(b.t, c.at, killed.Add(-time.Second/100), killed.Add(time.Second), c.detail)
		if strings.Contains(c.detail, " /api/workers/poll") {
			polls++
		}
	}
	b.t.Logf("%d requests, %d of them polls, were at %s when it was killed", len(all), polls, server)
	require.Positive(b.t, polls, "the killed controller had polls")
}

// TestInstallHAProxy has three controllers behind HAProxy, with 200 workers and 20 submitters.
// One is killed, one stands still for 20 s, and one is replaced by the next version.
func TestInstallHAProxy(t *testing.T) {
	installTest(t)
	n, dir := takttest.NewPostgres(t)
	require.NoError(t, n.Start("-c", "fsync=off", "-c", "max_connections=200"))
	t.Cleanup(n.Stop)
	takttest.Answer(t, n, "SELECT 'up'")
	env := takttest.NewEnv(t)
	next := filepath.Join(dir, "takt")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-X main.release=99.0.0", "-o", next, "takt/cmd/takt")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	settings := append(takttest.SharedKeys(), "TAKT_DATABASE_URL="+n.URL(), "TAKT_TRUSTED_PROXIES=127.0.0.1", "TAKT_BUILD_TIMEOUT=45s")
	var three []*process.Controller
	for i := range 3 {
		name := fmt.Sprintf("controller-%d", i+1)
		if i > 0 { // one directory of files for all
			require.NoError(t, os.Mkdir(filepath.Join(env.Dir, name), 0o700))
			require.NoError(t, os.Symlink(filepath.Join(env.Dir, "controller-1", "files"), filepath.Join(env.Dir, name, "files")))
		}
		three = append(three, env.StartController(name, settings...))
	}
	addresses := []string{three[0].Address, three[1].Address, three[2].Address}
	b := startHAProxy(t, dir, addresses, client.Config{APIKey: three[0].APIKey, AdminKey: three[0].AdminKey})
	c := &crew{c: b.through, handed: map[string]string{}}
	working, end := context.WithCancelCause(t.Context())
	dismiss := func() { end(errors.New("enough")) }
	defer dismiss()
	over := make(chan struct{})
	const forgetful = 3
	var fleet, submitters sync.WaitGroup
	for i := range 200 + forgetful {
		fleet.Go(func() { c.work(working, []*client.Client{b.through, b.plain}[i%2], i < forgetful) })
	}
	for range 20 {
		submitters.Go(func() { c.submit(working, over) })
	}
	phase := func(name string, length time.Duration) (most int) {
		begun := time.Now()
		takttest.Pause(t.Context(), length)
		failed, most := c.since(begun)
		t.Logf("%s: at most %d polls in 5 s; %d calls that began then failed", name, most, len(failed))
		return most
	}
	phase("warming up", 5*time.Second)
	usual := phase("usual", 10*time.Second)

	killed := time.Now()
	three[0].Kill()
	most := phase("one killed", 8*time.Second)
	three[0] = env.StartController("controller-1", append(settings, "TAKT_LISTEN="+three[0].Address)...)
	most = max(most, phase("one came back", 6*time.Second))

	stopped := time.Now()
	require.NoError(t, three[1].Signal(syscall.SIGSTOP))
	most = max(most, phase("one stands still", 20*time.Second))
	goesOn := time.Now()
	require.NoError(t, three[1].Signal(syscall.SIGCONT))
	most = max(most, phase("it goes on", 6*time.Second))

	b.admin("set server takt/controller-3 state drain")
	most = max(most, phase("one drains", 2*time.Second))
	require.NoError(t, three[2].Stop(t.Context(), takttest.Patience))
	env.Takt = next
	three[2] = env.StartController("controller-3", append(settings, "TAKT_LISTEN="+three[2].Address)...)
	b.admin("set server takt/controller-3 state ready")
	most = max(most, phase("the next version", 8*time.Second))
	health := takttest.Call(t, three[2], api.ShowHealth, api.None{})
	require.Equal(t, "99.0.0", health.Version)

	close(over)
	submitters.Wait()
	takttest.Eventually(t, "all is built", func() bool {
		return takttest.Answer(t, n, "SELECT count(*)::text FROM builds WHERE state <> 'completed'") == "0"
	})
	dismiss()
	fleet.Wait()
	require.Empty(t, c.refused)
	broken := 0
	for _, f := range c.failed {
		// What is in flight where it stands still for longer than a statement may take is refused.
		if f.refused && f.begun.After(stopped.Add(-25*time.Second)) && f.begun.Before(goesOn.Add(time.Second)) {
			continue
		}
		broken++
		require.WithinRange(t, f.ended, killed, killed.Add(time.Second), "only what was in flight at the killed one fails: %s", f.what)
		require.WithinRange(t, f.begun, killed.Add(-25*time.Second), killed.Add(250*time.Millisecond), "only what was in flight at the killed one fails: %s", f.what)
	}
	require.Positive(t, broken, "workers over HTTP/1.1 see that their polls fail")
	b.requireCuts("controller-1", killed)
	t.Logf("%d builds, %d calls failed, all of them in flight at the killed controller; the one that stood still refused %d", c.accepted, broken, len(c.failed)-broken)
	require.LessOrEqual(t, most, 2*usual, "no storm of polls")
	require.Equal(t, fmt.Sprint(c.accepted), takttest.Answer(t, n, "SELECT count(*)::text FROM builds"))
	require.Equal(t, fmt.Sprint(forgetful), takttest.Answer(t, n, "SELECT count(*)::text FROM build_logs WHERE kind = 'requeued'"), "one sweep for each lost build")
	found := takttest.Call(t, three[2], api.CheckInvariants, api.None{})
	for _, i := range found.Invariants {
		require.Zero(t, i.Broken, i.Promise)
	}
	for _, c := range three {
		takttest.RequireWell(t, c)
	}
}

// release010 is the commit of release 0.1.0.
const release010 = "580b1c259cb53ec1c1b65924e5b75d390f8e1428"

// buildCommit builds takt as it was at a commit into dir and returns its program.
func buildCommit(t *testing.T, dir, commit string) string {
	t.Helper()
	tree, program := filepath.Join(dir, commit), filepath.Join(dir, "takt-"+commit)
	git := func(args ...string) {
		out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "git", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	git("worktree", "add", "-q", "--detach", tree, commit)
	defer git("worktree", "remove", "--force", tree)
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, "./cmd/takt")
	build.Dir = tree
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// TestInstallHAProxyFrom010 replaces two controllers of release 0.1.0 by this one, under load:
// first one of this release joins them, then one of them is stopped, and then one is killed.
func TestInstallHAProxyFrom010(t *testing.T) {
	installTest(t)
	n, dir := takttest.NewPostgres(t)
	require.NoError(t, n.Start("-c", "fsync=off", "-c", "max_connections=200"))
	t.Cleanup(n.Stop)
	takttest.Answer(t, n, "SELECT 'up'")
	env := takttest.NewThrottleEnv(t, hubspottest.Config{RollingLimit: -1})
	now := env.Takt
	settings := slices.Concat(takttest.SharedKeys(), env.HubSpot.Env(env.Base), []string{
		"TAKT_DATABASE_URL=" + n.URL(), "TAKT_TRUSTED_PROXIES=127.0.0.1", "TAKT_BUILD_TIMEOUT=45s", "TAKT_PUBLIC_URL=" + takttest.PublicURL,
	})
	files := filepath.Join(env.Dir, "files") // of all
	addresses := []string{takttest.FreeAddress(t), takttest.FreeAddress(t), takttest.FreeAddress(t)}
	start := func(i int, program string) *process.Controller {
		name := fmt.Sprintf("controller-%d", i+1)
		require.NoError(t, os.MkdirAll(files, 0o700))
		require.NoError(t, os.MkdirAll(filepath.Join(env.Dir, name), 0o700))
		if err := os.Symlink(files, filepath.Join(env.Dir, name, "files")); !errors.Is(err, os.ErrExist) {
			require.NoError(t, err)
		}
		env.Takt = program
		c, err := env.Controller(t.Context(), name, append(settings, "TAKT_LISTEN="+addresses[i])...)
		require.NoError(t, err)
		t.Cleanup(func() {
			if c.Alive() {
				require.NoError(t, c.Stop(context.WithoutCancel(t.Context()), takttest.Patience))
			}
			env.LogOnFailure(name, c.Process)
		})
		return c
	}
	release := buildCommit(t, dir, release010)
	first, second := start(0, release), start(1, release)
	old := []*process.Controller{first, second}
	b := startHAProxy(t, dir, addresses, client.Config{APIKey: first.APIKey, AdminKey: first.AdminKey})
	env.Install(first, takttest.PerSecond(1000), takttest.Portal)
	pem, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(pem))
	env.HTTP.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}

	c := &crew{c: b.through, handed: map[string]string{}}
	working, end := context.WithCancelCause(t.Context())
	dismiss := func() { end(errors.New("enough")) }
	defer dismiss()
	over := make(chan struct{})
	var fleet, senders sync.WaitGroup
	for i := range 100 {
		fleet.Go(func() { c.work(working, []*client.Client{b.through, b.plain}[i%2], false) })
	}
	for range 10 {
		senders.Go(func() { c.submit(working, over) })
	}
	var fired []string
	senders.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(50 * time.Millisecond):
			}
			id := fmt.Sprint("action ", len(fired))
			if !c.call(working, "webhook", func(ctx context.Context) error {
				if !env.Fire(ctx, b.through.BaseURL(), takttest.Portal, id) {
					// HubSpot repeats it, as one that was in flight at a killed controller.
					return &client.Error{Op: "webhook", Err: store.NewError(store.Unavailable, "not acknowledged")}
				}
				return nil
			}) {
				return
			}
			fired = append(fired, id)
		}
	})
	phase := func(name string, length time.Duration) (begun time.Time) {
		begun = time.Now()
		takttest.Pause(t.Context(), length)
		failed, most := c.since(begun)
		t.Logf("%s: at most %d polls in 5 s; %d calls that began then failed", name, most, len(failed))
		return begun
	}
	phase("two of 0.1.0", 8*time.Second)
	joined := time.Now()
	third := start(2, now) // migrates the database
	migrated := time.Now()
	phase("one of this release beside them", 15*time.Second)

	b.admin("set server takt/controller-1 state drain")
	phase("one of 0.1.0 drains", 2*time.Second)
	require.NoError(t, first.Stop(t.Context(), takttest.Patience))
	first = start(0, now)
	b.admin("set server takt/controller-1 state ready")
	phase("one of 0.1.0 beside two of this release", 15*time.Second)

	killed := time.Now()
	second.Kill()
	phase("the last one of 0.1.0 is killed", 5*time.Second)
	second = start(1, now)
	phase("only this release", 8*time.Second)

	close(over)
	senders.Wait()
	takttest.Eventually(t, "all is built", func() bool {
		return takttest.Answer(t, n, "SELECT count(*)::text FROM builds WHERE state <> 'completed'") == "0"
	})
	takttest.Eventually(t, "all actions are completed", func() bool {
		return takttest.Answer(t, n, "SELECT count(*)::text FROM action_executions WHERE state = 'waiting'") == "0" && env.HubSpot.Distinct() == len(fired)
	})
	dismiss()
	fleet.Wait()
	require.Empty(t, c.refused)
	require.Equal(t, fmt.Sprint(c.accepted), takttest.Answer(t, n, "SELECT count(*)::text FROM builds"))
	require.Equal(t, "0", takttest.Answer(t, n, "SELECT count(*)::text FROM build_logs WHERE kind = 'requeued'"))
	early := 0
	for _, f := range c.failed {
		if f.begun.After(killed.Add(-25*time.Second)) && f.begun.Before(killed.Add(250*time.Millisecond)) {
			continue
		}
		// While the new release migrates, 0.1.0 may refuse what needs it, to be repeated.
		if f.refused && f.begun.After(joined.Add(-25*time.Second)) && f.begun.Before(migrated) {
			continue
		}
		early++
		t.Logf("%s after one of this release joined: %s", f.begun.Sub(joined).Round(time.Millisecond), f.what)
	}
	for _, c := range old {
		for line := range strings.Lines(c.Output()) {
			if strings.Contains(line, `"level":"warn"`) || strings.Contains(line, `"level":"error"`) {
				t.Logf("0.1.0 said: %s", line)
			}
		}
	}
	t.Logf("%d builds and %d webhooks, %d calls failed", c.accepted, len(fired), len(c.failed))
	require.Zero(t, early, "only what was in flight at the killed one fails")
	b.requireCuts("controller-2", killed)
	found := takttest.Call(t, third, api.CheckInvariants, api.None{})
	for _, i := range found.Invariants {
		require.Zero(t, i.Broken, i.Promise)
	}
	for _, c := range []*process.Controller{first, second, third} {
		takttest.RequireWell(t, c)
	}
}

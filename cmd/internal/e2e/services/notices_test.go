package services

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/http/githubtest"
	"takt/store"
	"takt/store/storetest/needs"
)

// notice is what a receiver got.
type notice struct {
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
}

func (n notice) content(t *testing.T) (event, build string) {
	t.Helper()
	var c struct {
		Type string
		Data struct{ ID string }
	}
	require.NoError(t, json.Unmarshal([]byte(n.Body), &c))
	return c.Type, c.Data.ID
}

// receiver keeps the notices that it got, and answers them.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	got    []notice
	status func(n int) int // of the nth reply, from 0
}

func newReceiver(t *testing.T, status func(n int) int) *receiver {
	t.Helper()
	r := &receiver{status: status}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		n := notice{Headers: map[string]string{}, Body: string(body)}
		for _, name := range []string{"webhook-id", "webhook-timestamp", "webhook-signature"} {
			n.Headers[name] = q.Header.Get(name)
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(r.status(len(r.got)))
		r.got = append(r.got, n)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) notices() []notice {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]notice{}, r.got...)
}

// verify has the library check signatures, and returns how many it accepts.
func verify(t *testing.T, secret string, notices []notice) int {
	t.Helper()
	library := needs.Webhooks(t)
	const script = `const { Webhook } = require(process.argv[1]);
const { secret, notices } = JSON.parse(require("fs").readFileSync(0, "utf8"));
let good = 0;
for (const n of notices) { try { new Webhook(secret).verify(n.body, n.headers); good++ } catch (e) { console.error(String(e)) } }
console.log(good);`
	input, err := json.Marshal(map[string]any{"secret": secret, "notices": notices})
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "node", "-e", script, library)
	cmd.Stdin = bytes.NewReader(input)
	out, err := cmd.Output()
	require.NoError(t, err)
	var good int
	require.NoError(t, json.Unmarshal(out, &good))
	return good
}

func subscription(t *testing.T, c *process.Controller, id string) api.Subscription {
	t.Helper()
	s := takttest.Call(t, c, api.ShowSubscription, api.SubscriptionIn{ID: id})
	return s
}

// A controller is killed again and again while builds end: the receiver gets a notice of each
// build that ended, with one id, and none of a state that a build does not have.
func TestNoticesOfAKilledController(t *testing.T) {
	t.Parallel()
	needs.Webhooks(t)
	env := takttest.NewEnv(t)
	r := newReceiver(t, func(n int) int { return map[bool]int{true: 500, false: 204}[n == 0] })
	c := env.StartController("takt", "TAKT_NOTICE_ALLOW=127.0.0.1")
	made := takttest.Call(t, c, api.CreateSubscription, api.CreateSubscriptionIn{
		URL: r.URL, SubscriptionFilter: api.SubscriptionFilter{Labels: map[string]string{"team": "app"}},
	})
	// end ends a build that waits, in one of three ways.
	end := func(c *process.Controller, id string, way int) {
		if way == 0 {
			_, _ = c.Client.Cancel(t.Context(), id, "")
			return
		}
		w, err := c.Client.Register(t.Context(), api.Register{Name: "w", Capabilities: []byte(`{}`)})
		if err != nil {
			return
		}
		poll, err := c.Client.Poll(t.Context(), client.Poll{Token: w.AccessToken})
		if err != nil || poll.Job == nil {
			return
		}
		result := client.Bytes([]byte("app"))
		u := client.Upload{Held: client.Held{BuildID: poll.Job.ID, WorkerID: w.ID}, Success: way == 1, Result: &result}
		if way == 2 {
			u.Result, u.ErrorMessage = nil, "exit 1"
		}
		_, _ = c.Client.Upload(t.Context(), u)
	}
	labelled := map[string]bool{} // of all builds
	for range 3 {
		killed := sync.WaitGroup{}
		for i := range 7 {
			sent := client.Submit{Platform: store.Android, Source: client.Bytes(takttest.Zip(t, map[string]string{"a": "b"}))}
			if i > 0 {
				sent.Labels = map[string]string{"team": "app", "n": "x"}
			}
			b, err := c.Client.Submit(t.Context(), sent)
			require.NoError(t, err)
			labelled[b.ID] = i > 0
			if old := c; i > 3 { // killed in the midst of it
				killed.Go(func() { end(old, b.ID, i%3) })
			} else {
				end(old, b.ID, i%3)
			}
		}
		c.Kill()
		<-c.Done()
		killed.Wait()
		c = env.StartController("takt", "TAKT_NOTICE_ALLOW=127.0.0.1")
	}
	want, kinds := map[string]string{}, map[string]bool{} // the last event of each build that ended
	for id, yes := range labelled {
		if state := takttest.Status(t, c, id).State; yes && slices.Contains([]string{"completed", "failed", "cancelled"}, state) {
			want[id], kinds[state] = "build."+state, true
		}
	}
	require.Len(t, kinds, 3)
	got := func() map[string]string {
		found, ids := map[string]string{}, map[string]string{}
		for _, n := range r.notices() {
			event, build := n.content(t)
			id := n.Headers["webhook-id"]
			require.Equal(t, want[build], event, "no notice tells of a build that has not ended so, or that the filter leaves out")
			require.Contains(t, []string{"", id}, ids[build], "a repeat has the id of the first")
			found[build], ids[build] = event, id
		}
		return found
	}
	// What a killed controller was sending is sent again a minute later, at the next look of half a
	// minute, and nothing moves until then.
	require.Eventually(t, func() bool { return maps.Equal(got(), want) }, 5*time.Minute, 100*time.Millisecond, "each build that ended has its notice")
	require.Equal(t, len(r.notices()), verify(t, made.Secret, r.notices()))
	require.Zero(t, verify(t, "whsec_"+strings.Repeat("A", 44), r.notices()))
}

// The status of a commit is that of its newest build.
func TestGitHubStatuses(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	forge, _ := takttest.NewForge(t, 1)
	c := env.StartController("takt", "TAKT_NOTICE_ALLOW=127.0.0.1", "TAKT_PUBLIC_URL=https://ci.example.com/")
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte(githubtest.Token+"\n"), 0o600))
	id := env.Client(c, "notices", "create", forge.URL, "--github-token-file", token)
	commit := "from/r-000@" + githubtest.RefsOf(t, forge.Dir("from", "r-000"))["refs/heads/main"]
	source := filepath.Join(t.TempDir(), "source.zip")
	require.NoError(t, os.WriteFile(source, takttest.Zip(t, map[string]string{"a": "b"}), 0o600))
	var set []githubtest.Status
	submitted := func(state string) (build string) {
		out := env.Client(c, "submit", "--platform", "android", "--github", commit, source)
		build = regexp.MustCompile(`/builds/(\S+)`).FindStringSubmatch(out)[1]
		set = append(set, githubtest.Status{State: state, TargetURL: "https://ci.example.com/builds/" + build, Context: "takt/android"})
		return build
	}
	told := func() {
		t.Helper()
		takttest.Eventually(t, "the status is set", func() bool { return slices.Equal(set, forge.Statuses(commit)) })
	}
	cancelled := submitted("pending")
	told()
	takttest.Cancel(t, c, cancelled)
	set = append(set, set[0])
	set[1].State = "error"
	told()

	// A status that could not be set for a while, until there is a newer build.
	forge.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	old := submitted("pending")
	takttest.Eventually(t, "it was tried", func() bool {
		list := takttest.Call(t, c, api.ListDeliveries, api.ListDeliveriesIn{ID: id})
		return strings.Contains(list.Deliveries[0].Error, "503")
	})
	set = set[:2]
	forge.Intercept(func(w http.ResponseWriter, r *http.Request) bool { // the newer may be sent at once
		body, err := io.ReadAll(r.Body)
		if err != nil || bytes.Contains(body, []byte(old)) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		return false
	})
	build := submitted("pending")
	told()
	forge.Intercept(nil)
	takttest.Cancel(t, c, old)
	env.StartWorker(c, "w", `echo > "$TAKT_OUTPUT"`)
	set = append(set, githubtest.Status{State: "success", TargetURL: "https://ci.example.com/builds/" + build, Context: "takt/android"})
	takttest.Eventually(t, "the newest build has the last word", func() bool {
		all := forge.Statuses(commit)
		for _, is := range all[2:] {
			require.Equal(t, set[2].TargetURL, is.TargetURL)
		}
		return all[len(all)-1] == set[3]
	})

	_, err := env.TryClient(c, "submit", "--platform", "android", "--github", "from/r-000@main", source)
	require.ErrorContains(t, err, "not OWNER/REPO@SHA")
	_, err = env.TryClient(c, "notices", "rotate", id)
	require.Error(t, err)
	require.NotContains(t, c.Output(), githubtest.Token)
}

// The receivers that docs/notices.md shows take notices, and refuse those with another secret.
func TestDocsReceiversOfNotices(t *testing.T) {
	t.Parallel()
	needs.Webhooks(t)
	env := takttest.NewEnv(t)
	c := env.StartController("takt", "TAKT_NOTICE_ALLOW=127.0.0.1")
	text, err := os.ReadFile(takttest.File("docs", "notices.md"))
	require.NoError(t, err)
	dir := t.TempDir()
	for name, listen := range map[string][2]string{"go": {`":8081"`, `"127.0.0.1:%s"`}, "js": {"listen(8081)", `listen(%s, "127.0.0.1")`}} {
		shown := regexp.MustCompile("(?s)```"+name+"\n(.*?)```").FindAllStringSubmatch(string(text), -1)
		require.Len(t, shown, 1)
		require.Equal(t, 1, strings.Count(shown[0][1], listen[0]))
		for _, right := range []bool{true, false} {
			port := takttest.FreePort(t)
			url := fmt.Sprintf("http://127.0.0.1:%s/takt", port)
			secret := env.Client(c, "notices", "create", url)
			list := takttest.Call(t, c, api.ListSubscriptions, api.None{})
			id := list.Subscriptions[len(list.Subscriptions)-1].ID
			file := filepath.Join(dir, fmt.Sprintf("receiver%s.%s", port, name))
			require.NoError(t, os.WriteFile(file, []byte(strings.Replace(shown[0][1], listen[0], fmt.Sprintf(listen[1], port), 1)), 0o600))
			cmd := exec.CommandContext(t.Context(), "node", file)
			if name == "go" {
				program := strings.TrimSuffix(file, ".go")
				out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, file).CombinedOutput()
				require.NoError(t, err, string(out))
				cmd = exec.CommandContext(t.Context(), program)
			}
			if !right {
				secret = "whsec_" + strings.Repeat("A", 44)
			}
			cmd.Env = append(os.Environ(), "TAKT_NOTICE_SECRET="+secret, "NODE_PATH="+filepath.Dir(needs.Webhooks(t)))
			cmd.Stderr = os.Stderr
			require.NoError(t, cmd.Start())
			takttest.Eventually(t, "the receiver listens", func() bool {
				conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", "127.0.0.1:"+port)
				return err == nil && conn.Close() == nil
			})
			env.Client(c, "notices", "test", id)
			takttest.Eventually(t, name, func() bool {
				list := takttest.Call(t, c, api.ListDeliveries, api.ListDeliveriesIn{ID: id})
				d := list.Deliveries[0]
				return right && d.State == "delivered" || !right && d.State == "dead" && strings.Contains(d.Error, "400")
			})
			require.NoError(t, cmd.Process.Kill())
			_ = cmd.Wait()
		}
	}
}

// A receiver that is gone ends its subscription; a redirect is not followed; an address that
// is not public is refused; both secrets sign after a rotation.
func TestReceiversOfNotices(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt", "TAKT_NOTICE_ALLOW=127.0.0.1")
	create := func(url string) (id, secret string) {
		t.Helper()
		secret = env.Client(c, "notices", "create", url, "--event", "worker.offline")
		list := takttest.Call(t, c, api.ListSubscriptions, api.None{})
		return list.Subscriptions[len(list.Subscriptions)-1].ID, secret
	}
	try := func(id, state, text string) {
		t.Helper()
		env.Client(c, "notices", "test", id)
		takttest.Eventually(t, "the notice is "+state, func() bool {
			list := takttest.Call(t, c, api.ListDeliveries, api.ListDeliveriesIn{ID: id})
			return list.Deliveries[0].State == state && strings.Contains(list.Deliveries[0].Error, text)
		})
	}
	good := newReceiver(t, func(n int) int { return map[bool]int{true: 307, false: 200}[n == 0] })
	id, secret := create(good.URL)
	try(id, "dead", "307")
	require.Len(t, good.notices(), 1, "the redirect is not followed")
	require.Equal(t, "1 redriven", env.Client(c, "notices", "redrive", id))
	takttest.Eventually(t, "it is sent again", func() bool { return len(good.notices()) == 2 })
	require.Equal(t, good.notices()[0].Headers["webhook-id"], good.notices()[1].Headers["webhook-id"])
	fresh := env.Client(c, "notices", "rotate", id)
	require.NotEqual(t, secret, fresh)
	try(id, "delivered", "")
	last := good.notices()[2:]
	require.Equal(t, 1, verify(t, secret, last))
	require.Equal(t, 1, verify(t, fresh, last))

	gone := newReceiver(t, func(int) int { return http.StatusGone })
	id, _ = create(gone.URL)
	try(id, "dead", "410")
	require.False(t, subscription(t, c, id).Enabled)
	_, err := env.TryClient(c, "notices", "test", id)
	require.Error(t, err)
	env.Client(c, "notices", "enable", id)
	require.True(t, subscription(t, c, id).Enabled)
	env.Client(c, "notices", "delete", id)

	port := good.URL[strings.LastIndexByte(good.URL, ':'):]
	for _, hidden := range []string{"http://127.0.0.2" + port, "http://[::1]" + port, "http://169.254.169.254/latest"} {
		id, _ = create(hidden)
		try(id, "dead", "not a public address")
	}
	require.Len(t, good.notices(), 3)
}

// A receiver that hangs, and a worker that comes and goes, delay nobody else's notices.
func TestASlowReceiverDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt", "TAKT_NOTICE_ALLOW=127.0.0.1")
	var mu sync.Mutex
	hanging, ended := 0, make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		hanging++
		mu.Unlock()
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
		case <-ended:
		}
	}))
	t.Cleanup(slow.Close)
	t.Cleanup(func() { close(ended) })
	held := func() int {
		mu.Lock()
		defer mu.Unlock()
		return hanging
	}
	fast := newReceiver(t, func(int) int { return http.StatusNoContent })
	create := func(url string, events ...string) string {
		made := takttest.Call(t, c, api.CreateSubscription, api.CreateSubscriptionIn{URL: url, SubscriptionFilter: api.SubscriptionFilter{Events: events}})
		return made.ID
	}
	a := create(slow.URL, "build.cancelled", "worker.offline", "worker.back")
	create(fast.URL, "build.completed", "worker.offline", "worker.back")
	const builds = 40
	for range builds {
		b, err := c.Client.Submit(t.Context(), client.Submit{Platform: store.Android, Source: client.Bytes(takttest.Zip(t, nil))})
		require.NoError(t, err)
		takttest.Cancel(t, c, b.ID)
	}
	takttest.Eventually(t, "the receiver holds its places", func() bool { return held() >= 8 })
	const flaps = 150
	worker := ""
	for range flaps {
		w, err := c.Client.Register(t.Context(), api.Register{ID: worker, Name: "w", Capabilities: []byte(`{}`)})
		require.NoError(t, err)
		worker = w.ID
		_, err = c.Client.Unregister(t.Context(), w.AccessToken)
		require.NoError(t, err)
	}
	takttest.Eventually(t, "the other receiver gets its notice", func() bool { return len(fast.notices()) > 0 })
	require.Less(t, held(), builds, "the one that hangs has not got all of its own")
	require.LessOrEqual(t, len(fast.notices()), 5, "a worker that comes and goes makes few notices")
	require.LessOrEqual(t, subscription(t, c, a).Waiting, builds+5)
}

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
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

// verify has the specification's own library check signatures, and returns how many it accepts.
func verify(t *testing.T, secret string, notices []notice) int {
	t.Helper()
	library := os.Getenv("TAKT_TEST_WEBHOOKS")
	if library == "" {
		t.Skip("make test sets TAKT_TEST_WEBHOOKS to the library that verifies notices")
	}
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
	s, err := client.Call(t.Context(), c.Client, api.ShowSubscription, api.SubscriptionIn{ID: id})
	require.NoError(t, err)
	return s
}

// A controller is killed again and again while builds end: the receiver gets a notice of each
// build that ended, with one id, and none of a state that a build does not have.
func TestNoticesOfAKilledController(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := newReceiver(t, func(n int) int { return map[bool]int{true: 500, false: 204}[n == 0] })
	c := s.controller("takt", "TAKT_NOTICE_ALLOW=127.0.0.1")
	made, err := client.Call(t.Context(), c.Client, api.CreateSubscription, api.CreateSubscriptionIn{
		URL: r.URL, SubscriptionFilter: api.SubscriptionFilter{Events: []string{"build.cancelled"}, Labels: map[string]string{"team": "app"}},
	})
	require.NoError(t, err)
	ended := map[string]bool{}
	for round := range 3 {
		for i := range 6 {
			sent := client.Submit{Platform: store.Android, Source: client.Bytes(zipOf(t, map[string]string{"a": "b"}))}
			if i > 0 {
				sent.Labels = map[string]string{"team": "app", "n": "x"}
			}
			b, err := c.Client.Submit(t.Context(), sent)
			require.NoError(t, err)
			if i == 5 {
				go func() { _, _ = c.Client.Cancel(t.Context(), b.ID, "") }() // killed in the midst of it
				ended[b.ID] = false
				break
			}
			_, err = c.Client.Cancel(t.Context(), b.ID, "")
			require.NoError(t, err)
			if i > 0 {
				ended[b.ID] = true
			}
		}
		c.Kill()
		<-c.Done()
		c = s.controller("takt", "TAKT_NOTICE_ALLOW=127.0.0.1")
		_ = round
	}
	for id := range ended {
		ended[id] = status(t, c, id).Status != string(store.Pending)
	}
	ids := func() map[string]string { // of a build's notices
		found := map[string]string{}
		for _, n := range r.notices() {
			event, build := n.content(t)
			require.Equal(t, "build.cancelled", event)
			require.True(t, ended[build], "no notice tells of a build that has not ended, or that the filter leaves out")
			id := n.Headers["webhook-id"]
			if found[build] != "" {
				require.Equal(t, found[build], id, "a repeat has the id of the first")
			}
			found[build] = id
		}
		return found
	}
	want := 0
	for _, yes := range ended {
		if yes {
			want++
		}
	}
	eventually(t, "each build that ended has its notice", func() bool { return len(ids()) == want })
	require.Equal(t, len(r.notices()), verify(t, made.Secret, r.notices()))
	require.Zero(t, verify(t, "whsec_"+strings.Repeat("A", 44), r.notices()))
}

// A receiver that is gone ends its subscription; a redirect is not followed; an address that
// is not public is refused; both secrets sign after a rotation.
func TestReceiversOfNotices(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller("takt", "TAKT_NOTICE_ALLOW=127.0.0.1")
	create := func(url string) (id, secret string) {
		t.Helper()
		secret, err := s.takt(c, "notices", "create", url, "--event", "worker.offline")
		require.NoError(t, err, secret)
		list, err := client.Call(t.Context(), c.Client, api.ListSubscriptions, api.None{})
		require.NoError(t, err)
		return list.Subscriptions[len(list.Subscriptions)-1].ID, secret
	}
	try := func(id, state, text string) {
		t.Helper()
		out, err := s.takt(c, "notices", "test", id)
		require.NoError(t, err, out)
		eventually(t, "the notice is "+state, func() bool {
			list, err := client.Call(t.Context(), c.Client, api.ListDeliveries, api.ListDeliveriesIn{ID: id})
			require.NoError(t, err)
			return list.Deliveries[0].State == state && strings.Contains(list.Deliveries[0].Error, text)
		})
	}
	good := newReceiver(t, func(n int) int { return map[bool]int{true: 307, false: 200}[n == 0] })
	id, secret := create(good.URL)
	try(id, "dead", "307")
	require.Len(t, good.notices(), 1, "the redirect is not followed")
	b := newBrowser(t, c)
	b.login(c.AdminKey, "tester")
	b.open("/notices")
	b.sees("#n-"+id, good.URL)
	b.sees("#live-notices .error", "307")
	b.submit("#n-"+id+" form", nil)
	b.sees("main", "The notices are sent again.")
	eventually(t, "it is sent again", func() bool { return len(good.notices()) == 2 })
	b.sees("#n-"+id+" [data-label=Dead]", "0")
	require.Equal(t, good.notices()[0].Headers["webhook-id"], good.notices()[1].Headers["webhook-id"])
	fresh, err := s.takt(c, "notices", "rotate", id)
	require.NoError(t, err)
	require.NotEqual(t, secret, fresh)
	try(id, "delivered", "")
	last := good.notices()[2:]
	require.Equal(t, 1, verify(t, secret, last))
	require.Equal(t, 1, verify(t, fresh, last))

	gone := newReceiver(t, func(int) int { return http.StatusGone })
	id, _ = create(gone.URL)
	try(id, "dead", "410")
	require.False(t, subscription(t, c, id).Enabled)
	_, err = s.takt(c, "notices", "test", id)
	require.Error(t, err)
	out, err := s.takt(c, "notices", "redrive", id)
	require.NoError(t, err)
	require.Equal(t, "1 redriven", out)
	out, err = s.takt(c, "notices", "enable", id)
	require.NoError(t, err, out)
	require.True(t, subscription(t, c, id).Enabled)
	out, err = s.takt(c, "notices", "delete", id)
	require.NoError(t, err, out)

	port := good.URL[strings.LastIndexByte(good.URL, ':'):]
	for _, hidden := range []string{"http://127.0.0.2" + port, "http://[::1]" + port, "http://169.254.169.254/latest"} {
		id, _ = create(hidden)
		try(id, "dead", "not a public address")
	}
	require.Len(t, good.notices(), 3)
}

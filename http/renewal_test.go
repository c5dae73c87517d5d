package http_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/http/edge/edgetest"
	"takt/store"
	"takt/store/storetest/faketime"
)

// beating is a store whose worker number 7 has used the counter 3.
type beating struct{ *instant }

func (beating) Heartbeat(context.Context, store.Heartbeat) (store.HeartbeatReply, error) {
	return store.HeartbeatReply{Attempt: 1, Used: store.WorkerToken{Worker: 7, Counter: 3}}, nil
}

// A worker with all its slots taken does not poll, so its heartbeats renew its token.
func TestBeatsOfALongBuildRenewTheToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tokens *store.WorkerTokens
		ln, _ := setupFakeTime(t, func(d *takthttp.Deps) {
			tokens = tokensOf(t)
			d.Builds, d.Tokens = beating{}, tokens
		})
		post := func(path, token string) edgetest.Reply {
			return ln.Dial(t, "").Ask(edgetest.Request("POST "+path, "X-API-Key: "+apiKey, "X-Worker-Token: "+token, "Content-Length: 0"))
		}
		heartbeat := func(token string) api.HeartbeatReply {
			got := post("/api/builds/b/heartbeat?worker_id=w", token)
			require.Equal(t, 200, got.Status, got.Body)
			return decode[api.HeartbeatReply](t, reply{body: got.Body})
		}
		poll := func(token string) int { return post("/api/workers/poll", token).Status }
		first := tokens.Issue(store.WorkerToken{Worker: 7, Counter: 3})
		token := first
		for range 20 { // five minutes
			faketime.Pass(15 * time.Second)
			token = heartbeat(token).AccessToken
			require.NotEmpty(t, token)
		}
		require.Equal(t, 401, poll(first), "expired")
		require.Equal(t, 200, poll(token))
		renewed, err := tokens.Check(token)
		require.NoError(t, err)
		require.Equal(t, store.WorkerToken{Worker: 7, Counter: 3}, renewed, "the counter stays: the heartbeat is no poll")

		require.Empty(t, heartbeat(first).AccessToken, "expired")
		require.Empty(t, heartbeat("").AccessToken)
		require.Empty(t, heartbeat(token[:len(token)-1]+"_").AccessToken, "not signed here")
		require.Empty(t, heartbeat(tokens.Issue(store.WorkerToken{Worker: 8, Counter: 3})).AccessToken, "another worker's")
		require.Empty(t, heartbeat(tokens.Issue(store.WorkerToken{Worker: 7, Counter: 2})).AccessToken, "superseded")
	})
}

func TestBothHeartbeatsRenewTheToken(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	shown := key("X-Worker-Token", w.AccessToken)
	first := decode[api.HeartbeatReply](t, b.json("POST", "/api/builds/"+s.ID+"/heartbeat?worker_id="+w.ID, shown, ""))
	second := decode[api.BeatReply](t, b.json("POST", "/api/workers/heartbeat", shown, `{"build_id":"`+s.ID+`"}`))
	for _, token := range []string{first.AccessToken, second.AccessToken} {
		require.NotEmpty(t, token)
		require.Nil(t, b.poll(token).Job, "the worker has its build already")
	}
}

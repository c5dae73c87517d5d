package http

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/store"
)

// knownTokens are tokens of workers with a key of this test's own.
func knownTokens(tb testing.TB) *store.WorkerTokens {
	tb.Helper()
	tokens := store.NewWorkerTokens(time.Hour, make([]byte, 32))
	require.NoError(tb, tokens.Learn("here", time.Now()))
	return tokens
}

const testKey = "test-api-key-0123456789"

func TestPollReplyIsWhatTheWireTypeSays(t *testing.T) {
	t.Parallel()
	image := `image"<&>` + "\n"
	at := time.Date(2025, 11, 24, 17, 0, 0, 123456789, time.FixedZone("", 3600))
	certs := "/api/builds/b1/certs"
	job := func(id string, attempt int) *api.Job {
		return &api.Job{ID: id, Platform: "ios", SourceURL: "/api/builds/" + id + "/source", Attempt: attempt, BaseImageID: image, SubmittedAt: "2025-11-24T16:00:00.123Z"}
	}
	tests := map[string]struct {
		reply   store.PollReply
		several bool
		want    api.PollReply
	}{
		"no job, of several": {store.PollReply{Token: "tok"}, true, api.PollReply{AccessToken: "tok"}},
		"jobs": {
			store.PollReply{Token: "tok", Jobs: store.Jobs{{BuildID: "b1", Platform: store.IOS, Attempt: 1, SubmittedAt: at}, {BuildID: "b2", Platform: store.IOS, Attempt: 2, SubmittedAt: at}}},
			true,
			api.PollReply{AccessToken: "tok", Job: job("b1", 1), Jobs: []api.Job{*job("b1", 1), *job("b2", 2)}},
		},
		"no job": {store.PollReply{Token: "tok", QueueSize: 3}, false, api.PollReply{AccessToken: "tok", QueueSize: 3}},
		"job": {
			store.PollReply{Token: "tok", Jobs: store.Jobs{{BuildID: "b1", Platform: store.IOS, Attempt: 12, SubmittedAt: at}}},
			false,
			api.PollReply{AccessToken: "tok", Job: &api.Job{
				ID: "b1", Platform: "ios", SourceURL: "/api/builds/b1/source", Attempt: 12,
				BaseImageID: image, SubmittedAt: "2025-11-24T16:00:00.123Z",
			}},
		},
		"job with certs": {
			store.PollReply{Jobs: store.Jobs{{BuildID: "b1", Platform: store.Android, Attempt: 1, HasCerts: true, SubmittedAt: at}}},
			false,
			api.PollReply{Job: &api.Job{
				ID: "b1", Platform: "android", SourceURL: "/api/builds/b1/source", CertsURL: &certs, Attempt: 1,
				BaseImageID: image, SubmittedAt: "2025-11-24T16:00:00.123Z",
			}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, api.NewPollReply(tt.reply, tt.several, image))
		})
	}
}

func TestPollRequestIsRead(t *testing.T) {
	t.Parallel()
	tokens := knownTokens(t)
	seven := store.WorkerToken{Worker: 7, Counter: 9}
	token := tokens.Issue(seven)
	h := &polls{tokens: tokens}
	tests := map[string]struct {
		query, token string
		want         store.PollRequest
		wait         time.Duration
		code         store.Code
	}{
		"token":                       {"", token, store.PollRequest{Token: seven, Presented: token}, 0, ""},
		"worker id":                   {"worker_id=w", "", store.PollRequest{WorkerID: "w"}, 0, ""},
		"the token wins":              {"worker_id=w", token, store.PollRequest{Token: seven, Presented: token}, 0, ""},
		"a wrong token":               {"worker_id=w", "t", store.PollRequest{}, 0, store.InvalidToken},
		"neither":                     {"", "", store.PollRequest{}, 0, store.InvalidArgument},
		"id like a path":              {"worker_id=../w", "", store.PollRequest{}, 0, store.NotFound},
		"wait":                        {"wait=30", token, store.PollRequest{Token: seven, Presented: token}, 30 * time.Second, ""},
		"half a second":               {"wait=0.5", token, store.PollRequest{Token: seven, Presented: token}, time.Second / 2, ""},
		"longest wait":                {"wait=60", token, store.PollRequest{Token: seven, Presented: token}, time.Minute, ""},
		"too long":                    {"wait=61", token, store.PollRequest{}, 0, store.InvalidArgument},
		"negative":                    {"wait=-1", token, store.PollRequest{}, 0, store.InvalidArgument},
		"no number":                   {"wait=NaN", token, store.PollRequest{}, 0, store.InvalidArgument},
		"no builds":                   {"active=", token, store.PollRequest{Token: seven, Presented: token, Reconcile: true}, 0, ""},
		"builds":                      {"active=a,b", token, store.PollRequest{Token: seven, Presented: token, Reconcile: true, Active: []string{"a", "b"}}, 0, ""},
		"several":                     {"max=256", token, store.PollRequest{Token: seven, Presented: token, Max: 256}, 0, ""},
		"too many":                    {"max=257", token, store.PollRequest{}, 0, store.InvalidArgument},
		"none":                        {"max=0", token, store.PollRequest{}, 0, store.InvalidArgument},
		"something else than a build": {"active=a,%2e%2e%2fb", token, store.PollRequest{}, 0, store.InvalidArgument},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/workers/poll?"+tt.query, nil)
			if tt.token != "" {
				r.Header.Set("X-Worker-Token", tt.token)
			}
			got, wait, err := h.read(r)
			require.Equal(t, tt.code, store.CodeOf(err))
			if tt.code == "" {
				require.Equal(t, tt.want, got)
				require.Equal(t, tt.wait, wait)
			}
		})
	}
}

package client_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

func TestErrorReplies(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name      string
		status    int
		head      map[string]string
		body      string
		code      store.Code
		message   string
		wait      time.Duration
		temporary bool
	}{
		{
			"problem details", 404, nil,
			`{"type":"about:blank","title":"Not Found","status":404,"detail":"Build not found","error":"Build not found","code":"not_found","request_id":"r1"}`,
			store.NotFound, "Build not found", 0, false,
		},
		{
			"queue full with seconds", 503,
			map[string]string{"Retry-After": "7"},
			`{"error":"Build queue full, try again later","code":"queue_full"}`,
			store.QueueFull, "Build queue full, try again later", 7 * time.Second, true,
		},
		{
			"a date is taken against the reply's own clock", 503,
			map[string]string{"Retry-After": "Mon, 24 Nov 2025 16:00:30 GMT", "Date": "Mon, 24 Nov 2025 16:00:00 GMT"},
			`{"error":"x","code":"unavailable"}`, store.Unavailable, "x", 30 * time.Second, true,
		},
		{"an absurd wait is cut", 429, map[string]string{"Retry-After": "999999999"}, `{}`, store.Overloaded, "Too Many Requests", time.Hour, true},
		{"a wait that is no number", 429, map[string]string{"Retry-After": "-1 parsec"}, `{}`, store.Overloaded, "Too Many Requests", 0, true},
		{"old body, missing key", 401, nil, `{"error":"Missing X-API-Key header"}`, store.Unauthorized, "Missing X-API-Key header", 0, false},
		{"old body, wrong key", 403, nil, `{"error":"Invalid API key"}`, store.InvalidAPIKey, "Invalid API key", 0, false},
		{"old body, other worker", 403, nil, `{"error":"Build not assigned to this worker"}`, store.Forbidden, "Build not assigned to this worker", 0, false},
		{"details are shown", 422, nil, `{"error":"Registration failed","details":"name is missing"}`, store.RegistrationFailed, "Registration failed: name is missing", 0, false},
		{"a proxy's page", 502, nil, `<html>Bad gateway</html>`, store.Unavailable, "Bad Gateway", 0, true},
		{"a defect", 500, nil, `{"error":"Internal server error"}`, store.Internal, "Internal server error", 0, true},
		{"no body", 409, nil, ``, store.Conflict, "Conflict", 0, false},
		{"not implemented stays so", 501, nil, ``, store.Internal, "Not Implemented", 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, _ := setup(t, func(w http.ResponseWriter, r *http.Request) {
				for k, v := range tt.head {
					w.Header().Set(k, v)
				}
				reply(tt.status, tt.body)(w, r)
			})
			_, err := c.Status(t.Context(), "b1", client.BuildAuth{})
			var known *store.Error
			require.ErrorAs(t, err, &known)
			require.Equal(t, tt.code, known.Code)
			require.Equal(t, tt.message, known.Message)
			require.Equal(t, tt.wait, client.RetryAfter(err))
			require.Equal(t, tt.status, client.StatusOf(err))
			require.Equal(t, tt.temporary, client.Temporary(err))
			require.NotContains(t, err.Error(), apiKey)
		})
	}
}

func TestReplyThatIsNoJSON(t *testing.T) {
	t.Parallel()
	c, _ := setup(t, reply(200, `<html>`))
	_, err := client.Call(t.Context(), c, api.ShowHealth, api.None{})
	require.Equal(t, store.Internal, store.CodeOf(err))
	require.False(t, client.Temporary(err))
}

func TestReplyCutShortIsTemporary(t *testing.T) {
	t.Parallel()
	c, _ := setup(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte(`{"status":`))
	})
	_, err := client.Call(t.Context(), c, api.ShowHealth, api.None{})
	require.Equal(t, store.Unavailable, store.CodeOf(err))
	require.True(t, client.Temporary(err))
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	c := must(client.New(client.Config{BaseURL: "http://127.0.0.1:1", APIKey: apiKey}))(t)
	_, err := client.Call(t.Context(), c, api.ShowHealth, api.None{})
	require.Equal(t, store.Unavailable, store.CodeOf(err))
	require.Zero(t, client.StatusOf(err))
	require.True(t, client.Temporary(err))
}

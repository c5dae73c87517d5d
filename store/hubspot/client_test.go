package hubspot_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store/hubspot"
)

func TestAnswersMeanWhatHubSpotMeans(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		header map[string]string
		body   string
		kind   hubspot.Kind
		pause  time.Duration
	}{
		"done":                      {status: 204, kind: hubspot.Done},
		"a token that is none":      {status: 401, kind: hubspot.BadToken},
		"429 with Retry-After":      {status: 429, header: map[string]string{"retry-after": "7"}, kind: hubspot.Wait, pause: 7 * time.Second},
		"429 of a second":           {status: 429, body: `{"policyName":"SECONDLY"}`, kind: hubspot.Wait, pause: time.Second},
		"429 of ten seconds":        {status: 429, body: `{"policyName":"TEN_SECONDLY_ROLLING"}`, kind: hubspot.Wait, pause: 10 * time.Second},
		"429 of the day":            {status: 429, body: `{"policyName":"DAILY"}`, kind: hubspot.Wait, pause: 15 * time.Minute},
		"423":                       {status: 423, kind: hubspot.Wait, pause: 2 * time.Second},
		"477 for longer than a day": {status: 477, header: map[string]string{"RETRY-AFTER": "100000"}, kind: hubspot.Wait, pause: 24 * time.Hour},
		"403 in HTML":               {status: 403, body: "<html>ray id 1</html>", kind: hubspot.Blocked},
		"400":                       {status: 400, body: `{"message":"no"}`, kind: hubspot.Refused},
		"a redirect":                {status: 302, header: map[string]string{"Location": "http://127.0.0.1:1/"}, kind: hubspot.Refused},
		"500":                       {status: 500, kind: hubspot.Broken},
		"523":                       {status: 523, body: "<html>", kind: hubspot.Broken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for k, v := range c.header {
					w.Header()[k] = []string{v}
				}
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			}))
			defer srv.Close()
			client := hubspot.NewClient(hubspot.Config{API: srv.URL})
			defer client.CloseIdle()
			a := client.Complete(t.Context(), "token", []hubspot.Completion{{CallbackID: "c"}})
			require.Equal(t, c.kind, a.Kind())
			if c.kind == hubspot.Wait {
				require.Equal(t, c.pause, a.Pause())
			}
			require.NotContains(t, a.String(), "token")
		})
	}
}

func TestErrorsRepeatNoSecrets(t *testing.T) {
	t.Parallel()
	for _, filler := range []string{"no:", "no:" + strings.Repeat("-", 185)} { // the second is cut within a secret
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			message := filler + strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			for _, name := range []string{"code", "refresh_token", "client_secret"} {
				message += r.PostFormValue(name)
			}
			message += strings.TrimPrefix(r.URL.Path, "/oauth/v1/access-tokens/")
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]string{"message": message})
		}))
		defer srv.Close()
		client := hubspot.NewClient(hubspot.Config{API: srv.URL})
		defer client.CloseIdle()
		app := hubspot.App{ClientSecret: "hush-client"}
		said := []string{client.Complete(t.Context(), "hush-access", nil).String()}
		_, err := client.Whose(t.Context(), "hush-access")
		said = append(said, err.Error())
		_, err = client.Refresh(t.Context(), app, "hush-refresh")
		said = append(said, err.Error())
		_, err = client.Exchange(t.Context(), app, "hush-code")
		for _, text := range append(said, err.Error()) {
			require.Contains(t, text, "HubSpot said 400: no:")
			require.NotContains(t, text, "hush")
		}
	}
}

func TestNoAnswerIsSilence(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	defer srv.Close()
	defer close(over)
	client := hubspot.NewClient(hubspot.Config{API: srv.URL, Timeout: 50 * time.Millisecond})
	defer client.CloseIdle()
	a := client.Complete(t.Context(), "token", nil)
	require.Equal(t, hubspot.Silent, a.Kind())
	require.NotContains(t, a.String(), srv.URL)
	_, err := client.Whose(t.Context(), "very-secret")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "very-secret")
}

func TestCompleteSendsWhatHubSpotWants(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body json.RawMessage
		_ = json.NewDecoder(r.Body).Decode(&body)
		got <- r.Method + " " + r.URL.Path + " " + r.Header.Get("Authorization") + " " + string(body)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer srv.Close()
	client := hubspot.NewClient(hubspot.Config{API: srv.URL + "/"})
	defer client.CloseIdle()
	a := client.Complete(t.Context(), "T", []hubspot.Completion{{"c1", hubspot.OutputFields{State: hubspot.Success}}})
	require.True(t, a.OK())
	require.Equal(t, `POST /automation/v4/actions/callbacks/complete Bearer T {"inputs":[{"callbackId":"c1","outputFields":{"hs_execution_state":"SUCCESS"}}]}`, <-got)
}

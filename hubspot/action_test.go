package hubspot_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/hubspot"
	"takt/store"
)

const sample = `{"callbackId":"ap-102670506-56777914962-11-0",
 "origin":{"portalId":102670506,"actionDefinitionId":10860211,"actionDefinitionVersion":1,
  "actionExecutionIndexIdentifier":{"enrollmentId":56777914962,"actionExecutionIndex":0}},
 "context":{"source":"WORKFLOWS","workflowId":192814114,"actionId":3},
 "object":{"objectId":614,"objectType":"CONTACT","properties":{}},
 "fields":{},"inputFields":{"maxThroughPut":"10","time":"1","period":"seconds"}}`

func TestParseAction(t *testing.T) {
	t.Parallel()
	a, err := hubspot.ParseAction([]byte(sample))
	require.NoError(t, err)
	require.Equal(t, "ap-102670506-56777914962-11-0", a.CallbackID)
	require.Equal(t, "queue:102670506:192814114:10860211:0", a.Queue.ID())

	a, err = hubspot.ParseAction([]byte(`{"callbackId":"c","origin":{"portalId":1,"actionDefinitionId":2}}`))
	require.NoError(t, err)
	require.Equal(t, "queue:1:unknown:2:0", a.Queue.ID(), "context, object and fields may be absent")
}

func TestParseActionRefuses(t *testing.T) {
	t.Parallel()
	for what, body := range map[string]string{
		"no JSON":                   `{"callbackId":`,
		"a list":                    `[]`,
		"no callback":               `{"origin":{"portalId":1,"actionDefinitionId":2}}`,
		"an empty callback":         `{"callbackId":"","origin":{"portalId":1,"actionDefinitionId":2}}`,
		"a callback that is none":   `{"callbackId":7,"origin":{"portalId":1,"actionDefinitionId":2}}`,
		"a callback with NUL":       `{"callbackId":"a\u0000","origin":{"portalId":1,"actionDefinitionId":2}}`,
		"a long callback":           `{"callbackId":"` + strings.Repeat("x", 256) + `","origin":{"portalId":1,"actionDefinitionId":2}}`,
		"no origin":                 `{"callbackId":"c"}`,
		"no portal":                 `{"callbackId":"c","origin":{"actionDefinitionId":2}}`,
		"a portal that is none":     `{"callbackId":"c","origin":{"portalId":"x","actionDefinitionId":2}}`,
		"a fraction":                `{"callbackId":"c","origin":{"portalId":1.5,"actionDefinitionId":2}}`,
		"no definition":             `{"callbackId":"c","origin":{"portalId":1}}`,
		"the older load script's":   `{"callbackId":"c","portalId":1,"actionId":2}`,
		"a colon in the workflow":   `{"callbackId":"c","origin":{"portalId":1,"actionDefinitionId":2},"context":{"workflowId":"1:2"}}`,
		"no throughput":             `{"callbackId":"c","origin":{"portalId":1,"actionDefinitionId":2},"inputFields":{"maxThroughPut":"0"}}`,
		"a throughput that is none": `{"callbackId":"c","origin":{"portalId":1,"actionDefinitionId":2},"inputFields":{"maxThroughPut":"ten"}}`,
		"a negative time":           `{"callbackId":"c","origin":{"portalId":1,"actionDefinitionId":2},"inputFields":{"time":-1}}`,
		"an unknown period":         `{"callbackId":"c","origin":{"portalId":1,"actionDefinitionId":2},"inputFields":{"period":"eons"}}`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			_, err := hubspot.ParseAction([]byte(body))
			require.Equal(t, store.InvalidArgument, store.CodeOf(err), "%v", err)
		})
	}
}

func FuzzParseAction(f *testing.F) {
	f.Add([]byte(sample))
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := hubspot.ParseAction(body)
		if err != nil {
			require.Equal(t, store.InvalidArgument, store.CodeOf(err))
			return
		}
		require.Positive(t, a.Queue.PortalID)
		require.Equal(t, 4, strings.Count(a.Queue.ID(), ":"))
		require.NotContains(t, a.CallbackID, "\x00")
	})
}

func TestDurationIsISO8601(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"PT1S": 0, "PT15M": 15 * time.Minute, "PT1H": time.Hour, "P7D": 7 * 24 * time.Hour,
		"P1DT2H3M4S": 26*time.Hour + 3*time.Minute + 4*time.Second, "PT1M1S": 61*time.Second + 999*time.Millisecond,
	} {
		require.Equal(t, want, hubspot.Duration(d))
	}
}

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

package hubspot_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/hubspot"
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
		"a callback with DEL":       `{"callbackId":"a\u007f","origin":{"portalId":1,"actionDefinitionId":2}}`,
		"a long callback":           `{"callbackId":"` + strings.Repeat("x", 256) + `","origin":{"portalId":1,"actionDefinitionId":2}}`,
		"no origin":                 `{"callbackId":"c"}`,
		"no portal":                 `{"callbackId":"c","origin":{"actionDefinitionId":2}}`,
		"a portal that is none":     `{"callbackId":"c","origin":{"portalId":"x","actionDefinitionId":2}}`,
		"a fraction":                `{"callbackId":"c","origin":{"portalId":1.5,"actionDefinitionId":2}}`,
		"no definition":             `{"callbackId":"c","origin":{"portalId":1}}`,
		"the older load script's":   `{"callbackId":"c","portalId":1,"actionId":2}`,
		"a colon in the workflow":   `{"callbackId":"c","origin":{"portalId":1,"actionDefinitionId":2},"context":{"workflowId":"1:2"}}`,
		"a slash in the workflow":   `{"callbackId":"c","origin":{"portalId":1,"actionDefinitionId":2},"context":{"workflowId":"1/2"}}`,
		"a colon in the index":      `{"callbackId":"c","origin":{"portalId":1,"actionDefinitionId":2,"actionExecutionIndexIdentifier":{"actionExecutionIndex":"1:2"}}}`,
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
	for _, body := range []string{
		sample, `{"callbackId":"c","origin":{"portalId":1,"actionDefinitionId":2}}`, `{"callbackId":"\u0000","origin":null}`,
		`{"callbackId":"c","origin":{"portalId":"1","actionDefinitionId":2e0},"context":{"workflowId":"a:b"},"inputFields":{"time":[],"period":"days"}}`,
		`{"callbackId":"c","callback\u0049d":"d","origin":{"portalId":9223372036854775808,"actionDefinitionId":-0}}`, `[[[[`, `nul`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := hubspot.ParseAction(body)
		if err != nil {
			require.Equal(t, store.InvalidArgument, store.CodeOf(err))
			return
		}
		require.Positive(t, a.Queue.PortalID)
		require.Equal(t, 4, strings.Count(a.Queue.ID(), ":"))
		require.Positive(t, a.Queue.ActionID)
		require.NotContains(t, a.CallbackID+a.Queue.ID(), "\x00")
		require.True(t, utf8.ValidString(a.CallbackID+a.Queue.ID()))
		require.NotEmpty(t, a.CallbackID)
		require.LessOrEqual(t, len(a.CallbackID), 255)

		var top, origin map[string]json.RawMessage
		var name, portal any
		require.NoError(t, json.Unmarshal(body, &top))
		require.NoError(t, json.Unmarshal(top["callbackId"], &name))
		require.Equal(t, name, a.CallbackID)
		require.NoError(t, json.Unmarshal(top["origin"], &origin))
		require.NoError(t, json.Unmarshal(origin["portalId"], &portal))
		if n, ok := portal.(float64); ok {
			require.InEpsilon(t, n, a.Queue.PortalID, 1e-9)
		}
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

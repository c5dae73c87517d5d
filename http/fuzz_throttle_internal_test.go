package http

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/store"
)

func FuzzThrottleConfig(f *testing.F) {
	for _, body := range []string{
		`{"portal_id":62515,"action_id":"7","max_throughput":"10","time_period":1,"time_unit":"seconds"}`,
		`{"portalId":1,"actionDefinitionId":2,"maxThroughPut":" 3 ","time":"1","period":"days"}`,
		`{"portal_id":0,"action_id":-1,"max_throughput":1.5,"time_period":1e3,"time_unit":7}`,
		`{"portal_id":9223372036854775808,"action_id":"٣","max_throughput":"+1","time_period":"0x1","time_unit":"DAY"}`,
		`{"portal_id":null,"portalId":[1]}`, `{}`, `null`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var b map[string]json.RawMessage
		if json.Unmarshal(body, &b) != nil {
			return
		}
		c, err := api.ReadThrottleConfig(b)
		if err != nil {
			require.Equal(t, store.InvalidArgument, store.CodeOf(err), "%v", err)
			return
		}
		require.NoError(t, c.Validate())
		require.Positive(t, c.PortalID)
		require.Positive(t, c.ActionID)
		require.Positive(t, c.MaxThroughput)
		require.Positive(t, c.TimePeriod)
		require.Contains(t, []store.TimeUnit{store.Second, store.Minute, store.Hour, store.Day}, c.TimeUnit)
		again, err := json.Marshal(api.NewThrottleConfig(c))
		require.NoError(t, err)
		var same map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(again, &same))
		read, err := api.ReadThrottleConfig(same)
		require.NoError(t, err, "what is answered can be sent: %s", again)
		require.Equal(t, c, read)
	})
}

package builds

import (
	"bufio"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/takttest"
	takthttp "takt/http"
	"takt/http/client"
	"takt/http/openapitest"
)

// A build's life, and a restart in the tree, as they are published. Each
// event is as the OpenAPI document describes it.
func TestWhatHappensIsTold(t *testing.T) {
	t.Parallel()
	document, err := openapitest.Load(t.Context(), takthttp.OpenAPI())
	require.NoError(t, err)
	schemas := map[string]string{
		"queue:updated": "QueueUpdated", "job:available": "JobAvailable", "build:assigned": "BuildAssigned",
		"build:updated": "BuildUpdated", "worker:updated": "WorkerUpdated", "supervisor:event": "SupervisorEvent",
	}
	require.ElementsMatch(t, takthttp.Topics(), slices.Collect(maps.Keys(schemas)))

	c := takttest.NewEnv(t).StartController("takt")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL+"/api/events", nil)
	require.NoError(t, err)
	req.Header.Set("X-API-Key", c.APIKey)
	resp, err := (&http.Client{Transport: client.NewTransport()}).Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)

	w := takttest.Register(t, c, 1)
	id := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"x": "y"}))
	require.Equal(t, id, w.Poll(t).ID)
	_, err = c.Client.Cancel(t.Context(), id, "")
	require.NoError(t, err)
	_, err = c.Client.Operate(t.Context(), client.Order{Action: "restart", Path: "takt/orchestration/heartbeat_monitor", Reason: "to see it published"})
	require.NoError(t, err)

	topic, published := "", map[string]string{}
	for lines := bufio.NewScanner(resp.Body); len(published) < len(schemas) && lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "event":
			topic = value
		case "data":
			require.NoError(t, document.Schema(schemas[topic], []byte(value)), topic)
			require.NoError(t, document.Event("/api/events", []byte(value)), topic)
			published[topic] += value
		}
	}
	require.Len(t, published, len(schemas))
	require.Contains(t, published["build:assigned"], id)
	require.JSONEq(t, `{"platform":"android"}`, published["job:available"], "once")
}

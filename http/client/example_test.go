package client_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"takt/http/api"
	"takt/http/client"
	"takt/store/backoff"
)

// A call is made once; what may be repeated is the caller's decision.
func ExampleRetry_Do() {
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls++; calls < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprint(w, `{"id":"b1","status":"completed","state":"completed"}`)
	}))
	defer server.Close()

	c, err := client.New(client.Config{BaseURL: server.URL, APIKey: "an-api-key-of-16-chars"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.CloseIdle()
	retry := client.Retry{Backoff: backoff.Backoff{Min: time.Millisecond}, Patience: time.Minute}
	var status api.BuildStatus
	err = retry.Do(context.Background(), func(ctx context.Context) (err error) {
		status, err = c.Status(ctx, "b1", client.BuildAuth{})
		return err
	})
	fmt.Println(status.State, calls, err)
	// Output: completed 3 <nil>
}

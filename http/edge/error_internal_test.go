package edge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestEachCodeHasItsStatus(t *testing.T) {
	t.Parallel()
	for code, status := range map[store.Code]int{
		store.Unauthorized: 401, store.InvalidAPIKey: 403, store.InvalidToken: 401, store.Forbidden: 403,
		store.NotFound: 404, store.NotAssigned: 403, store.StaleAttempt: 409, store.InvalidArgument: 400,
		store.InvalidState: 400, store.Conflict: 409, store.RegistrationFailed: 422,
		store.MethodNotAllowed: 405, store.UnsupportedMedia: 415, store.TooLarge: 413, store.QueueFull: 503,
		store.PreconditionFailed: 412, store.RangeNotSatisfied: 416, store.Overloaded: 503, store.RateLimited: 429, store.KeyQueueFull: 429, store.KeyClassesFull: 429, store.PriorityTooHigh: 403, store.CertsUnusable: 422,
		store.UnknownSecret: 422, store.InvalidSecret: 400, store.SecretNotYours: 403, store.SecretsNotYours: 403, store.SecretGone: 422, store.DiskFull: 507, store.Unavailable: 503, store.Internal: 500, "new": 500,
	} {
		p, retry := ProblemOf(fmt.Errorf("doing: %w", store.NewError(code, "Text")), "id")
		require.Equal(t, status, p.Status, code)
		require.Equal(t, http.StatusText(status), p.Title, code)
		require.Equal(t, p.Detail, p.Error, code)
		require.Equal(t, status == 429 || status == 503, retry > 0, code)
		if status == 500 {
			require.Equal(t, "Internal server error", p.Error, code)
			require.Equal(t, "internal", p.Code, code)
		} else {
			require.Equal(t, "Text", p.Error, code)
			require.Equal(t, string(code), p.Code)
		}
	}
}

func TestErrorsReadAsSentences(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"limit must be a positive whole number": "Invalid request: limit must be a positive whole number",
		"Source file required":                  "Source file required",
		"worker_id required":                    "worker_id required",
		"build_id and worker_id required":       "build_id and worker_id required",
	} {
		p, _ := ProblemOf(Invalid(text), "id")
		require.Equal(t, want, p.Error)
		require.Equal(t, want, p.Detail)
	}
}

func TestOtherErrorsShowNothing(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		err    error
		status int
		text   string
	}{
		"any error":         {errors.New("password=hunter2"), 500, "Internal server error"},
		"a deadline":        {fmt.Errorf("x: %w", context.DeadlineExceeded), 503, "The request was given up, try again later"},
		"a cancellation":    {context.Canceled, 503, "The request was given up, try again later"},
		"unknown route":     {echo.ErrNotFound, 404, "Not found"},
		"unknown method":    {echo.ErrMethodNotAllowed, 405, "Method not allowed"},
		"other echo errors": {echo.ErrTeapot, 500, "Internal server error"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := ProblemOf(tt.err, "id")
			require.Equal(t, tt.status, p.Status)
			require.Equal(t, tt.text, p.Error)
		})
	}
}

func TestRetryAfterIsTheErrorsOwn(t *testing.T) {
	t.Parallel()
	_, retry := ProblemOf(&store.Error{Code: store.Unavailable, RetryAfter: 7 * time.Second}, "")
	require.Equal(t, 7*time.Second, retry)
}

func TestRequestIDsOfClientsMustBeSane(t *testing.T) {
	t.Parallel()
	for id, sane := range map[string]bool{
		"": false, "a": true, "01JD-x_y.z:1": true, "a b": false, "a\n": false, "ä": false, `"`: false,
		string(make([]byte, 129)): false,
	} {
		require.Equal(t, sane, saneRequestID(id), "%q", id)
	}
}

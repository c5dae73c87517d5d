package forge

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-github/v75/github"

	"takt/store/backoff"
)

// Error is a failure that a retry does not fix. Message may be shown to users, because it
// holds no secret.
type Error struct {
	Message string
	// Status is the forge's HTTP status, 0 if there was none.
	Status int
	Err    error

	passing bool // a retry may help after all
}

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Message is err's text for users.
func Message(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Message
	}
	return "Internal error" // the log has the details
}

// class is how to handle an answer.
type class uint8

const (
	broken  class = iota // retry a few times
	limited              // wait until the given time, or for a while if it is zero
	final
)

// classify classifies a call's failure. go-github is not enough for that: it knows
// neither 429 nor a Retry-After with a date, and it detects secondary limits by a link
// that not every server sends.
func classify(resp *github.Response, err error, now time.Time) (class, time.Time) {
	if resp == nil || resp.Response == nil {
		return broken, time.Time{} // no answer
	}
	if until, ok := limit(resp.StatusCode, resp.Header, err.Error(), now); ok {
		return limited, until
	}
	if resp.StatusCode >= 500 || resp.StatusCode < 300 || resp.StatusCode == http.StatusRequestTimeout {
		return broken, time.Time{} // a status below 300 here means an incomplete answer, or work that continues (202)
	}
	return final, time.Time{}
}

// limit reports whether an answer is a rate limit, and until when it holds. until is zero
// if the answer does not say. See GitHub's "Rate limits for the REST API".
func limit(status int, h http.Header, text string, now time.Time) (until time.Time, ok bool) {
	if status != http.StatusForbidden && status != http.StatusTooManyRequests {
		return time.Time{}, false
	}
	if asked, ok := backoff.RetryAfter(h.Get("Retry-After"), now); ok {
		return bounded(now.Add(asked), now), true
	}
	if h.Get("X-Ratelimit-Remaining") == "0" {
		reset, err := strconv.ParseInt(h.Get("X-Ratelimit-Reset"), 10, 64)
		if err == nil && reset > 0 {
			return bounded(time.Unix(reset, 0).Add(time.Second), now), true
		}
		return time.Time{}, true
	}
	return time.Time{}, status == http.StatusTooManyRequests || strings.Contains(strings.ToLower(text), "secondary rate limit")
}

// longestPause is the longest pause that a forge can demand. The window of a primary
// limit is one hour.
const longestPause = 2 * time.Hour

func bounded(until, now time.Time) time.Time {
	if until.After(now.Add(longestPause)) {
		return now.Add(longestPause)
	}
	return until
}

// refusals are the reasons shown to users, by status; 0 is for no answer.
var refusals = map[int]string{
	0:                              "the forge does not answer",
	http.StatusUnauthorized:        "the credential is not valid",
	http.StatusForbidden:           "the credential does not allow it",
	http.StatusNotFound:            "there is no such thing, or the credential can't see it",
	http.StatusUnprocessableEntity: "the forge refuses it",
}

// explain makes an error for users from a final answer. doing is the attempted work, such
// as "Listing the repositories of an organisation".
func explain(doing string, resp *github.Response, err error) error {
	status := 0
	if resp != nil && resp.Response != nil {
		status = resp.StatusCode
	}
	said := ""
	if e, ok := errors.AsType[*github.ErrorResponse](err); ok {
		said = e.Message
		for _, detail := range e.Errors {
			if detail.Message != "" {
				said += "; " + detail.Message
			}
		}
	}
	why, ok := refusals[status]
	if !ok {
		why = fmt.Sprintf("the forge answers %d", status)
	}
	if said != "" {
		why += " (" + strings.ToValidUTF8(said[:min(len(said), 300)], "") + ")"
	}
	return &Error{Message: doing + " failed: " + why, Status: status, Err: err}
}

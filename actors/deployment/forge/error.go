package forge

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-github/v75/github"
)

// Error is a failure that trying again does not mend. Message is fit for users:
// it holds no secret.
type Error struct {
	Message string
	// Status is the forge's HTTP status, 0 if there was none.
	Status int
	Err    error

	passing bool // trying again may mend it after all
}

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Message is err as a user may see it.
func Message(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Message
	}
	return "Internal error" // the log has it
}

// class says what to do about an answer.
type class uint8

const (
	broken  class = iota // try again a few times
	limited              // wait until the time given, or for a while if it is zero
	final
)

// classify judges how a call failed. go-github does not say enough for that: it
// knows neither 429 nor a Retry-After that is a date, and tells secondary limits
// by a link that not every server gives.
func classify(resp *github.Response, err error, now time.Time) (class, time.Time) {
	if resp == nil || resp.Response == nil {
		return broken, time.Time{} // no answer
	}
	if until, ok := limit(resp.StatusCode, resp.Header, err.Error(), now); ok {
		return limited, until
	}
	if resp.StatusCode >= 500 || resp.StatusCode < 300 || resp.StatusCode == http.StatusRequestTimeout {
		return broken, time.Time{} // below 300 it is half an answer, or work that goes on (202)
	}
	return final, time.Time{}
}

// limit reports whether an answer is a rate limit, and until when; the zero time
// if it does not say. See GitHub's "Rate limits for the REST API".
func limit(status int, h http.Header, text string, now time.Time) (until time.Time, ok bool) {
	if status != http.StatusForbidden && status != http.StatusTooManyRequests {
		return time.Time{}, false
	}
	if until, ok := retryAfter(h.Get("Retry-After"), now); ok {
		return until, true
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

// retryAfter reads the header of RFC 9110, section 10.2.3.
func retryAfter(v string, now time.Time) (time.Time, bool) {
	if v == "" {
		return time.Time{}, false
	}
	if s, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64); err == nil && s >= 0 {
		return bounded(now.Add(time.Duration(min(s, 1<<20))*time.Second), now), true
	}
	if t, err := http.ParseTime(v); err == nil {
		return bounded(t, now), true
	}
	return time.Time{}, false
}

// longestPause bounds what a forge can ask for; a primary limit's window is an
// hour.
const longestPause = 2 * time.Hour

func bounded(until, now time.Time) time.Time {
	if until.After(now.Add(longestPause)) {
		return now.Add(longestPause)
	}
	return until
}

// explain turns a final answer into words. doing says what was tried, such as
// "Listing the repositories of an organisation".
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
	why := ""
	switch status {
	case http.StatusUnauthorized:
		why = "the credential is not valid"
	case http.StatusForbidden:
		why = "the credential does not allow it"
	case http.StatusNotFound:
		why = "there is no such thing, or the credential can't see it"
	case http.StatusUnprocessableEntity:
		why = "the forge refuses it"
	case 0:
		why = "the forge does not answer"
	default:
		why = fmt.Sprintf("the forge answers %d", status)
	}
	if said != "" {
		why += " (" + strings.ToValidUTF8(said[:min(len(said), 300)], "") + ")"
	}
	return &Error{Message: doing + " failed: " + why, Status: status, Err: err}
}

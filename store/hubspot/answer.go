package hubspot

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"takt/store"
	"takt/store/backoff"
)

var errNoAnswer = errors.New("HubSpot did not answer in time")

// statusMoving is a status of HubSpot that net/http has no name for.
const statusMoving = 477

// Answer is what HubSpot said.
type Answer struct {
	// Status is 0 if there was no answer; Err is why.
	Status int
	Body   []byte
	Err    error
	// RetryAfter is the wait that HubSpot demands, 0 without one.
	RetryAfter time.Duration
	// Remaining is how many more calls the portal may make in Interval, -1 if HubSpot
	// does not say.
	Remaining int
	Interval  time.Duration
	// message and policy are the fields of HubSpot's error body, empty if the body is not
	// HubSpot's.
	message, policy string
}

// Kind is what an answer means.
type Kind uint8

// The kinds.
const (
	// Done: HubSpot did what was asked.
	Done Kind = iota
	// BadToken: 401. The token may have been revoked.
	BadToken
	// Wait: nothing was done, and nothing is wrong; try again after Answer.Pause.
	Wait
	// Blocked: 403 from HubSpot or from its edge servers. Nothing was done.
	Blocked
	// Refused: HubSpot rejects this request, and a retry will not help.
	Refused
	// Broken: HubSpot failed. The request may have been carried out.
	Broken
	// Silent: there was no answer. The request may have been carried out, or may still
	// be.
	Silent
)

// String names the kind for metrics.
func (k Kind) String() string {
	return [...]string{"done", "bad_token", "wait", "blocked", "refused", "broken", "silent"}[k]
}

func newAnswer(status int, h http.Header, body []byte) Answer {
	a := Answer{Status: status, Body: body, Remaining: -1}
	asked, _ := backoff.RetryAfter(h.Get("Retry-After"), time.Now())
	a.RetryAfter = min(asked, 24*time.Hour)
	if n, err := strconv.Atoi(h.Get("X-Hubspot-Ratelimit-Remaining")); err == nil && n >= 0 {
		a.Remaining = n
	}
	if n, err := strconv.Atoi(h.Get("X-Hubspot-Ratelimit-Interval-Milliseconds")); err == nil && n > 0 {
		a.Interval = min(time.Duration(n)*time.Millisecond, time.Hour)
	}
	if a.OK() {
		return a
	}
	var e struct {
		Message string `json:"message"`
		Policy  string `json:"policyName"`
	}
	if json.Unmarshal(body, &e) == nil {
		a.message, a.policy = e.Message, e.Policy
	}
	return a
}

// OK reports whether HubSpot did what was asked.
func (a Answer) OK() bool { return a.Status >= 200 && a.Status <= 299 }

// Kind returns the meaning of the answer.
func (a Answer) Kind() Kind {
	switch s := a.Status; {
	case s == 0:
		return Silent
	case a.OK():
		return Done
	case s == http.StatusUnauthorized:
		return BadToken
	case s == http.StatusTooManyRequests, s == http.StatusLocked, s == statusMoving:
		return Wait
	case s == http.StatusForbidden:
		return Blocked
	case s >= 500:
		return Broken
	default: // also a redirect: such an answer is not from HubSpot
		return Refused
	}
}

// Pause is how long the portal gets no calls after an answer of kind Wait.
func (a Answer) Pause() time.Duration {
	switch {
	case a.RetryAfter > 0:
		return a.RetryAfter
	case a.Status == http.StatusLocked:
		return 2 * time.Second
	case a.Status == statusMoving:
		return time.Minute
	}
	switch a.policy {
	case "SECONDLY":
		return time.Second
	case "DAILY":
		return 15 * time.Minute // the daily limit is spent: try again until the day is over
	default:
		return 10 * time.Second
	}
}

// String describes the answer in one line for operators. It contains no secret.
func (a Answer) String() string {
	switch {
	case a.Status == 0:
		return fmt.Sprintf("no answer: %v", a.Err)
	case a.message != "":
		return fmt.Sprintf("HubSpot said %d: %s", a.Status, store.Clip(store.OneLine(a.message), 200))
	default:
		return fmt.Sprintf("HubSpot said %d", a.Status)
	}
}

// withoutURL removes the URL from net/http's error, because it may contain a token.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

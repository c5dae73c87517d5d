package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"takt/http/api"
	"takt/store"
	"takt/store/backoff"
)

var (
	errTimeout = errors.New("no answer in time")
	errStalled = errors.New("transfer stalled")
)

// Error is the error of a call that did not get the expected reply.
type Error struct {
	// Op is the method and path.
	Op string
	// Status is the reply's status, 0 if there was no reply.
	Status int
	// RequestID identifies the request in the controller's log; may be empty.
	RequestID string
	// Err holds code, message and Retry-After.
	Err *store.Error
}

func (e *Error) Error() string {
	if e.Status == 0 {
		return e.Op + ": " + e.Err.Error()
	}
	return fmt.Sprintf("%s: %d %s", e.Op, e.Status, e.Err.Error())
}

func (e *Error) Unwrap() error { return e.Err }

// StatusOf returns the HTTP status in err's chain, 0 if there was no reply.
func StatusOf(err error) int {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status
	}
	return 0
}

// RetryAfter returns how long the controller asked to wait, 0 if it did not.
func RetryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*store.Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

// Temporary reports whether the same call may succeed later. That is so if there was
// no reply, or if the reply is about the controller and not about the request.
func Temporary(err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return false
	}
	switch e.Status {
	case 0, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	default:
		return e.Status >= 500
	}
}

// noReply returns the error of a call that broke. The end of the caller's context
// takes precedence, because a cancelled call is not an unreachable controller.
func noReply(outer, inner context.Context, cl call, err error) error {
	if outer.Err() != nil {
		return fmt.Errorf("%s: %w", cl, context.Cause(outer))
	}
	if inner.Err() != nil {
		err = context.Cause(inner)
	}
	return &Error{Op: cl.String(), Err: store.Wrap(store.Unavailable, "Controller not reachable", err)}
}

func unexpected(cl call, resp *http.Response, err error) error {
	return &Error{
		Op: cl.String(), Status: resp.StatusCode, RequestID: resp.Header.Get(api.HeaderRequestID),
		Err: store.Wrap(store.Internal, "Unexpected reply", err),
	}
}

// unknownTo returns the error of a call whose parameters the controller ignored: its reply is not
// about what was asked.
func unknownTo(names string) error {
	return errors.New("the controller does not know " + names + ": it is older than this program")
}

// refused turns an error reply into an *Error. It also reads replies of other
// controllers, which only have "error", and of proxies, which have no JSON.
func refused(cl call, resp *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxError))
	var problem api.Problem
	if json.Unmarshal(body, &problem) != nil {
		problem = api.Problem{}
	}
	message := cmp.Or(problem.Detail, problem.Error, problem.Title, http.StatusText(resp.StatusCode))
	code := store.Code(problem.Code)
	if code == "" {
		code = codeOfStatus(resp.StatusCode, message)
	}
	if problem.Details != "" {
		message += ": " + problem.Details
	}
	return &Error{
		Op: cl.String(), Status: resp.StatusCode,
		RequestID: cmp.Or(problem.RequestID, resp.Header.Get(api.HeaderRequestID)),
		Err: &store.Error{
			Code: code, Message: message,
			RetryAfter: retryAfter(resp.Header),
		},
	}
}

// codeOfStatus guesses the code of a reply without one.
func codeOfStatus(status int, message string) store.Code {
	codes := map[int]store.Code{
		http.StatusBadRequest:            store.InvalidArgument,
		http.StatusUnauthorized:          store.Unauthorized,
		http.StatusForbidden:             store.Forbidden,
		http.StatusNotFound:              store.NotFound,
		http.StatusMethodNotAllowed:      store.MethodNotAllowed,
		http.StatusConflict:              store.Conflict,
		http.StatusRequestEntityTooLarge: store.TooLarge,
		http.StatusUnsupportedMediaType:  store.UnsupportedMedia,
		http.StatusUnprocessableEntity:   store.RegistrationFailed,
		http.StatusTooManyRequests:       store.Overloaded,
		http.StatusBadGateway:            store.Unavailable,
		http.StatusServiceUnavailable:    store.Unavailable,
		http.StatusGatewayTimeout:        store.Unavailable,
		http.StatusInsufficientStorage:   store.DiskFull,
	}
	if status == http.StatusForbidden && strings.Contains(message, "API key") {
		return store.InvalidAPIKey
	}
	if code, ok := codes[status]; ok {
		return code
	}
	return store.Internal
}

// maxRetryAfter is the longest accepted Retry-After.
const maxRetryAfter = time.Hour

// retryAfter reads Retry-After. It compares a date with the reply's own Date, because clocks
// differ. It returns 0 if the value is unusable.
func retryAfter(h http.Header) time.Duration {
	sent, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		sent = time.Now()
	}
	wait, _ := backoff.RetryAfter(h.Get("Retry-After"), sent)
	return min(wait, maxRetryAfter)
}

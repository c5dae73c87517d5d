package edge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"takt/http/api"
	"takt/store"
)

// statuses has each code's status. Internal and unknown codes are 500.
var statuses = map[store.Code]int{
	store.InvalidArgument: http.StatusBadRequest, store.InvalidState: http.StatusBadRequest,
	store.TooManyParams: http.StatusBadRequest, store.InvalidParam: http.StatusBadRequest, store.ReservedParam: http.StatusBadRequest,
	store.TooManySecrets: http.StatusBadRequest, store.InvalidSecret: http.StatusBadRequest, store.InvalidTimeout: http.StatusBadRequest,
	store.InvalidMaxAttempts: http.StatusBadRequest, store.InvalidRetryOn: http.StatusBadRequest, store.InvalidFact: http.StatusBadRequest,
	store.Unauthorized: http.StatusUnauthorized, store.InvalidToken: http.StatusUnauthorized,
	store.InvalidAPIKey: http.StatusForbidden, store.Forbidden: http.StatusForbidden, store.NotAssigned: http.StatusForbidden, store.MissingScope: http.StatusForbidden, store.WorkerMismatch: http.StatusForbidden, store.PriorityTooHigh: http.StatusForbidden,
	store.NotFound: http.StatusNotFound, store.MethodNotAllowed: http.StatusMethodNotAllowed,
	store.Conflict: http.StatusConflict, store.StaleAttempt: http.StatusConflict, store.DuplicateWorker: http.StatusConflict, store.LateRegistration: http.StatusConflict,
	store.KeyExpired: http.StatusConflict, store.RetryWaiting: http.StatusConflict,
	store.PreconditionFailed: http.StatusPreconditionFailed, store.TooLarge: http.StatusRequestEntityTooLarge, store.ParamsTooLarge: http.StatusRequestEntityTooLarge,
	store.UnsupportedMedia: http.StatusUnsupportedMediaType, store.RangeNotSatisfied: http.StatusRequestedRangeNotSatisfiable,
	store.Unprocessable: http.StatusUnprocessableEntity, store.CertsUnusable: http.StatusUnprocessableEntity, store.RegistrationFailed: http.StatusUnprocessableEntity, store.SecretsNeeded: http.StatusUnprocessableEntity, store.KeyMismatch: http.StatusUnprocessableEntity,
	store.UnknownSecret:  http.StatusUnprocessableEntity,
	store.SecretNotYours: http.StatusForbidden, store.SecretsNotYours: http.StatusForbidden, store.SecretGone: http.StatusUnprocessableEntity,
	store.RateLimited: http.StatusTooManyRequests, store.KeyQueueFull: http.StatusTooManyRequests, store.KeyClassesFull: http.StatusTooManyRequests,
	store.QueueFull: http.StatusServiceUnavailable, store.Overloaded: http.StatusServiceUnavailable, store.Unavailable: http.StatusServiceUnavailable,
	store.Timeout: http.StatusGatewayTimeout, store.DiskFull: http.StatusInsufficientStorage,
}

// StatusOf returns the status of a code. It is the only place that does.
func StatusOf(code store.Code) int { return cmp.Or(statuses[code], http.StatusInternalServerError) }

// Invalid returns an InvalidArgument error (400).
func Invalid(message string) error { return store.NewError(store.InvalidArgument, message) }

// FailureOf returns the *store.Error in err, or makes one whose message may be shown to
// clients.
func FailureOf(err error) *store.Error {
	if e, ok := errors.AsType[*store.Error](err); ok {
		return e
	}
	if he, ok := errors.AsType[*echo.HTTPError](err); ok {
		switch he.Code {
		case http.StatusNotFound:
			return store.NewError(store.NotFound, "Not found")
		case http.StatusMethodNotAllowed:
			return store.NewError(store.MethodNotAllowed, "Method not allowed")
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, ErrServerClosed) {
		return store.Wrap(store.Unavailable, "The request was given up, try again later", err)
	}
	return store.Wrap(store.Internal, "Internal server error", err)
}

// ProblemOf returns the reply for err, and its Retry-After, 0 if it has none. A 500 never
// shows details.
func ProblemOf(err error, requestID string) (p api.Problem, retryAfter time.Duration) {
	e := FailureOf(err)
	p = api.Problem{
		Type: "about:blank", Status: StatusOf(e.Code), Code: string(e.Code),
		Detail: e.Message, Details: e.Details, RequestID: requestID,
	}
	if p.Status == http.StatusInternalServerError {
		p.Code, p.Detail = string(store.Internal), "Internal server error"
	}
	if p.Status == http.StatusBadRequest || p.Status == http.StatusUnprocessableEntity {
		p.Detail = sentence(p.Detail)
	}
	p.Title, p.Error = http.StatusText(p.Status), p.Detail
	if o := e.Overload; o != nil {
		p.Rule, p.Load, p.Limit = o.Rule, &o.Load, &o.Limit
	}
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests || e.Code == store.DuplicateWorker {
		retryAfter = max(e.RetryAfter, time.Second)
	}
	return p, retryAfter
}

// sentence makes a text that begins with the name of a field a sentence, because old clients
// show it alone. It leaves out two texts that old clients compare.
func sentence(text string) string {
	if text == "" || text[0] < 'a' || text[0] > 'z' || text == "worker_id required" || text == "build_id and worker_id required" {
		return text
	}
	return "Invalid request: " + text
}

// writeError logs err, and replies with it unless the reply has begun.
func (s *Server) writeError(c echo.Context, err error) {
	w := c.Response()
	id := RequestID(c)
	p, retry := ProblemOf(err, id)
	gone := c.Request().Context().Err() != nil && !w.Committed
	switch p.Code {
	case string(store.InvalidToken):
		s.Observed.TokensRefused.WithLabelValues().Inc()
	case string(store.DuplicateWorker):
		s.Observed.DuplicateWorkers.WithLabelValues().Inc()
	}
	s.LogError(c, err, p.Status, gone)
	if w.Committed {
		return
	}
	h := w.Header()
	SetRetryAfter(h, retry)
	// These headers were meant for the handler's own reply, so they are removed.
	for _, name := range [...]string{"Content-Disposition", "Content-Encoding", "Content-Length", "Etag", "Last-Modified", "Repr-Digest", "Accept-Ranges"} {
		delete(h, name) // in canonical form
	}
	h.Set("Cache-Control", "no-store") // whatever the handler had set
	body, merr := json.Marshal(p)
	if merr != nil {
		body = nil // impossible: a Problem is strings and a number
	}
	s.ReplyBytes(c, p.Status, []string{"application/problem+json"}, body)
}

// SetRetryAfter tells the client when to try again, unless after is 0.
func SetRetryAfter(h http.Header, after time.Duration) {
	if after > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	}
}

// LogError logs an error with the status of its reply. gone is true if the client has left.
func (s *Server) LogError(c echo.Context, err error, status int, gone bool) {
	level := zerolog.DebugLevel
	switch {
	case gone || status < 500 || FailureOf(err).Overload != nil: // such errors come in thousands, and metrics count them
	case status == http.StatusInternalServerError:
		level = zerolog.ErrorLevel
	default:
		level = zerolog.WarnLevel
	}
	s.Log.WithLevel(level).Err(err).Int("status", status).Str("route", c.Path()).
		Str("method", c.Request().Method).Str("request_id", RequestID(c)).
		Bool("client_gone", gone).Bool("reply_begun", c.Response().Committed).Msg("request failed")
}

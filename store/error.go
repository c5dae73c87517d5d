package store

import (
	"errors"
	"time"
)

// Code is the stable, machine-readable name of a failure. Codes never change
// their meaning; http/edge/error.go gives each one its status.
type Code string

// The codes that this project uses.
const (
	Unauthorized       Code = "unauthorized"         // a credential is missing
	InvalidAPIKey      Code = "invalid_api_key"      // an API key was sent and is wrong
	InvalidToken       Code = "invalid_token"        // a worker token is unknown or expired
	Forbidden          Code = "forbidden"            // a credential is valid but does not reach this
	MissingScope       Code = "missing_scope"        // a key with a name lacks the scope for this (403)
	WorkerMismatch     Code = "worker_mismatch"      // a key belongs to another worker (403)
	NotFound           Code = "not_found"            // no such thing
	NotAssigned        Code = "not_assigned"         // the build is not held by this worker
	StaleAttempt       Code = "stale_attempt"        // the build has a newer attempt
	DuplicateWorker    Code = "duplicate_worker"     // another process uses this worker id (409)
	LateRegistration   Code = "late_registration"    // a newer one of the same process was executed (409)
	InvalidArgument    Code = "invalid_argument"     // the request's content is wrong
	Unprocessable      Code = "unprocessable"        // it is well-formed, but nothing can be done with it (422)
	InvalidState       Code = "invalid_state"        // the build's state does not allow it (400 for old clients)
	Conflict           Code = "conflict"             // somebody else finished first (409)
	RetryWaiting       Code = "retry_waiting"        // a retry of this build is already waiting (409)
	SecretsNeeded      Code = "secrets_needed"       // a notice's URL changes, and its secrets are for the one before (422)
	RegistrationFailed Code = "registration_failed"  // 422
	KeyMismatch        Code = "idempotency_mismatch" // an Idempotency-Key came with other content (422)
	KeyExpired         Code = "idempotency_expired"  // the first reply is no longer available (409)
	MethodNotAllowed   Code = "method_not_allowed"   // 405
	UnsupportedMedia   Code = "unsupported_media_type"
	RangeNotSatisfied  Code = "range_not_satisfiable" // the range holds no byte of the file (416)
	PreconditionFailed Code = "precondition_failed"   // If-Match names another file (412)
	TooLarge           Code = "too_large"             // a part is over its limit
	QueueFull          Code = "queue_full"            // more than the queue limit is pending
	KeyQueueFull       Code = "key_queue_full"        // as many builds of this key are pending as may be (429)
	KeyClassesFull     Code = "key_classes_full"      // builds of this key wait with as many requirements as may be (429)
	PriorityTooHigh    Code = "priority_too_high"     // this key may not submit builds of this priority (403)
	Overloaded         Code = "overloaded"            // admission refused
	RateLimited        Code = "rate_limited"          // this caller sends too many requests
	DiskFull           Code = "disk_full"             // storage has no room
	Unavailable        Code = "unavailable"           // an outage of a dependency: try again
	Timeout            Code = "timeout"               // the work takes longer than the caller waits
	CertsUnusable      Code = "certs_unusable"        // the submitter's certificates can't be read
	TooManyParams      Code = "too_many_params"       // a build has more than MaxParams parameters (400)
	ParamsTooLarge     Code = "params_too_large"      // its parameters have more than MaxParamsSize bytes (413)
	InvalidParam       Code = "invalid_param"         // a parameter's name or value is wrong (400)
	ReservedParam      Code = "reserved_param"        // no build may set a variable with this name (400)
	TooManySecrets     Code = "too_many_secrets"      // a build asks for more than MaxSecrets (400)
	InvalidSecret      Code = "invalid_secret"        // a secret's name or value is wrong, or how it is given (400)
	UnknownSecret      Code = "unknown_secret"        // there is no such secret (422)
	InvalidTimeout     Code = "invalid_timeout"       // a build's time limit is out of bounds (400)
	InvalidMaxAttempts Code = "invalid_max_attempts"  // a build's number of attempts is out of bounds (400)
	InvalidRetryOn     Code = "invalid_retry_on"      // the exit codes are wrong (400)
	InvalidFact        Code = "invalid_fact"          // commit, branch, dirty or remote is wrong (400)
	SecretNotYours     Code = "secret_not_yours"      // builds of this key may not have a secret (403)
	SecretsNotYours    Code = "secrets_not_yours"     // who changes a retry may not have the build's secrets (403)
	SecretGone         Code = "secret_gone"           // a secret of the build is missing at the hand-out: the build fails (422)
	Internal           Code = "internal"              // a defect: details are in the log only
)

// Error is a failure that a caller may see.
type Error struct {
	Code Code
	// Message is shown to users as it is; it never holds a secret or an
	// internal detail.
	Message string
	// Details say more: of RetryWaiting they are the retry's id. Published clients read them
	// only in replies to a registration.
	Details string
	// RetryAfter is how long to wait before trying again, or 0 if unknown.
	RetryAfter time.Duration
	// Overload says why an Overloaded request was refused, if that is known.
	Overload *Overload
	// Err is the cause, for the log only. May be nil.
	Err error
}

// Overload is the rule by which a request was refused: Load had reached Limit.
type Overload struct {
	Rule        string
	Load, Limit int
}

// There are no Errorf-style helpers on purpose: messages are part of the wire contract,
// so each is written out where it arises.

// NewError returns an *Error without a cause.
func NewError(code Code, message string) *Error { return &Error{Code: code, Message: message} }

// Wrap returns an *Error with a cause.
func Wrap(code Code, message string, err error) *Error {
	return &Error{Code: code, Message: message, Err: err}
}

// NewUnavailable returns the Error of a dependency that is unavailable for a while.
// Callers may try again in a second. cause may be nil.
func NewUnavailable(message string, cause error) *Error {
	return &Error{Code: Unavailable, Message: message, RetryAfter: time.Second, Err: cause}
}

// IsUnavailable reports whether err is an outage of a dependency, or contention, and not
// a defect. Either way the caller may try again.
func IsUnavailable(err error) bool { return CodeOf(err) == Unavailable }

// IsOutage reports whether err is an outage of a dependency. Contention is none, because
// it concerns one request only.
func IsOutage(err error) bool { return IsUnavailable(err) && !errors.Is(err, ErrContention) }

// DescribeOutage returns what a process waits for that needs the database and got err; empty
// if err is no outage.
func DescribeOutage(err error) string {
	if IsOutage(err) {
		return "database unavailable"
	}
	return ""
}

// ErrContention is in the chain of an Unavailable error when the database rolled a change
// back because of other transactions: they kept a row locked for too long, or the two
// waited for each other.
var ErrContention = errors.New("contention with other transactions")

func (e *Error) Error() string {
	text := string(e.Code) + ": " + e.Message
	if e.Details != "" {
		text += ": " + e.Details
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the code of the first *Error in err's chain, Internal for any
// other error, and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return Internal
}

// ErrOutcomeUnknown is in the chain of an Unavailable error when a COMMIT was sent and
// its answer was lost. The change may have been committed or not. The files that it
// names must be kept, because the sweep removes those that no row names.
var ErrOutcomeUnknown = errors.New("outcome of commit unknown")

package cli

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"takt/http/client"
	"takt/store"
)

// These are the exit codes. They are part of the command line's contract.
const (
	ExitOK          = 0
	ExitFailure     = 1
	ExitUsage       = 2 // flags, arguments or settings are wrong
	ExitNotFound    = 3
	ExitRefused     = 4 // a key or token is missing, wrong or not sufficient
	ExitUnavailable = 5 // no controller, or one that can't serve now
	ExitBuildFailed = 6 // the build failed or was cancelled
	ExitUnfit       = 7 // the worker's machine can't run builds
)

// UsageError is an error that the caller made.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

// Usage returns a UsageError.
func Usage(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// UnfitError reports that this machine can't run builds.
type UnfitError struct{ Err error }

func (e UnfitError) Error() string { return e.Err.Error() }
func (e UnfitError) Unwrap() error { return e.Err }

// BuildFailedError reports that a build ended without a result.
type BuildFailedError struct {
	ID    string
	State string
	// Reason is the build's error message. It may be empty.
	Reason string
}

func (e BuildFailedError) Error() string {
	text := "build " + e.ID + " " + e.State
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// ExitCode returns the exit code for err.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	if _, ok := errors.AsType[UsageError](err); ok {
		return ExitUsage
	}
	if _, ok := errors.AsType[BuildFailedError](err); ok {
		return ExitBuildFailed
	}
	if _, ok := errors.AsType[UnfitError](err); ok {
		return ExitUnfit
	}
	switch store.CodeOf(err) {
	case store.NotFound:
		return ExitNotFound
	case store.Unauthorized, store.InvalidAPIKey, store.InvalidToken, store.Forbidden, store.NotAssigned:
		return ExitRefused
	case store.Unavailable, store.Overloaded, store.QueueFull, store.DiskFull, store.Timeout:
		return ExitUnavailable
	default:
		return ExitFailure
	}
}

// Message returns err as a person should see it. It leaves out method, path and code
// where the controller's own message is enough.
func Message(err error) string {
	reply, ok := errors.AsType[*client.Error](err)
	if !ok {
		if e, ok := errors.AsType[*store.Error](err); ok && e.Err == nil {
			return e.Message
		}
		return err.Error()
	}
	text := reply.Err.Message
	if reply.Status == 0 && reply.Err.Err != nil {
		cause := reply.Err.Err
		if wrapped, ok := errors.AsType[*url.Error](cause); ok {
			cause = wrapped.Err // method and URL add nothing
		}
		text += ": " + cause.Error()
	}
	var notes []string
	if hint := hint(reply.Err); hint != "" {
		notes = append(notes, hint)
	}
	if reply.RequestID != "" && reply.Status >= 500 {
		notes = append(notes, "request "+reply.RequestID)
	}
	if len(notes) > 0 {
		text += " (" + strings.Join(notes, "; ") + ")"
	}
	return text
}

// hint returns what the user can do about a refusal.
func hint(err *store.Error) string {
	const kept = "; takt serve keeps it in the data directory, in "
	switch {
	case err.Code == store.Unauthorized && strings.Contains(err.Message, "X-Admin-Key"):
		return "set TAKT_ADMIN_KEY" + kept + "admin-key"
	case err.Code == store.Unauthorized:
		return "set TAKT_API_KEY" + kept + "api-key"
	case err.Code == store.InvalidAPIKey:
		return "check TAKT_API_KEY"
	default:
		return ""
	}
}

package cli

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"takt/http/api"
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
	ExitInterrupted = 130
)

// UsageError is a mistake in the command line.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

// Usage returns a UsageError.
func Usage(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// UnfitError reports that this machine can't run builds.
type UnfitError struct{ Err error }

func (e UnfitError) Error() string { return e.Err.Error() }
func (e UnfitError) Unwrap() error { return e.Err }

// InterruptedError reports that SIGINT or SIGTERM ended the command.
type InterruptedError struct{ Err error }

func (e InterruptedError) Error() string { return "interrupted" }
func (e InterruptedError) Unwrap() error { return e.Err }

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
	if _, ok := errors.AsType[InterruptedError](err); ok {
		return ExitInterrupted
	}
	if _, ok := errors.AsType[BuildFailedError](err); ok {
		return ExitBuildFailed
	}
	if _, ok := errors.AsType[UnfitError](err); ok {
		return ExitUnfit
	}
	switch store.CodeOf(err) {
	case store.InvalidArgument:
		return ExitUsage
	case store.NotFound:
		return ExitNotFound
	case store.Unauthorized, store.InvalidAPIKey, store.InvalidToken, store.Forbidden, store.NotAssigned, store.MissingScope, store.WorkerMismatch:
		return ExitRefused
	case store.Unavailable, store.Overloaded, store.QueueFull, store.KeyQueueFull, store.KeyClassesFull, store.DiskFull, store.Timeout:
		return ExitUnavailable
	default:
		return ExitFailure
	}
}

// Message returns err as a person should see it. It leaves out method, path and code
// where the controller's own message is enough.
func Message(err error) string {
	if stopped, ok := errors.AsType[InterruptedError](err); ok {
		return stopped.Error()
	}
	reply, ok := errors.AsType[*client.Error](err)
	if !ok {
		if e, ok := errors.AsType[*store.Error](err); ok && e.Err == nil {
			return e.Message
		}
		return err.Error()
	}
	text := reply.Err.Message
	if reply.Status == 0 && reply.Err.Err != nil {
		text = noAnswer(reply.Err)
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

// noAnswer describes which address does not answer, and what to do.
func noAnswer(err *store.Error) string {
	call, ok := errors.AsType[*url.Error](err.Err)
	if !ok {
		return err.Message + ": " + err.Err.Error()
	}
	address := call.URL
	if u, bad := url.Parse(address); bad == nil {
		address = u.Scheme + "://" + u.Host
	}
	const where = "TAKT_URL or --url sets the address"
	dns, noHost := errors.AsType[*net.DNSError](call.Err)
	switch {
	case noHost && dns.IsNotFound:
		return fmt.Sprintf("There is no host %s; %s", dns.Name, where)
	case errors.Is(call.Err, http.ErrSchemeMismatch):
		return fmt.Sprintf("%s answers in plain HTTP: write http://, or name the port that speaks TLS; %s", address, where)
	case errors.Is(call.Err, syscall.ECONNREFUSED):
		return fmt.Sprintf("%s does not answer. Is takt serve running? %s", address, where)
	}
	return fmt.Sprintf("%s does not answer (%v). Is takt serve running? %s", address, call.Err, where)
}

// Heals reports whether a failed call may succeed later without a change on this side.
func Heals(err error) bool {
	dns, noHost := errors.AsType[*net.DNSError](err)
	_, stranger := errors.AsType[*tls.CertificateVerificationError](err)
	return client.Temporary(err) && (!noHost || !dns.IsNotFound) && !stranger && !errors.Is(err, http.ErrSchemeMismatch)
}

// problemOf returns err as the controller's interface writes errors.
func problemOf(err error) api.Problem {
	p := api.Problem{Type: "about:blank", Title: "Failed", Detail: Message(err), Error: Message(err), Code: string(store.CodeOf(err))}
	switch ExitCode(err) {
	case ExitUsage:
		p.Code = "usage"
	case ExitBuildFailed:
		p.Code = "build_failed"
	case ExitInterrupted:
		p.Code = "interrupted"
	}
	if reply, ok := errors.AsType[*client.Error](err); ok {
		p.Status, p.RequestID = reply.Status, reply.RequestID
		p.Title = cmp.Or(http.StatusText(reply.Status), p.Title)
	}
	return p
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
	case err.Code == store.Forbidden && strings.Contains(err.Message, "admin key"):
		return "check TAKT_ADMIN_KEY; it is not the API key" + kept + "admin-key"
	default:
		return ""
	}
}

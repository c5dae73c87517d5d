package otp_test

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"takt/actors/otp"
)

// atom is an error that is an Erlang atom.
type atom string

func (a atom) Error() string { return string(a) }

// reasonOf returns the reason that the file writes as an atom.
func reasonOf(word string) error {
	switch word {
	case "normal":
		return otp.ErrNormal
	case "shutdown":
		return otp.ErrShutdown
	case "killed":
		return otp.ErrKilled
	default:
		return atom(word)
	}
}

// term writes a reason or an error as the file does.
func (w *recorder) term(err error) string {
	var (
		shutdown *otp.ShutdownError
		spec     *otp.SpecError
		running  *otp.AlreadyStartedError
	)
	switch {
	case errors.As(err, &shutdown):
		return "{shutdown," + w.shutdownTerm(shutdown.Term) + "}"
	case errors.As(err, &spec):
		return w.complaint(spec)
	case errors.As(err, &running):
		return fmt.Sprintf("{already_started,%v}", w.ghosts[running.Proc])
	default:
		return err.Error()
	}
}

func (w *recorder) shutdownTerm(term any) string {
	if child, ok := term.(*otp.ChildError); ok {
		return "{failed_to_start_child," + child.ID + "," + w.term(child.Reason) + "}"
	}
	return fmt.Sprint(term)
}

func (w *recorder) complaint(e *otp.SpecError) string {
	if e.Group == "bad_start_spec" {
		ids, _ := e.Value.([]string)
		specs := make([]string, len(ids))
		for i, id := range ids {
			specs[i] = "{spec," + id + "}"
		}
		return "{bad_start_spec,[" + strings.Join(specs, ",") + "]}"
	}
	text := "{" + e.Problem + "," + w.invalid(e) + "}"
	if e.Group != "" {
		text = "{" + e.Group + "," + text + "}"
	}
	return text
}

// invalid writes the value that was complained about.
func (w *recorder) invalid(e *otp.SpecError) string {
	if word, ok := w.words[e.Value]; ok {
		return word
	}
	switch v := e.Value.(type) {
	case time.Duration:
		if e.Problem == "invalid_period" {
			return fmt.Sprint(int64(v / time.Second))
		}
		return fmt.Sprint(v.Milliseconds())
	case string:
		switch v {
		case "auto_shutdown never, significant":
			return "[{auto_shutdown,never},{significant,true}]"
		case "restart permanent, significant":
			return "[{restart,permanent},{significant,true}]"
		}
		return v
	default:
		return fmt.Sprint(v)
	}
}

// failure writes the error of a request.
func (w *recorder) failure(err error) string {
	var down *otp.DownError
	var child *otp.ChildError
	var shutdown *otp.ShutdownError
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case errors.Is(err, otp.Ignore):
		return "{ok,undefined}"
	case errors.As(err, &down):
		return "{exit," + w.term(down.Reason) + "}"
	case errors.As(err, &shutdown) && !isChildError(err):
		return "{error," + w.term(err) + "}"
	case errors.As(err, &child):
		return "{error,{" + w.term(child.Reason) + ",{child," + child.ID + "}}}"
	default:
		return "{error," + w.term(err) + "}"
	}
}

// isChildError reports whether err itself is a ChildError, not only its cause.
func isChildError(err error) bool {
	_, ok := err.(*otp.ChildError) // the outermost error is meant
	return ok
}

// restart, strategy, ...: what the files write, as our values. Unknown words
// become values that must be refused, and are remembered for the complaint.

func (w *recorder) restart(word string) otp.Restart {
	return lookup(w, word, otp.Restart(90), map[string]otp.Restart{
		"": otp.Permanent, "permanent": otp.Permanent, "transient": otp.Transient, "temporary": otp.Temporary,
	})
}

func (w *recorder) strategy(word *string) otp.Strategy {
	if word == nil {
		return otp.OneForOne
	}
	return lookup(w, *word, otp.Strategy(91), map[string]otp.Strategy{
		"one_for_one": otp.OneForOne, "one_for_all": otp.OneForAll,
		"rest_for_one": otp.RestForOne, "simple_one_for_one": otp.Dynamic,
	})
}

func (w *recorder) autoShutdown(word *string) otp.AutoShutdown {
	if word == nil {
		return otp.Never
	}
	return lookup(w, *word, otp.AutoShutdown(92), map[string]otp.AutoShutdown{
		"never": otp.Never, "any_significant": otp.AnySignificant, "all_significant": otp.AllSignificant,
	})
}

func lookup[T comparable](w *recorder, word string, invalid T, known map[string]T) T {
	if v, ok := known[word]; ok {
		return v
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.words[invalid] = word
	return invalid
}

// shutdownTime translates a shutdown time. OTP's 0 orders and kills in one go:
// who does not trap exits still dies of the order, for all others it is a kill.
func shutdownTime(sp *spec) time.Duration {
	switch v := sp.Shutdown.(type) {
	case nil:
		return 0
	case float64:
		traps := sp.Type == "supervisor" || sp.Start.TrapExit != nil && *sp.Start.TrapExit
		if v == 0 && traps {
			return otp.BrutalKill
		}
		return time.Duration(v) * time.Millisecond
	case string:
		switch v {
		case "infinity":
			return otp.Infinity
		case "brutal_kill":
			return otp.BrutalKill
		}
	}
	panic(fmt.Sprintf("unknown shutdown value %v", sp.Shutdown))
}

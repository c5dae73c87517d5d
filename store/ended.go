package store

import (
	"strconv"
	"strings"
)

// Ended is how the command of a build ended: exit:CODE, signal:NUMBER or timeout. If none did, it is
// what ended the build; "" if that is not known.
type Ended string

// What ends a build beside its command.
const (
	EndedCancelled    Ended = "cancelled"    // somebody cancelled it
	EndedLost         Ended = "lost"         // its worker was lost, and it had no attempts left
	EndedGivenBack    Ended = "given_back"   // no worker could run it
	EndedUnmatched    Ended = "unmatched"    // no known worker could take it for long
	EndedUnassignable Ended = "unassignable" // the database refused to assign it
	EndedSecretGone   Ended = "secret_gone"  // one of its secrets was missing
	EndedFileLost     Ended = "file_lost"    // a restore did not find one of its files
)

// Cause returns what ended the build in one of a few words; "" unless it failed or was cancelled.
// It is failed for a failure that its worker reported, or of which nothing more is known.
func (b *Build) Cause() string {
	switch {
	case b.State == Cancelled:
		return string(EndedCancelled) // also by the release before
	case b.State != Failed:
		return ""
	case b.Ended == "" || strings.Contains(string(b.Ended), ":"):
		return "failed"
	}
	return string(b.Ended)
}

// ByWhy says who ended a build, and why, to follow a verb: " by key ci: superseded by 772".
func ByWhy(by, why string) string {
	if by != "" {
		by = " by " + by
	}
	if why != "" {
		why = ": " + why
	}
	return by + why
}

// NewEnded returns how a command ended. It ignores what can't be, because a result must not be
// refused for it.
func NewEnded(exit, signal *int, timedOut bool) Ended {
	switch {
	case timedOut:
		return "timeout"
	case signal != nil && *signal >= 1 && *signal <= 255:
		return Ended("signal:" + strconv.Itoa(*signal))
	case exit != nil && *exit >= 0 && *exit <= 1<<31-1:
		return Ended("exit:" + strconv.Itoa(*exit))
	}
	return ""
}

// Parts returns the exit code or the signal, nil if it is neither, and whether it is a time-out.
func (e Ended) Parts() (exit, signal *int, timedOut bool) {
	kind, number, _ := strings.Cut(string(e), ":")
	n, err := strconv.Atoi(number)
	switch {
	case kind == "exit" && err == nil:
		return &n, nil, false
	case kind == "signal" && err == nil:
		return nil, &n, false
	}
	return nil, nil, kind == "timeout"
}

// Code returns the exit code, or that with which shells report the signal; 0 if it is neither.
func (e Ended) Code() int {
	switch exit, signal, _ := e.Parts(); {
	case exit != nil:
		return *exit
	case signal != nil:
		return 128 + *signal
	}
	return 0
}

// String says how it ended, for people; "" if that is not known.
func (e Ended) String() string {
	switch exit, signal, timedOut := e.Parts(); {
	case exit != nil:
		return "exit code " + strconv.Itoa(*exit)
	case signal != nil:
		return "signal " + strconv.Itoa(*signal)
	case timedOut:
		return "time limit exceeded"
	}
	return ""
}

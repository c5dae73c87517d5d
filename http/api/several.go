package api

import (
	"fmt"
	"strings"

	"takt/store"
)

// LabelFilter selects the builds that have all of these labels, each sent as name=value.
type LabelFilter []string

// Check implements [Checker].
func (l LabelFilter) Check() error {
	found := store.Labels{}
	for _, sent := range l {
		name, value, ok := strings.Cut(sent, "=")
		if !ok {
			return invalid(fmt.Sprintf("label: %q must be name=value", sent))
		}
		if _, twice := found[name]; twice {
			return invalid(fmt.Sprintf("label: %q is there twice", name))
		}
		if err := found.Set(name, value); err != nil {
			return err
		}
	}
	return nil
}

// Labels returns the labels, nil for none.
func (l LabelFilter) Labels() store.Labels {
	if len(l) == 0 {
		return nil
	}
	labels := make(store.Labels, len(l))
	for _, sent := range l {
		name, value, _ := strings.Cut(sent, "=") // Check has seen it
		labels[name] = value
	}
	return labels
}

// SeveralBuilds selects builds to be changed. What is not known here is refused, so that a slip
// never selects more builds than were meant.
type SeveralBuilds struct {
	// Label is sent once for each label that the builds must have, as name=value. At least one is
	// required, unless the builds are selected otherwise.
	Label LabelFilter `query:"label"`
	// Platform selects builds for it.
	Platform string `query:"platform" schema:"Platform" invalid:"Valid platform required"`
	// Limit is the most builds that are changed.
	Limit int `query:"limit" min:"1" max:"100" default:"100"`
	Why
}

// Check implements [Checker].
func (s *SeveralBuilds) Check() error {
	if len(s.Label) == 0 {
		return invalid("label required, as name=value")
	}
	return cleanReason(&s.Reason)
}

// CancelBuildsIn is the input of CancelBuilds.
type CancelBuildsIn struct {
	// State selects a state; without it all builds that have not ended.
	State string `query:"state" enum:"pending,assigned,building"`
	SeveralBuilds
}

// RetryBuildsIn is the input of RetryBuilds.
type RetryBuildsIn struct {
	State string `query:"state" enum:"failed,cancelled" default:"failed"`
	// Suspect selects the builds that failed on this worker while it was suspect, or because of which
	// it became so. Then no label is required.
	Suspect string `query:"suspect" schema:"ID" invalid:"Invalid suspect"`
	SeveralBuilds
}

// Check implements [Checker].
func (r *RetryBuildsIn) Check() error {
	if r.Suspect != "" && len(r.Label) == 0 {
		return cleanReason(&r.Reason)
	}
	return r.SeveralBuilds.Check()
}

// SeveralChanged answers POST /api/builds/cancel and POST /api/builds/retry.
type SeveralChanged struct {
	// Builds are those that were selected, newest first.
	Builds []OneChanged `json:"builds"`
	// More is true if there were more than the limit.
	More bool `json:"more"`
}

// OneChanged is one of several builds.
type OneChanged struct {
	ID string `json:"id" schema:"ID"`
	// Retry is the new build.
	Retry *Retried `json:"retry,omitempty"`
	// Code and Error say why the build was not changed.
	Code  string `json:"code,omitempty"`
	Error string `json:"error,omitempty"`
}

// CancelBuilds is POST /api/builds/cancel.
var CancelBuilds = declare[CancelBuildsIn, SeveralChanged](builds, APIKey, scopeOperateOrOwn, Write, "POST /api/builds/cancel", Route{
	ID: "cancelBuilds", Strict: true, Summary: "Cancel the builds that have some labels and have not ended",
	Text: "Those that wait are cancelled first. A key with the scope submit cancels its own.",
	Says: "What became of each build.",
})

// RetryBuilds is POST /api/builds/retry.
var RetryBuilds = declare[RetryBuildsIn, SeveralChanged](builds, APIKey, scopeOperateOrOwn, Write, "POST /api/builds/retry", Route{
	ID: "retryBuilds", Strict: true, Errors: []int{507}, Summary: "Submit the builds again that failed and have some labels, or failed on a suspect worker",
	Text: "Builds of which a retry was submitted are left out, so a repeat retries only what has failed since. They are searched among the last 100,000. A key with the scope submit retries its own.",
	Says: "What became of each build.",
})

package api

import (
	"maps"
	"slices"
	"time"

	"takt/store"
)

// Facts say what was built, as its submitter said.
type Facts struct {
	Commit string `json:"commit,omitempty" pattern:"^[0-9a-f]{7,64}$"`
	Branch string `json:"branch,omitempty"`
	// Dirty is whether the tree had changes that are not in the commit; absent if that is not known.
	Dirty *bool `json:"dirty,omitempty" null:"never"`
	// Remote is the repository's URL, without credentials.
	Remote string `json:"remote,omitempty"`
}

// Limits are the limits that a build was submitted with.
type Limits struct {
	// Timeout is how many seconds an attempt may take; absent if that is left to the worker.
	Timeout int `json:"timeout,omitempty" min:"1" max:"86400"`
	// MaxAttempts is how many attempts the build has; absent if that is left to the controller.
	MaxAttempts int `json:"max_attempts,omitempty" min:"1" max:"10"`
	// RetryOn are the exit codes after which the build is tried again.
	RetryOn []int `json:"retry_on,omitempty" max:"16"`
}

// Inputs are what goes into a build beside its files.
type Inputs struct {
	// Params are the parameters, by name.
	Params map[string]string `json:"params,omitempty"`
	// ParamsOptional is true if a worker may leave out parameters that its operator does not permit.
	ParamsOptional bool `json:"params_optional,omitempty"`
	// Secrets are env or file, by the name of the secret.
	Secrets map[string]string `json:"secrets,omitempty"`
	Limits
	Facts
}

// TakenInputs are the inputs that a submit was understood to have.
type TakenInputs struct {
	// Params are the names of the parameters, in order.
	Params         []string `json:"params,omitempty"`
	ParamsOptional bool     `json:"params_optional,omitempty"`
	// Secrets are env or file, by the name of the secret.
	Secrets map[string]string `json:"secrets,omitempty"`
	Limits
	Facts
}

// NewInputs converts a build's inputs; nil if it has none.
func NewInputs(i *store.Inputs) *Inputs {
	if i.Empty() {
		return nil
	}
	return &Inputs{i.Params, i.ParamsOptional, i.Secrets, limits(i), Facts(i.Facts)}
}

// NewTakenInputs converts the inputs of a new build; nil if it has none.
func NewTakenInputs(i *store.Inputs) *TakenInputs {
	if i.Empty() {
		return nil
	}
	return &TakenInputs{slices.Sorted(maps.Keys(i.Params)), i.ParamsOptional, i.Secrets, limits(i), Facts(i.Facts)}
}

func limits(i *store.Inputs) Limits {
	return Limits{Timeout: int(i.Timeout / time.Second), MaxAttempts: i.MaxAttempts, RetryOn: i.RetryOn}
}

// HeldInputs answers GET /api/builds/:id/inputs. Of what is not there it has empty members.
type HeldInputs struct {
	Params map[string]string `json:"params"`
	// ParamsOptional is true if the worker may leave out parameters that its operator does not
	// permit. Otherwise it must not run the build without them.
	ParamsOptional bool         `json:"params_optional"`
	Secrets        []HeldSecret `json:"secrets"`
	// Timeout is how many seconds the attempt may take; 0 leaves that to the worker.
	Timeout int `json:"timeout" min:"0" max:"86400"`
	// Labels are those of the build.
	Labels map[string]string `json:"labels" schema:"Labels"`
	// Submitter is the name of the key that submitted the build; "" for the API key.
	Submitter string `json:"submitter"`
	Facts
}

// HeldSecret is a secret for the worker that holds a build.
type HeldSecret struct {
	Name string `json:"name"`
	// As is how the build gets it: as the variable Name, or as a file of that name.
	As    string `json:"as" enum:"env,file"`
	Value []byte `json:"value"`
	// Mask is false if the value may stand in logs.
	Mask bool `json:"mask"`
}

// NewHeldInputs converts what the holder of a build needs beside its files.
func NewHeldInputs(b store.Build, secrets []HeldSecret) HeldInputs {
	r := HeldInputs{Params: map[string]string{}, Secrets: append([]HeldSecret{}, secrets...), Labels: b.Labels, Submitter: b.Submitter}
	if r.Labels == nil {
		r.Labels = map[string]string{}
	}
	if i := b.Inputs; i != nil {
		if len(i.Params) > 0 {
			r.Params = i.Params
		}
		r.ParamsOptional, r.Timeout, r.Facts = i.ParamsOptional, int(i.Timeout/time.Second), Facts(i.Facts)
	}
	return r
}

// Ended is how a build ended; of one that waits for its retry, how its last attempt did.
type Ended struct {
	// Cause is what ended the build; absent before. It is failed if its worker said so, lost if its
	// last attempt was, and given_back if no worker could run it.
	Cause string `json:"cause,omitempty" enum:"failed,timeout,cancelled,lost,given_back,unmatched,unassignable,secret_gone,file_lost"`
	// By is who cancelled it, as in the audit but without an address. Why is the reason that they gave.
	By       string `json:"by,omitempty"`
	Why      string `json:"why,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty" null:"never"`
	// Signal is the number of the signal that ended it.
	Signal *int `json:"signal,omitempty" null:"never"`
	// TimedOut is true if it exceeded its time limit.
	TimedOut bool `json:"timed_out,omitempty"`
}

// NewEnded converts how a build ended; nil if it was completed, or has not ended.
func NewEnded(b store.Build) *Ended {
	exit, signal, timedOut := b.Ended.Parts()
	if e := (Ended{b.Cause(), b.EndedBy, b.EndedWhy, exit, signal, timedOut}); e != (Ended{}) {
		return &e
	}
	return nil
}

// FetchInputs is GET /api/builds/:id/inputs.
var FetchInputs = declare[Holding, HeldInputs](holding, WorkerKey, scopeWorker, Fleet, "GET /api/builds/:id/inputs", Route{
	ID: "fetchInputs", Errors: []int{422}, Summary: "Fetch parameters, secrets, limits and labels",
	Text: "422 `secret_gone` says that a secret is missing; the build has failed then. A job with an `inputs_url` has some: its worker must not run the build without them.",
})

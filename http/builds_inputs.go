package http

import (
	"context"
	"maps"
	"mime/multipart"
	"slices"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// takeInput reads a part of a submit's form that has an input. Other parts are skipped.
func (h *submissions) takeInput(f *edge.Form, p *multipart.Part, in *submission) (err error) {
	name := p.FormName()
	switch name {
	case "params", "params_optional", "secrets", "timeout", "max_attempts", "retry_on", "commit", "branch", "dirty", "remote":
	default:
		return nil
	}
	if slices.Contains(in.taken, name) {
		return edge.Invalid(name + " is there more than once")
	}
	in.taken = append(in.taken, name)
	if name == "params" || name == "secrets" {
		text, over, err := f.Bytes(p, store.MaxParamsText)
		switch {
		case err != nil:
		case over && name == "params":
			err = store.ErrParamsTooLarge()
		case over:
			err = store.NewError(store.TooLarge, "Form field too large")
		case name == "params":
			in.inputs.Params, err = store.ParseParams(text)
		default:
			in.inputs.Secrets, err = store.ParseSecrets(text)
		}
		return err
	}
	v, err := f.Field(p)
	if err != nil {
		return err
	}
	switch name {
	case "params_optional":
		if v != "true" && v != "false" {
			return edge.Invalid("params_optional must be true or false")
		}
		in.inputs.ParamsOptional = v == "true"
	case "timeout":
		in.inputs.Timeout, err = store.ParseTimeout(v, h.cfg.MaxBuildTimeout)
	case "max_attempts":
		in.inputs.MaxAttempts, err = store.ParseMaxAttempts(v)
	case "retry_on":
		in.inputs.RetryOn, err = store.ParseRetryOn(v)
	default:
		err = in.inputs.Set(name, v)
	}
	return err
}

// checkInputs refuses inputs that the build can't have.
func (h *submissions) checkInputs(ctx context.Context, in *submission) error {
	if len(in.inputs.RetryOn) > 0 {
		return store.ErrRetryOn()
	}
	if len(in.inputs.Params) == 0 {
		in.inputs.ParamsOptional = false
	}
	if err := h.checkSecrets(ctx, in); err != nil {
		return err
	}
	_, err := in.require.Need(&in.inputs)
	return err
}

// checkSecrets refuses secrets that the submitter may not have.
func (h *submissions) checkSecrets(_ context.Context, in *submission) error {
	for _, name := range slices.Sorted(maps.Keys(in.inputs.Secrets)) {
		return store.NewError(store.UnknownSecret, "There is no secret "+name)
	}
	return nil
}

// changed returns the inputs of a retry, in which parameters may be changed.
func (h *submissions) changed(ctx context.Context, old *store.Inputs, changes map[string]*string) (inputs store.Inputs, err error) {
	if old != nil {
		inputs = *old
	}
	if len(changes) == 0 {
		return inputs, nil
	}
	if caller := edge.CallerOf(ctx); !caller.APIKey && caller.Key == nil && caller.Session == nil {
		return inputs, store.NewError(store.Forbidden, "A build token can't change parameters: use a key")
	}
	inputs.Params, err = inputs.Params.Change(changes)
	return inputs, err
}

// given returns the inputs of a submission; nil if it has none.
func (in *submission) given() *store.Inputs {
	if in.inputs.Empty() {
		return nil
	}
	return &in.inputs
}

// inputs sends what a build's worker needs beside the files. It counts as a heartbeat.
func (h *holders) inputs(ctx context.Context, _ echo.Context, in api.Holding) (any, error) {
	heartbeat := heartbeatOf(in)
	b, err := h.store.Held(ctx, heartbeat)
	if err != nil {
		return nil, err
	}
	secrets, err := h.secretsOf(ctx, b)
	if err != nil {
		return nil, err
	}
	if err := h.touch(ctx, heartbeat); err != nil {
		return nil, err
	}
	h.edge.Belongs(edge.CallerOf(ctx), heartbeat.WorkerID)
	return api.NewHeldInputs(b, secrets), nil
}

// secretsOf returns the secrets of a build that its worker has begun.
func (h *holders) secretsOf(context.Context, store.Build) ([]api.HeldSecret, error) {
	return nil, nil // no build is submitted with secrets yet
}

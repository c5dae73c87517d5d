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
	if len(in.inputs.Params) == 0 {
		in.inputs.ParamsOptional = false
	}
	if len(in.inputs.Secrets) > 0 {
		in.refused = h.secrets.May(ctx, in.by, in.inputs.Secrets)
		if in.refused != nil && in.once == nil { // else it may be a repeat, of when it was not refused
			return in.refused
		}
	}
	_, err := in.require.Need(&in.inputs)
	return err
}

// changed returns the inputs of a retry, in which parameters may be changed. With other parameters the
// same source may do something else with its secrets, so who changes them must be allowed these, too.
// Without changes, it has those of the build, or is refused if one is gone.
func (h *submissions) changed(ctx context.Context, old store.Build, changes map[string]*string) (inputs store.Inputs, err error) {
	if old.Inputs != nil {
		inputs = *old.Inputs
	}
	if len(changes) == 0 {
		return inputs, h.secrets.MayAgain(ctx, old.ID, inputs.Secrets)
	}
	caller := edge.CallerOf(ctx)
	keyed := caller.APIKey || caller.Key != nil || caller.Session != nil
	if !keyed || caller.Needs(store.ScopeOperate, old.Submitter) != nil { // a key that may not retry it came with a token
		return inputs, store.NewError(store.Forbidden, "A build token can't change parameters: use a key that may retry the build")
	}
	err = h.secrets.May(ctx, edge.CallerOf(ctx).KeyName(), inputs.Secrets)
	if store.CodeOf(err) == store.SecretNotYours {
		err = store.ErrSecretsNotYours(slices.Sorted(maps.Keys(inputs.Secrets)))
	}
	if err != nil {
		return inputs, err
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
	secrets, err := h.secretsOf(ctx, b, heartbeat)
	if err != nil {
		return nil, err
	}
	if err := h.touch(ctx, heartbeat); err != nil {
		return nil, err
	}
	h.edge.Belongs(edge.CallerOf(ctx), heartbeat.WorkerID)
	return api.NewHeldInputs(b, secrets), nil
}

// secretsOf returns the secrets of a build for the worker that holds it. If one is gone, the build
// fails.
func (h *holders) secretsOf(ctx context.Context, b store.Build, heartbeat store.Heartbeat) ([]api.HeldSecret, error) {
	if b.Inputs == nil || len(b.Inputs.Secrets) == 0 {
		return nil, nil
	}
	heartbeat.Attempt = b.Attempt
	values, err := h.secrets.HandOut(ctx, heartbeat, slices.Collect(maps.Keys(b.Inputs.Secrets)), edge.CallerOf(ctx).Actor())
	if store.CodeOf(err) == store.SecretGone {
		_, failed := h.record(ctx, store.Result{
			BuildID: b.ID, WorkerID: heartbeat.WorkerID, Attempt: b.Attempt, ErrorMessage: edge.FailureOf(err).Message, Fault: store.FaultBuild, Ended: store.EndedSecretGone,
		})
		if failed != nil {
			err = failed
		}
	}
	return edge.Each(values, func(v store.SecretValue) api.HeldSecret {
		return api.HeldSecret{Name: v.Name, As: b.Inputs.Secrets[v.Name], Value: v.Value, Mask: v.Mask}
	}), err
}

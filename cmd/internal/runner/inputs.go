package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"takt/cmd/internal/mask"
	"takt/http/api"
	"takt/store"
)

const (
	// maxVars is what the variables of a build may take up together, in bytes: systems refuse to
	// start a process with more than 1 to 2 MiB.
	maxVars = 768 << 10
	// maxEnvLine is what container engines read of one line of a file of variables, in bytes.
	maxEnvLine = 60 << 10
)

// inputs are what a build gets beside its files.
type inputs struct {
	timeout time.Duration
	// vars are the command's variables, NAME=value.
	vars []string
	// params is the content of $TAKT_PARAMS, nil without; secrets are the files in $TAKT_SECRETS.
	params  []byte
	secrets map[string][]byte
	// notes are for the build's log.
	notes []string
}

// features are what builds may need of a worker.
func (c Config) features() []string {
	features := []string{store.FeatureEnv, store.FeatureExit, store.FeatureTimeout}
	if c.AcceptSecrets {
		features = append(features, store.FeatureSecrets)
	}
	return features
}

// inputs gets what a build was submitted with. From here on, its secrets are masked.
func (w *Worker) inputs(ctx context.Context, a *assignment, ws *workspace, lines *logStream) (inputs, error) {
	if a.job.InputsURL == nil {
		return inputs{timeout: w.cfg.Timeout}, nil
	}
	var sent api.HeldInputs
	retry := w.retry
	retry.OnWait = w.waiting("download")
	err := retry.Do(ctx, func(ctx context.Context) (err error) {
		sent, err = w.api.Inputs(ctx, a.held)
		return err
	})
	if err != nil {
		if lost := verdict(err); lost != nil {
			a.cancel(lost)
		}
		return inputs{}, fmt.Errorf("parameters and secrets: %w", err)
	}
	var values [][]byte
	for _, s := range sent.Secrets {
		if s.Mask {
			values = append(values, s.Value)
		}
	}
	a.secrets = mask.New(values...)
	lines.secrets = a.secrets
	if a.owner != nil {
		a.owner.secrets = a.secrets
	}
	in, err := w.cfg.inputs(sent)
	for _, note := range in.notes {
		lines.say("%s", note)
	}
	if err != nil {
		return in, err
	}
	ws.Vars = in.vars
	if in.params != nil {
		ws.Params = filepath.Join(ws.root, "params.json")
		err = os.WriteFile(ws.Params, in.params, 0o600)
	}
	if len(in.secrets) > 0 {
		ws.Secrets = ws.secrets()
	}
	return in, err
}

// prepare writes the files of a build's secrets and of its variables.
func (w *Worker) prepare(in inputs, ws *workspace, envFile string) error {
	var faults []error
	if envFile != "" {
		faults = append(faults, os.WriteFile(ws.envFile, []byte(envFile), 0o600))
	}
	if ws.Secrets != "" {
		faults = append(faults, os.Mkdir(ws.Secrets, 0o700))
		for name, value := range in.secrets {
			faults = append(faults, os.WriteFile(filepath.Join(ws.Secrets, name), value, 0o600))
		}
		if ws.owner != nil {
			faults = append(faults, ws.owner.give(ws.Secrets))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return faultError{store.FaultDisk, fmt.Errorf("writing secrets: %w", err)}
	}
	return nil
}

// inputName is what parameters and secrets are called: names of variables and of files.
var inputName = regexp.MustCompile(`^[A-Z_][A-Z0-9_]{0,127}$`)

// inputs makes of what a build was submitted with what its command gets. Errors without a fault
// are the build's.
func (c Config) inputs(sent api.HeldInputs) (in inputs, err error) {
	in.timeout = c.Timeout
	if sent.Timeout > 0 {
		in.timeout = time.Duration(sent.Timeout) * time.Second
	}
	switch { // it is for another worker
	case len(sent.Secrets) > 0 && !c.AcceptSecrets:
		return in, faultError{store.FaultCommand, errors.New("this worker takes no builds with secrets (--accept-secrets)")}
	case in.timeout > c.MaxTimeout:
		return in, faultError{store.FaultCommand, fmt.Errorf("this worker allows builds at most %s (--max-timeout), not %s", c.MaxTimeout, in.timeout)}
	}
	var faults []error
	if err := c.params(&in, sent); err != nil {
		faults = append(faults, err)
	}
	in.facts(sent)
	for _, s := range sent.Secrets {
		if err := c.secret(&in, s, sent.Params); err != nil {
			faults = append(faults, fmt.Errorf("secret %s %w", store.OneLine(s.Name), err))
		}
	}
	size := 0
	for _, v := range in.vars {
		size += len(v)
	}
	if size > maxVars {
		faults = append(faults, fmt.Errorf("variables of %d bytes together: at most %d; secrets can be files (--secret-file)", size, maxVars))
	}
	return in, errors.Join(faults...)
}

// params sets the parameters that this worker takes. The others are left out if the build says
// that it can do without.
func (c Config) params(in *inputs, sent api.HeldInputs) error {
	if len(sent.Params) == 0 {
		return nil
	}
	var err error
	if in.params, err = json.Marshal(sent.Params); err != nil {
		return err
	}
	var refused []string
	for _, name := range slices.Sorted(maps.Keys(sent.Params)) {
		value := sent.Params[name]
		why := c.refuses(name, value)
		if accepts := func(pattern string) bool { ok, _ := path.Match(pattern, name); return ok }; why == "" && !slices.ContainsFunc(c.AcceptEnv, accepts) {
			why = fmt.Sprintf("is not one that this worker's --accept-env takes (%s)", strings.Join(c.AcceptEnv, ","))
		}
		if why == "" {
			in.vars = append(in.vars, name+"="+value)
			continue
		}
		refused = append(refused, fmt.Sprintf("parameter %s %s", store.OneLine(name), why))
	}
	if len(refused) > 0 && !sent.ParamsOptional {
		return errors.New(strings.Join(refused, "; "))
	}
	for _, r := range refused {
		in.notes = append(in.notes, r+": left out")
	}
	return nil
}

// refuses returns why no build may set a variable here.
func (c Config) refuses(name, value string) string {
	switch {
	case !inputName.MatchString(name):
		return "is no name of a variable"
	case store.RefusedName(name):
		return "can't be set by a build"
	case slices.Contains(c.OwnEnv, name):
		return "is set by this worker's --env"
	case strings.Contains(value, "\x00"):
		return "has a NUL byte, which no variable can have"
	case c.contained() && EngineReads(name) && (strings.ContainsAny(value, "\r\n") || len(value) > maxEnvLine):
		return fmt.Sprintf("can't be a variable of several lines or more than %d bytes, because the container engine reads it", maxEnvLine)
	}
	return ""
}

// secret adds one. Its value is in no error.
func (c Config) secret(in *inputs, s api.HeldSecret, params map[string]string) error {
	if !s.Mask {
		in.notes = append(in.notes, fmt.Sprintf("secret %s is not masked", store.OneLine(s.Name)))
	}
	_, twice := params[s.Name]
	switch {
	case s.As == store.SecretFile && inputName.MatchString(s.Name):
		if in.secrets == nil {
			in.secrets = map[string][]byte{}
		}
		in.secrets[s.Name] = s.Value
		return nil
	case s.As != store.SecretEnv && s.As != store.SecretFile:
		return fmt.Errorf("is for %q, which this worker does not know", store.Clip(s.As, 20))
	case twice:
		return errors.New("has the name of a parameter")
	}
	if why := c.refuses(s.Name, string(s.Value)); why != "" {
		return errors.New(why + "; a secret can be a file (--secret-file)")
	}
	in.vars = append(in.vars, s.Name+"="+string(s.Value))
	return nil
}

// contained reports whether builds run in containers.
func (c Config) contained() bool { _, ok := c.Command.(*Image); return ok }

// facts sets what the build is about. Two labels that would be the same variable are left out.
func (in *inputs) facts(sent api.HeldInputs) {
	of := map[string][]string{}
	for _, label := range slices.Sorted(maps.Keys(sent.Labels)) {
		name := labelVariable(label)
		of[name] = append(of[name], label)
	}
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if labels := of[name]; len(labels) > 1 {
			in.notes = append(in.notes, fmt.Sprintf("%s is not set, because the labels %s would all be it", name, strings.Join(labels, ", ")))
			continue
		}
		in.vars = append(in.vars, name+"="+sent.Labels[of[name][0]])
	}
	for _, fact := range []struct{ name, value string }{
		{"TAKT_COMMIT", sent.Commit}, {"TAKT_BRANCH", sent.Branch}, {"TAKT_SUBMITTER", sent.Submitter},
	} {
		if fact.value != "" {
			in.vars = append(in.vars, fact.name+"="+fact.value)
		}
	}
}

// labelVariable is the name of the variable of a label.
func labelVariable(label string) string {
	return "TAKT_LABEL_" + strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (r >= 'A' && r <= 'Z' || r >= '0' && r <= '9') {
			return r
		}
		return '_'
	}, strings.ToUpper(label))
}

// maskedError is an error of a build whose text has no secrets.
type maskedError struct {
	error
	text string
}

func (e maskedError) Error() string { return e.text }
func (e maskedError) Unwrap() error { return e.error }

// masked is an error of a build without its secrets.
func (a *assignment) masked(err error) error { return withoutSecrets(err, a.secrets) }

func withoutSecrets(err error, secrets *mask.Set) error {
	if err == nil || secrets == nil {
		return err
	}
	return maskedError{err, secrets.String(err.Error())}
}

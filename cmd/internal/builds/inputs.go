package builds

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/store"
)

// inputFlags are the flags of takt submit that say what goes into a build beside its files.
type inputFlags struct {
	params               paramFlags
	optional             bool
	secrets, secretFiles []string
	timeout              time.Duration
	maxAttempts          int
	retryOn              []int
}

// paramFlags are the flags that name parameters.
type paramFlags struct{ env, files []string }

func (p *paramFlags) add(f *pflag.FlagSet, what string) {
	f.StringArrayVar(&p.env, "env", nil, "NAME=value: "+what+"; NAME alone takes the value of this command's environment; may be repeated")
	f.StringArrayVar(&p.files, "env-file", nil, "file of parameters: lines NAME=value, or a JSON object; may be repeated")
}

func (o *inputFlags) add(f *pflag.FlagSet) {
	o.params.add(f, "a variable for the build's command, shown with the build")
	f.BoolVar(&o.optional, "env-optional", false, "run the build without the variables that the worker's operator does not permit")
	f.StringArrayVar(&o.secrets, "secret", nil, "name of a secret that the build gets as a variable; may be repeated")
	f.StringArrayVar(&o.secretFiles, "secret-file", nil, "name of a secret that the build gets as a file; may be repeated")
	cli.DurationFlag(f, &o.timeout, "timeout", 0, "how long the build may take, such as 90m (default: what its worker allows)")
	f.IntVar(&o.maxAttempts, "max-attempts", 0, "how often the build is tried at most if its workers are lost or --retry-on says so, 1 to 10 (default: what the controller allows)")
	f.IntSliceVar(&o.retryOn, "retry-on", nil, "exit codes of the command, such as 75,143, after which the build is tried again, 30s later and then ever more, while attempts remain")
}

// read returns the inputs. Values and files are read before anything is sent.
func (o *inputFlags) read(s *cli.Session, env func(string) (string, bool)) (i store.Inputs, err error) {
	if i.Params, err = o.params.read(s, env); err != nil {
		return i, err
	}
	i.ParamsOptional, i.MaxAttempts, i.Timeout = o.optional && len(i.Params) > 0, o.maxAttempts, o.timeout
	for as, names := range map[string][]string{store.SecretEnv: o.secrets, store.SecretFile: o.secretFiles} {
		for _, name := range names {
			if err := store.CheckVariable(store.InvalidSecret, "--secret", name); err != nil {
				return i, cli.Usage("%s", cli.Message(err))
			}
			if i.Secrets[name] != "" {
				return i, cli.Usage("--secret %s: it is there twice", name)
			}
			if i.Secrets == nil {
				i.Secrets = map[string]string{}
			}
			i.Secrets[name] = as
		}
	}
	if o.timeout != 0 {
		if _, err := store.ParseTimeout(strconv.Itoa(int(o.timeout/time.Second)), store.MaxTimeout); err != nil || o.timeout%time.Second != 0 {
			return i, cli.Usage("--timeout: %s is not 1s to %s in whole seconds", o.timeout, cli.DurationText(store.MaxTimeout))
		}
	}
	if o.maxAttempts != 0 {
		if _, err := store.ParseMaxAttempts(strconv.Itoa(o.maxAttempts)); err != nil {
			return i, cli.Usage("--max-attempts: %d is not between 1 and %d", o.maxAttempts, store.MaxMaxAttempts)
		}
	}
	if len(o.retryOn) > 0 {
		text, _ := json.Marshal(o.retryOn) // can't fail
		if i.RetryOn, err = store.ParseRetryOn(string(text)); err != nil {
			return i, cli.Usage("--retry-on: want at most %d exit codes from 1 to 255", store.MaxRetryOn)
		}
	}
	return i, nil
}

// read returns the parameters; the flags win over files.
func (p *paramFlags) read(s *cli.Session, env func(string) (string, bool)) (store.Params, error) {
	params := store.Params{}
	for _, name := range p.files {
		if err := readParams(name, params); err != nil {
			return nil, err
		}
	}
	for _, flag := range p.env {
		name, value, ok := strings.Cut(flag, "=")
		if !ok {
			if value, ok = env(name); !ok {
				return nil, cli.Usage("--env %s: this variable is not set: write NAME=value", name)
			}
		}
		params[name] = value
	}
	if err := params.Check(); err != nil {
		return nil, cli.Usage("--env: %s", strings.TrimPrefix(cli.Message(err), "params: "))
	}
	for _, name := range slices.Sorted(maps.Keys(params)) {
		if looksSecret(name) {
			s.Note("takt: warning: everybody who can see the build can read the parameter %s; takt secret keeps secrets", name)
		}
	}
	if len(params) == 0 {
		return nil, nil
	}
	return params, nil
}

// changes returns what a retry changes: values, and nil for what it removes.
func (p *paramFlags) changes(s *cli.Session, env func(string) (string, bool), unset []string) (map[string]*string, error) {
	params, err := p.read(s, env)
	if err != nil || len(params)+len(unset) == 0 {
		return nil, err
	}
	changes := map[string]*string{}
	for name, value := range params {
		changes[name] = &value
	}
	for _, name := range unset {
		if _, set := changes[name]; set {
			return nil, cli.Usage("--unset-env %s: --env sets it", name)
		}
		changes[name] = nil
	}
	return changes, nil
}

// changed reports whether the new build has changes, as far as its controller says.
func changed(changes map[string]*string, taken *api.TakenInputs) bool {
	var names []string
	if taken != nil {
		names = taken.Params
	}
	for name, value := range changes {
		if slices.Contains(names, name) != (value != nil) {
			return false
		}
	}
	return true
}

// looksSecret reports whether a parameter's name says that its value is secret.
func looksSecret(name string) bool {
	return slices.ContainsFunc([]string{"TOKEN", "SECRET", "PASSWORD", "KEY"}, func(word string) bool { return strings.Contains(name, word) })
}

// maxParamsFile is more than a file of parameters can need.
const maxParamsFile = 1 << 20

// readParams reads a file of parameters.
func readParams(file string, into store.Params) error {
	f, err := os.Open(file)
	if err != nil {
		return cli.AsUsage(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxParamsFile))
	if err != nil {
		return cli.AsUsage(err)
	}
	if trimmed := bytes.TrimSpace(text); bytes.HasPrefix(trimmed, []byte("{")) {
		params, err := store.ParseParams(trimmed)
		if err != nil {
			return cli.Usage("--env-file %s: %s", file, cli.Message(err))
		}
		maps.Copy(into, params)
		return nil
	}
	for n, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if trimmed := strings.TrimSpace(line); trimmed == "" || trimmed[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if name = strings.TrimSpace(name); !ok {
			return cli.Usage("--env-file %s: line %d is not NAME=value", file, n+1) // the line may hold a secret
		}
		into[name] = value
	}
	return nil
}

// ignored returns the flags for inputs that were sent and are not in the reply.
func ignored(sent store.Inputs, taken *api.TakenInputs) (flags []string) {
	want, is := api.NewTakenInputs(&sent), taken
	if want == nil {
		return nil
	}
	if is == nil {
		is = &api.TakenInputs{}
	}
	miss := func(flag string, same bool) {
		if !same {
			flags = append(flags, flag)
		}
	}
	miss("--env", slices.Equal(want.Params, is.Params))
	miss("--env-optional", want.ParamsOptional == is.ParamsOptional)
	miss("--secret", maps.Equal(want.Secrets, is.Secrets))
	miss("--timeout", want.Timeout == is.Timeout)
	miss("--max-attempts", want.MaxAttempts == is.MaxAttempts)
	miss("--retry-on", slices.Equal(want.RetryOn, is.RetryOn))
	return flags
}

// refuse cancels a build that the controller made without what was asked for, and returns the
// error.
func refuse(ctx context.Context, s *cli.Session, build string, flags []string) error {
	err := fmt.Errorf("the controller is older than this program and does not know %s", strings.Join(flags, ", "))
	if _, cancel := s.Client.Cancel(ctx, build, "the controller ignored "+strings.Join(flags, ", ")); cancel != nil {
		return fmt.Errorf("%w; build %s was submitted without and could not be cancelled: %s", err, build, cli.Message(cancel))
	}
	return fmt.Errorf("%w; build %s was cancelled", err, build)
}

// inputRows returns the rows of takt status for a build's inputs.
func inputRows(row func(name, value string), i *api.Inputs, ended *api.Ended) {
	if i != nil {
		commit := i.Commit
		if i.Dirty != nil && *i.Dirty {
			commit += " (dirty)"
		}
		row("branch", i.Branch)
		row("commit", strings.TrimSpace(commit))
		row("remote", i.Remote)
		for _, name := range slices.Sorted(maps.Keys(i.Params)) {
			row("env", name+"="+i.Params[name])
		}
		for _, name := range slices.Sorted(maps.Keys(i.Secrets)) {
			row("secret", name+" ("+i.Secrets[name]+")")
		}
		if i.Timeout > 0 {
			row("timeout", cli.DurationText(time.Duration(i.Timeout)*time.Second))
		}
		if i.MaxAttempts > 0 {
			row("max attempts", strconv.Itoa(i.MaxAttempts))
		}
		if len(i.RetryOn) > 0 {
			row("retry on", strings.Trim(fmt.Sprint(i.RetryOn), "[]"))
		}
	}
	if ended != nil {
		row("ended by", ended.By)
		row("reason", ended.Why)
		if ended.Cause != "failed" && ended.Cause != "cancelled" {
			row("cause", ended.Cause)
		}
		row("ended with", store.NewEnded(ended.ExitCode, ended.Signal, ended.TimedOut).String())
	}
}

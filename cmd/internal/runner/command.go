package runner

import (
	"slices"
	"strconv"
)

// Workspace is where one build happens. Paths are absolute.
type Workspace struct {
	BuildID  string
	Platform string
	Attempt  int
	// Source is the unpacked source, and the command's working directory.
	Source string
	// Certs is the unpacked certificates, "" if there are none.
	Certs string
	// Output is the file that the command must produce. Its directory exists.
	Output string
	// Temp is for temporary files.
	Temp string
}

// env is the environment that every command gets.
func (w Workspace) env() []string {
	env := []string{
		"TAKT_BUILD_ID=" + w.BuildID,
		"TAKT_PLATFORM=" + w.Platform,
		"TAKT_ATTEMPT=" + strconv.Itoa(w.Attempt),
		"TAKT_SOURCE=" + w.Source,
		"TAKT_OUTPUT=" + w.Output,
	}
	if w.Certs != "" {
		env = append(env, "TAKT_CERTS="+w.Certs)
	}
	return env
}

// Plan is a process to run.
type Plan struct {
	Argv []string
	// Env is the whole environment.
	Env []string
	Dir string
	// Cleanup is run after the process group was killed, because killing it
	// does not reach everything; may be empty.
	Cleanup []string
	// secrets is a directory to remove should the worker be killed; may be
	// empty.
	secrets string
}

// Command makes the process of a build.
type Command interface {
	Plan(w Workspace) Plan
}

// Exec runs a shell script on this machine, as the worker's own user. It is no
// sandbox: use an image for sources that are not trusted.
type Exec struct {
	// Script is given to sh -c.
	Script string
	// Env is the environment besides the TAKT_ variables: PATH and HOME, say.
	// The worker's keys must not be in it.
	Env []string
}

// Plan implements [Command].
func (e Exec) Plan(w Workspace) Plan {
	env := slices.Concat(e.Env, []string{"TMPDIR=" + w.Temp, "TERM=dumb", "PWD=" + w.Source}, w.env())
	return Plan{Argv: []string{"/bin/sh", "-c", e.Script}, Env: env, Dir: w.Source}
}

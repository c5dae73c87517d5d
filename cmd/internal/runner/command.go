package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"takt/store"
)

// Workspace is where one build happens. Paths are absolute.
type Workspace struct {
	BuildID  string
	Platform string
	Attempt  int
	// Image is the base image that the controller names.
	Image string
	// Source is the unpacked source, and the command's working directory.
	Source string
	// Certs is the unpacked certificates, "" if there are none.
	Certs string
	// Params is a JSON file with the build's parameters, Secrets the directory with its secrets
	// that are files; "" if there are none.
	Params, Secrets string
	// Vars are the variables that the build brings with it, NAME=value.
	Vars []string
	// Output is the file that the command must produce. Its directory exists.
	Output string
	// Temp is for temporary files.
	Temp string

	owner   *Owner // the user that the command runs as; nil for the worker's
	envFile string // for Plan.envFile
}

// name is that of the build's container or cgroup.
func (w Workspace) name() string { return "takt-" + w.BuildID + "-" + strconv.Itoa(w.Attempt) }

// env is the environment that every command gets, without Vars.
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
	if w.Params != "" {
		env = append(env, "TAKT_PARAMS="+w.Params)
	}
	if w.Secrets != "" {
		env = append(env, "TAKT_SECRETS="+w.Secrets)
	}
	return env
}

// Plan is a process to run.
type Plan struct {
	// Argv has no values of parameters and secrets, because everyone can read it.
	Argv []string
	// Env is the environment, also that of Cleanup; vars are further variables, which take
	// precedence.
	Env, vars []string
	Dir       string
	// envFile is what the file for it has to hold; may be empty.
	envFile string
	// Cleanup is run after the process group was killed, because killing it
	// does not reach everything; may be empty.
	Cleanup []string
	// certs and secrets are directories to remove should the worker be killed; may be
	// empty.
	certs, secrets string
	// prepare is called when it is certain that they will be removed; may be nil.
	prepare func() error
	// owner is the user that it runs as; nil for the worker's.
	owner *Owner
	// cgroup is made for it; nil for the worker's.
	cgroup *cgroup
	// blame returns the limit or the worker's own fault that ended it, or the error that it
	// is given; nil if that can't be known.
	blame func(context.Context, error) error
	// written is what it wrote outside of the workspace, in bytes; nil if that can't be
	// known.
	written func(context.Context) int64
}

// Command makes the process of a build.
type Command interface {
	// Limit is called once, before the first Plan, with the limits of each build. Its
	// error is why some of them can't be enforced here.
	Limit(ctx context.Context, r Resources) error
	// Check returns why no build can run on this machine now; nil if one can. image is the
	// base image that the controller names, "" if that is not known.
	Check(ctx context.Context, image string) error
	// Prepare fetches what Check found missing, if possible. It may take long.
	Prepare(ctx context.Context, image string) error
	Plan(w Workspace) Plan
}

// checkTime bounds a check.
const checkTime = 15 * time.Second

// check runs a short command and returns why it failed, with the end of its output.
func check(ctx context.Context, env []string, argv ...string) error {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = env, "/", time.Second
	said, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	return saying(err, said)
}

// saying adds the last line of a command's output to its error.
func saying(err error, said []byte) error {
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return fmt.Errorf("%w: %s", err, store.Clip(last, 300))
	}
	return err
}

// Exec runs a shell script on this machine. It is no sandbox: use an image for
// sources that are not trusted.
type Exec struct {
	// Script is given to sh -c.
	Script string
	// Env is the environment besides the TAKT_ variables: PATH and HOME, say.
	// It must not contain the worker's keys.
	Env []string

	cgroups string // directory of the builds' cgroups; "" without
	limits  Resources
}

// plain is a command's name that means the same wherever the script runs.
var plain = regexp.MustCompile(`^(/[A-Za-z0-9_./+-]*|[A-Za-z0-9_.+-]+)$`)

// Check implements [Command]: the shell must exist, and find the script's first
// word unless that is an expression or a path within the source.
func (e *Exec) Check(ctx context.Context, _ string) error {
	words := append(strings.Fields(e.Script), "")
	if !plain.MatchString(words[0]) {
		words[0] = ":"
	}
	err := check(ctx, e.Env, "/bin/sh", "-c", `command -v -- "$1" >/dev/null`, "sh", words[0])
	if _, refused := errors.AsType[*exec.ExitError](err); refused {
		return fmt.Errorf("command %q does not exist", words[0])
	}
	return err
}

// Prepare implements [Command]: there is nothing to fetch.
func (*Exec) Prepare(context.Context, string) error { return nil }

// Limit implements [Command]: with cgroups, where this process may make them.
func (e *Exec) Limit(ctx context.Context, r Resources) (err error) {
	if r.CPUs > 0 || r.Memory > 0 {
		e.limits = r
		e.cgroups, err = openCgroups(ctx, r)
	}
	return err
}

// Plan implements [Command].
func (e *Exec) Plan(w Workspace) Plan {
	env := slices.Concat(w.owner.env(), e.Env, []string{"TMPDIR=" + w.Temp, "TERM=dumb", "PWD=" + w.Source}, w.env())
	plan := Plan{Argv: []string{"/bin/sh", "-c", e.Script}, Env: env, vars: w.Vars, Dir: w.Source, owner: w.owner}
	if e.cgroups != "" {
		g := cgroup{filepath.Join(e.cgroups, w.name()), e.limits}
		plan.cgroup, plan.Cleanup = &g, g.cleanup()
		plan.blame = func(_ context.Context, err error) error { return g.blame(err) }
	}
	return plan
}

// exitError is the failure of a command.
type exitError struct {
	Code   int
	Signal syscall.Signal // 0 if it exited by itself
}

func (e exitError) Error() string {
	if e.Signal != 0 {
		return fmt.Sprintf("ended by signal %d (%s)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("exit code %d", e.Code)
}

// drainTime is how long output is still read once the whole group is dead: only a
// process that left the group can still hold the other end.
const drainTime = 2 * time.Second

// process is a running command in a process group of its own.
type process struct {
	cmd      *exec.Cmd
	confined bool // no program gives it more privileges
	stopping atomic.Bool
	ended    chan struct{} // closed once the leader is reaped
	exit     error         // how it ended; valid then
}

// run runs plan and returns nil, an exitError, a faultError if it can't be started, or the
// cause of ctx, which ends the command: SIGTERM to its whole group, SIGKILL after grace.
// When run returns, no process of the group is left.
func run(ctx context.Context, plan Plan, stdout, stderr io.Writer, grace time.Duration) error {
	// The context is not handed to exec: it would kill the leader only.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), plan.Argv[0], plan.Argv[1:]...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = plan.Dir, slices.Concat(plan.Env, plan.vars), groupAttr()
	if plan.owner != nil {
		cmd.SysProcAttr.Credential = plan.owner.Credential
	}
	p := &process{cmd: cmd, confined: plan.owner != nil, ended: make(chan struct{})}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return notStarted(err)
	}
	errs, err := cmd.StderrPipe()
	if err != nil {
		return notStarted(errors.Join(err, out.Close()))
	}
	guard, err := newGuard(ctx, plan)
	if err != nil {
		return notStarted(fmt.Errorf("starting the guard: %w", errors.Join(err, out.Close(), errs.Close())))
	}
	if plan.prepare != nil {
		err = plan.prepare()
	}
	if err == nil {
		err = notStarted(p.begin(plan.cgroup))
	}
	if err != nil {
		guard.release(ctx)
		_, _ = out.Close(), errs.Close() // Start has closed them, if it was that
		return err
	}
	guard.hold(cmd.Process.Pid)
	var readers sync.WaitGroup
	readers.Go(func() { _, _ = io.Copy(stdout, out) })
	readers.Go(func() { _, _ = io.Copy(stderr, errs) })
	select {
	case <-p.ended:
		err = p.exit
	case <-ctx.Done():
		p.stop(grace)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	} else if err != nil && plan.blame != nil {
		err = plan.blame(ctx, err)
	}
	guard.release(ctx)
	abandon := func() { _, _ = out.Close(), errs.Close() } // ends the copying
	timer := time.AfterFunc(drainTime, abandon)
	readers.Wait()
	timer.Stop()
	abandon()
	return err
}

// notStarted is the fault of the worker, unless the build's own variables are too large.
func notStarted(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.E2BIG):
		return fmt.Errorf("the build's variables are too large for this machine; secrets can be files: %w", err)
	}
	return faultError{store.FaultCommand, fmt.Errorf("build command could not be started: %w", err)}
}

// begin starts the process, in a cgroup unless that is nil.
func (p *process) begin(g *cgroup) error {
	if g != nil {
		opened, err := g.open(p.cmd.SysProcAttr)
		if err != nil {
			return fmt.Errorf("making a cgroup: %w", err)
		}
		defer opened.Close()
	}
	started := make(chan error)
	go p.wait(started)
	return <-started
}

// wait starts the process and reaps it. It stays on one thread, because Linux
// sends the parent's death signal when the thread that started it ends.
func (p *process) wait(started chan<- error) {
	runtime.LockOSThread()
	var err error
	if p.confined {
		err = noNewPrivileges() // for good: the thread ends with this goroutine
	} else {
		defer runtime.UnlockOSThread()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	started <- err
	if err != nil {
		return
	}
	// What the command left in the background ends with it. The group is
	// killed before its leader is reaped, while its number can't be reused.
	if awaitExit(p.cmd.Process.Pid) && !p.stopping.Load() {
		killGroup(p.cmd.Process.Pid, syscall.SIGKILL)
	}
	// Not cmd.Wait, which would close the outputs before they are read.
	state, err := p.cmd.Process.Wait()
	if !p.stopping.Load() {
		killGroup(p.cmd.Process.Pid, syscall.SIGKILL)
	}
	p.exit = exitOf(state, err)
	close(p.ended)
}

// stop ends the group and waits for it.
func (p *process) stop(grace time.Duration) {
	pid := p.cmd.Process.Pid
	p.stopping.Store(true)
	killGroup(pid, syscall.SIGTERM)
	limit := time.After(grace)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	ended := p.ended
	for waiting := true; waiting && (ended != nil || groupAlive(pid)); {
		select {
		case <-ended:
			ended = nil // reaped
		case <-look.C:
		case <-limit:
			waiting = false
		}
	}
	killGroup(pid, syscall.SIGKILL)
	<-p.ended
}

func exitOf(state *os.ProcessState, err error) error {
	if err != nil {
		return err
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitError{Signal: status.Signal()}
	}
	if state.ExitCode() != 0 {
		return exitError{Code: state.ExitCode()}
	}
	return nil
}

// killGroup signals every process of a group; none left is fine.
func killGroup(pid int, sig syscall.Signal) { _ = syscall.Kill(-pid, sig) }

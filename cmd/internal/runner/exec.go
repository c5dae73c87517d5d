package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"takt/store"
)

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
	cmd.Dir, cmd.Env, cmd.SysProcAttr = plan.Dir, plan.Env, groupAttr()
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
	if err := p.begin(plan.cgroup); err != nil {
		guard.release(ctx)
		_, _ = out.Close(), errs.Close() // Start has closed them, if it was that
		return notStarted(err)
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

func notStarted(err error) error {
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

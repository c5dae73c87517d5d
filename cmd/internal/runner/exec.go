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
)

var errTimeLimit = errors.New("time limit exceeded")

// exitError is a command that did not end well.
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

// drainTime is how long output is read on once the whole group is dead: only a
// process that left the group can still hold the other end.
const drainTime = 2 * time.Second

// process is a running command in a process group of its own.
type process struct {
	cmd      *exec.Cmd
	guard    *guard
	stopping atomic.Bool
	ended    chan error
	exit     error // how it ended, once it was stopped
}

// run runs plan and returns nil, an exitError, or the cause of ctx, which ends
// the command: SIGTERM to its whole group, SIGKILL after grace. When run
// returns, no process of the group is left.
func run(ctx context.Context, plan Plan, stdout, stderr io.Writer, grace time.Duration) error {
	var readers sync.WaitGroup
	outs, err := connect(&readers, stdout, stderr)
	if err != nil {
		return err
	}
	p, err := start(ctx, plan, outs)
	if err != nil {
		outs.abandon()
		readers.Wait()
		return err
	}
	select {
	case err = <-p.ended:
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	case <-ctx.Done():
		p.stop(grace)
		err = context.Cause(ctx)
	}
	p.guard.release(ctx)
	stopped := time.AfterFunc(drainTime, outs.abandon)
	readers.Wait()
	stopped.Stop()
	outs.close()
	return err
}

// start starts plan's process and its guard.
func start(ctx context.Context, plan Plan, outs pipes) (*process, error) {
	g, err := newGuard(ctx, plan)
	if err != nil {
		return nil, fmt.Errorf("starting the guard: %w", err)
	}
	// The context is not handed to exec: it would kill the leader only.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), plan.Argv[0], plan.Argv[1:]...)
	cmd.Dir, cmd.Env = plan.Dir, plan.Env
	cmd.Stdout, cmd.Stderr = outs[0].w, outs[1].w
	cmd.SysProcAttr = groupAttr()
	p := &process{cmd: cmd, guard: g, ended: make(chan error, 1)}
	started := make(chan error)
	go p.wait(started)
	err = <-started
	outs.closeWriters()
	if err != nil {
		g.release(ctx)
		return nil, err
	}
	g.hold(cmd.Process.Pid)
	return p, nil
}

// wait starts the process and reaps it. It stays on one thread, because Linux
// sends the parent's death signal when the thread that started it ends.
func (p *process) wait(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	// What the command left in the background ends with it. The group is
	// killed before its leader is reaped, while its number can't be reused.
	if awaitExit(p.cmd.Process.Pid) && !p.stopping.Load() {
		killGroup(p.cmd.Process.Pid, syscall.SIGKILL)
	}
	err = p.cmd.Wait()
	if !p.stopping.Load() {
		killGroup(p.cmd.Process.Pid, syscall.SIGKILL)
	}
	p.ended <- exitOf(p.cmd.ProcessState, err)
}

// stop ends the group and waits for it.
func (p *process) stop(grace time.Duration) {
	pid := p.cmd.Process.Pid
	p.stopping.Store(true)
	killGroup(pid, syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	reaped := false
	for waiting := true; waiting; {
		select {
		case p.exit = <-p.ended:
			reaped = true
		case <-look.C:
		case <-timer.C:
			waiting = false
		}
		waiting = waiting && (!reaped || groupAlive(pid))
	}
	killGroup(pid, syscall.SIGKILL)
	if !reaped {
		p.exit = <-p.ended
	}
}

func exitOf(state *os.ProcessState, err error) error {
	if state == nil {
		return err
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	switch {
	case ok && status.Signaled():
		return exitError{Signal: status.Signal()}
	case state.ExitCode() != 0:
		return exitError{Code: state.ExitCode()}
	}
	return nil
}

// killGroup signals every process of a group; none left is fine.
func killGroup(pid int, sig syscall.Signal) { _ = syscall.Kill(-pid, sig) }

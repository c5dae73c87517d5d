// Package process runs takt itself as child processes, for the demo and the
// benchmarks, which show what a user would see: real processes, real signals.
//
// # State
//
// A Process holds its child and the name of the file with its output.
//
// # Failure
//
// A child that exits with a status other than zero, or has to be killed, is an
// error that carries the end of its output.
//
// # Concurrency
//
// Each child has one goroutine that waits for its end.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Process is one child: a controller or a worker. Its methods may be called
// from any goroutine.
type Process struct {
	// Name is what messages call it.
	Name string
	log  string // the file that holds its output
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how it ended; valid after done
}

// Launch starts this very binary with args and env, its output going to a
// file in dir.
func Launch(dir, name string, env []string, args ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding the takt binary: %w", err)
	}
	return launch(self, dir, name, env, args...)
}

func launch(binary, dir, name string, env []string, args ...string) (*Process, error) {
	out, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, fmt.Errorf("making the log of %s: %w", name, err)
	}
	defer out.Close()
	// Not bound to a context: children are ended in order, each by a signal that
	// lets it clean up.
	cmd := exec.Command(binary, args...) //nolint:noctx // see above
	cmd.Env = env
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = out, out
	// A Ctrl-C at the terminal goes to the parent, which ends its children itself.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p := &Process{Name: name, log: out.Name(), cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID is the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal; a process that has ended is no error.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signalling %s: %w", p.Name, err)
	}
	return nil
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Alive reports whether the process still runs.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill ends the process as a power cut would.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // gone already is fine
	<-p.done
}

// Stop asks the process to end and waits; past the limit it is killed, which is
// an error, as is a non-zero exit.
func (p *Process) Stop(ctx context.Context, limit time.Duration) error {
	if !p.Alive() {
		return p.Failure()
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return p.Failure()
	case <-ctx.Done():
	case <-timer.C:
	}
	p.Kill()
	return fmt.Errorf("%s did not stop within %s and was killed", p.Name, limit)
}

// Failure is how the process ended, nil after exit status 0. Call it after the
// end only.
func (p *Process) Failure() error {
	if p.err != nil {
		return fmt.Errorf("%s: %w%s", p.Name, p.err, p.Tail())
	}
	return nil
}

// ExitCode is the exit status, -1 if a signal ended it. Call it after the end
// only.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Output is all that the process has written so far.
func (p *Process) Output() string {
	raw, err := os.ReadFile(p.log)
	if err != nil {
		return ""
	}
	return string(raw)
}

// Tail is the end of the output, for an error message.
func (p *Process) Tail() string {
	const keep = 2000
	out := p.Output()
	if out == "" {
		return ""
	}
	return "\n" + out[max(0, len(out)-keep):]
}

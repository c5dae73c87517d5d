// Package process runs takt as child processes, for the demo, the benchmarks and
// the end-to-end tests, which see what a user would see: real processes, real
// signals.
//
// # State
//
// A Site says what to run and where. A Process holds its child and the name of the
// file with its output.
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
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"takt/cmd/internal/await"
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

// Await waits until cond holds, as [await.Until] does, and not longer than the process
// lives. progress may be nil.
func (p *Process) Await(ctx context.Context, what string, progress func() string, cond func(context.Context) (bool, error)) error {
	var own error // of cond, or the end of the process
	err := await.Until(ctx, what, progress, func(ctx context.Context) (bool, error) {
		alive := p.Alive() // before, because it may end well when cond holds
		ok, err := cond(ctx)
		if !ok && err == nil && !alive {
			err = fmt.Errorf("%s ended while waiting for %s: %w%s", p.Name, what, cmp.Or(p.err, errors.New("exit status 0")), p.Tail())
		}
		own = err
		return ok, err
	})
	if err == nil || own != nil {
		return err
	}
	return fmt.Errorf("%w%s", err, p.Tail())
}

// Worked is the processor time of the commands that the process runs or ran; 0 on other
// systems than Linux. Its own time is not in it, because it also answers whoever asks it
// something.
func (p *Process) Worked() time.Duration { return below(p.PID()) }

// Progress is what the process has done, for [await.Until]: how much it has written, and how
// much its commands have worked.
func (p *Process) Progress() string {
	written := int64(0)
	if st, err := os.Stat(p.log); err == nil {
		written = st.Size()
	}
	return fmt.Sprintf("%s wrote %d bytes, its commands worked %s", p.Name, written, p.Worked().Truncate(time.Second))
}

// Resident reads how much memory the process has resident, in bytes, and the most
// that it ever had.
func (p *Process) Resident() (now, most int, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return 0, 0, fmt.Errorf("reading the memory of %s: %w", p.Name, err)
	}
	for line := range strings.Lines(string(raw)) {
		_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &now) // the other lines
		_, _ = fmt.Sscanf(line, "VmHWM: %d kB", &most)
	}
	return now << 10, most << 10, nil
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
	raw, _ := os.ReadFile(p.log) // without it there is nothing to show
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

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

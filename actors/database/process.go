package database

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

// pollEvery is how often takt checks a process that is not its child.
const pollEvery = 50 * time.Millisecond

// spawn runs a function in a goroutine of the actor. A panic in it crashes the actor, and the
// actor waits for its end.
type spawn func(func())

// process is a running server: a child, or one adopted from a killed takt.
type process struct {
	pid    int
	handle *os.Process // of a child; nil for an adopted server
	info   os.FileInfo // identifies the cluster's directory
	stderr *logPipe    // nil if an adopted server's log can't be read

	ended chan struct{} // closed by watch when the server has ended
	fate  error         // why it has ended; read only after ended is closed
	leave chan struct{} // closed to end watch
}

// errEnded reports that a server ended without a stop request.
var errEnded = errors.New("the database server ended")

// start launches the server, and spawns the goroutines that read its log and wait for its
// end.
func (cl *cluster) start() (*process, error) {
	logs, stderr, err := newLogPipe(cl.logPath(), cl.log)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		logs.close()
		return nil, fmt.Errorf("starting the database server: %w", err)
	}
	defer null.Close()
	home, files := inherited(cl.home, cl.dir)
	program := cl.bins.path("postgres")
	// os.StartProcess is used instead of os/exec, because no context may kill the server, and
	// its log must work after takt has ended.
	handle, err := os.StartProcess(program, append([]string{program}, arguments(home)...), &os.ProcAttr{
		Dir:   "/",
		Env:   environment(cl.bins),
		Files: append([]*os.File{null, stderr, stderr}, files...),
		Sys:   processAttributes(cl.owner),
	})
	if err != nil {
		logs.close()
		return nil, fmt.Errorf("starting the database server: %w", err)
	}
	p := cl.newProcess(handle.Pid, logs)
	p.handle = handle
	cl.run(p.watch)
	cl.run(logs.read)
	return p, nil
}

// adopt takes over the running server pid, which an earlier takt started.
func (cl *cluster) adopt(pid int) *process {
	logs, err := reopenLogPipe(cl.logPath(), cl.log)
	if err != nil {
		cl.log.Warn().Err(err).Msg("log of the adopted database server unavailable")
	}
	p := cl.newProcess(pid, logs)
	cl.run(p.watch)
	if logs != nil {
		cl.run(logs.read)
	}
	return p
}

func (cl *cluster) newProcess(pid int, logs *logPipe) *process {
	return &process{pid: pid, info: cl.info, stderr: logs, ended: make(chan struct{}), leave: make(chan struct{})}
}

// watch waits until the server ends.
func (p *process) watch() {
	defer close(p.ended)
	if p.handle != nil {
		state, err := p.handle.Wait()
		if err != nil {
			p.fate = fmt.Errorf("%w: %w", errEnded, err)
		} else {
			p.fate = fmt.Errorf("%w: %s", errEnded, state)
		}
		return
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for identify(p.pid, p.info) == server {
		select {
		case <-tick.C:
		case <-p.leave:
			p.fate = errors.New("no longer watched")
			return
		}
	}
	p.fate = fmt.Errorf("%w (process %d, adopted)", errEnded, p.pid)
}

// running reports whether the server has not ended yet.
func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// signal sends sig to the server and to no other process. A child's process id is not
// reused before the child was waited for. An adopted server's identity is checked first.
func (p *process) signal(sig syscall.Signal) error {
	if p.handle != nil {
		return p.handle.Signal(sig)
	}
	if identify(p.pid, p.info) != server {
		return os.ErrProcessDone
	}
	return syscall.Kill(p.pid, sig)
}

// stop stops the server: with a fast shutdown (SIGINT: sessions are closed, all data is
// written), after the time fast with an immediate one (SIGQUIT: the next start recovers from
// the log), and after quit with SIGKILL. It returns an error if the server still runs.
func (p *process) stop(ctx context.Context, fast, quit time.Duration, log zerolog.Logger) error {
	for _, step := range []struct {
		sig  syscall.Signal
		wait time.Duration
	}{{syscall.SIGINT, fast}, {syscall.SIGQUIT, quit}, {syscall.SIGKILL, quit}} {
		if !p.running() {
			return nil
		}
		if step.sig != syscall.SIGINT {
			log.Warn().Int("pid", p.pid).Stringer("signal", step.sig).Msg("database server does not stop")
		}
		if err := p.signal(step.sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			log.Warn().Err(err).Int("pid", p.pid).Stringer("signal", step.sig).Msg("could not signal the database server")
		}
		timer := time.NewTimer(step.wait)
		select {
		case <-p.ended:
			timer.Stop()
			return nil
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("stopping the database server (process %d): %w", p.pid, context.Cause(ctx))
		}
	}
	return errors.New("the database server (process " + strconv.Itoa(p.pid) + ") does not stop")
}

// release ends the goroutines that start or adopt spawned. If the server has ended, it
// first waits a moment for the log's last lines.
func (p *process) release() {
	close(p.leave)
	if p.stderr == nil {
		return
	}
	if !p.running() {
		p.stderr.drain(100 * time.Millisecond)
	}
	p.stderr.close()
}

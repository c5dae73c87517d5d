package database

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"takt/store/backoff"
)

// startAttempts is how often the start is tried if the server ends during it, because a
// backend of an earlier server may keep the shared memory for a short time.
const startAttempts = 5

// bringUp returns a server that answers: it adopts the one that an earlier takt has left
// running, or starts a new one. The caller stops and releases it.
func (cl *cluster) bringUp(ctx context.Context) (*process, error) {
	changed, err := applySettings(cl.root, cl.owner)
	if err != nil {
		return nil, err
	}
	if !changed {
		if p, ok := cl.tryAdopt(ctx); ok {
			return p, nil
		}
	}
	for attempt := 0; ; attempt++ {
		p, err := cl.startOnce(ctx)
		if err == nil {
			return p, nil
		}
		if !errors.Is(err, errEnded) || attempt+1 == startAttempts {
			return nil, err
		}
		cl.log.Warn().Err(err).Int("attempt", attempt+1).Msg("database server did not start; retrying")
		if err := backoff.Pause(ctx, 100*time.Millisecond<<attempt); err != nil {
			return nil, err
		}
	}
}

// tryAdopt takes over a server that runs in the cluster and answers.
func (cl *cluster) tryAdopt(ctx context.Context) (*process, bool) {
	lock, found, err := readLockFile(cl.root, pidFileName)
	if err != nil || !found || lock.Status == statusStopping || identify(lock.PID, cl.info) != server {
		return nil, false
	}
	if lock.Status != statusStarting { // a recovery may take long and must not begin again
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, 5*time.Second, errors.New("no answer for 5 s"))
		defer cancel()
	}
	p := cl.adopt(lock.PID)
	if err := cl.awaitReady(ctx, p); err != nil {
		cl.log.Warn().Err(err).Int("pid", p.pid).Msg("a database server of an earlier takt does not answer")
		p.release()
		return nil, false
	}
	cl.log.Info().Int("pid", p.pid).Msg("adopted the database server of an earlier takt")
	return p, true
}

// startOnce cleans up after earlier servers, starts a server and waits until it answers.
func (cl *cluster) startOnce(ctx context.Context) (*process, error) {
	if err := cl.clear(ctx); err != nil {
		return nil, err
	}
	p, err := cl.start()
	if err != nil {
		return nil, err
	}
	err = cl.awaitReady(ctx, p)
	if err == nil {
		return p, nil
	}
	// ctx may have ended, but the server must still get an orderly stop.
	if stopErr := p.stop(context.WithoutCancel(ctx), 5*time.Second, 2*time.Second, cl.log); stopErr != nil {
		err = errors.Join(err, stopErr)
	}
	p.release()
	if words := p.stderr.lastWords(); words != "" {
		err = fmt.Errorf("%w: %s", err, words)
	}
	return nil, fmt.Errorf("starting the database server: %w", err)
}

// awaitReady waits until the server answers, ends, or rejects takt's login. It logs a
// long recovery every few seconds.
func (cl *cluster) awaitReady(ctx context.Context, p *process) error {
	wait, since, told := 5*time.Millisecond, time.Now(), time.Now()
	for {
		err := cl.probeOnce(ctx)
		if err == nil {
			return nil
		}
		if refused(err) {
			return fmt.Errorf("the password in %s is not the database's (without that file a new one is made): %w", passwordFileName, err)
		}
		if time.Since(told) > 5*time.Second {
			told = time.Now()
			cl.log.Warn().Err(err).Dur("since", time.Since(since)).Msg("waiting for the database server to answer")
		}
		timer := time.NewTimer(wait)
		select {
		case <-p.ended:
			timer.Stop()
			return p.fate
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w (last: %w)", context.Cause(ctx), err)
		case <-timer.C:
		}
		wait = min(2*wait, 50*time.Millisecond)
	}
}

// probeOnce probes the server with a time limit, because one that accepts a connection and
// then hangs must not use up the whole waiting time. It does not probe a server whose lock file
// says that it is not ready, because that would log each refusal.
func (cl *cluster) probeOnce(ctx context.Context) error {
	lock, _, err := readLockFile(cl.root, pidFileName)
	if err != nil {
		return err
	}
	if lock.Status != statusReady {
		return fmt.Errorf("the server's state is %q", lock.Status)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 3*time.Second, errors.New("the server accepted and did not answer for 3 s"))
	defer cancel()
	return cl.probe(ctx)
}

// clear prepares the cluster for a new server. It stops a running server, ends backends that
// are left of a killed one, and removes lock files whose process is gone or is another
// program.
func (cl *cluster) clear(ctx context.Context) error {
	lock, found, err := readLockFile(cl.root, pidFileName)
	if err != nil {
		return err
	}
	if found && identify(lock.PID, cl.info) == server {
		cl.log.Warn().Int("pid", lock.PID).Msg("stopping the database server of an earlier takt")
		p := cl.adopt(lock.PID)
		defer p.release()
		if err := p.stop(ctx, stopTimeout, quitTimeout, cl.log); err != nil {
			return err
		}
	}
	if err := cl.endLeftovers(ctx); err != nil {
		return err
	}
	for _, name := range []string{pidFileName, socketLockName()} {
		if err := cl.removeStale(name); err != nil {
			return err
		}
	}
	return nil
}

// removeStale removes a lock file (the cluster's or the socket's) of a server that is gone.
// PostgreSQL takes a zombie or a reused process id for a running server and would refuse to
// start. Where serversIn can't list processes, the file of a dead server stays, because
// PostgreSQL's check of the shared memory needs it.
func (cl *cluster) removeStale(name string) error {
	lock, found, err := readLockFile(cl.root, name)
	if err != nil || !found {
		return err
	}
	who := identify(lock.PID, cl.info)
	if who != foreign && (who != gone || !hasProc) {
		return nil
	}
	if err := cl.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing a stale lock file: %w", err)
	}
	cl.log.Info().Str("file", name).Int("pid", lock.PID).Stringer("process", who).Msg("removed the lock file of a database server that is gone")
	return nil
}

// endLeftovers waits for backends without a postmaster, which exit by themselves unless they
// are busy. Busy ones get SIGQUIT, as the postmaster would send it, and later SIGKILL.
func (cl *cluster) endLeftovers(ctx context.Context) error {
	none := func() bool { return len(serversIn(cl.info)) == 0 }
	for _, step := range []struct {
		sig  syscall.Signal
		wait time.Duration
	}{{0, 150 * time.Millisecond}, {syscall.SIGQUIT, 2 * time.Second}, {syscall.SIGKILL, 5 * time.Second}} {
		for _, pid := range serversIn(cl.info) {
			if step.sig != 0 {
				cl.log.Warn().Int("pid", pid).Stringer("signal", step.sig).Msg("ending a process of a killed database server")
				_ = syscall.Kill(pid, step.sig) // it may just have ended
			}
		}
		ended, err := until(ctx, step.wait, none)
		if ended || err != nil {
			return err
		}
	}
	return fmt.Errorf("processes of a killed database server do not end: %v", serversIn(cl.info))
}

// until waits at most d until condition is true, and reports whether it is.
func until(ctx context.Context, d time.Duration, condition func() bool) (bool, error) {
	deadline := time.Now().Add(d)
	for !condition() {
		if time.Now().After(deadline) {
			return false, nil
		}
		if err := backoff.Pause(ctx, 10*time.Millisecond); err != nil {
			return false, err
		}
	}
	return true, nil
}

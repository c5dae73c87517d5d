package actors

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"takt/actors/otp"
	"takt/store"
)

// ErrRestart is the reason of a root that an operator has restarted: it asks for another
// Start. See Tree.Reason.
var ErrRestart = errors.New(otp.Operator)

// Restart ends the running child at path with {shutdown, operator} and starts it again,
// with the children that its supervisor's strategy restarts with it. It returns when
// they are up. The root is restarted by the caller that watches Done.
//
// The end of ctx ends the wait only. Errors: NotFound, Conflict (its state or
// its type does not allow it), Timeout (ctx ended), Unavailable (the start
// failed; it is retried as after a crash).
func (t *Tree) Restart(ctx context.Context, path string) error {
	if path == root {
		return t.restartRoot(ctx)
	}
	sup, id := t.split(path)
	_, err := otp.RestartRunning(ctx, sup, id)
	return refusal(ctx, path, err)
}

func (t *Tree) restartRoot(ctx context.Context) error {
	ref := t.sys.Ref(root)
	top := ref.Whereis()
	if top == nil {
		return refusal(ctx, root, otp.ErrRestarting)
	}
	top.Exit(otp.Shutdown(ErrRestart))
	select {
	case <-top.Done():
	case <-ctx.Done():
		return refusal(ctx, root, otp.ErrTimeout)
	}
	if _, err := ref.Await(ctx); err != nil {
		return refusal(ctx, root, otp.ErrTimeout)
	}
	return nil
}

// Terminate is OTP's terminate_child: the child at path stops, and only StartChild starts
// it again. Terminating the root ends the process, see Terminated. Errors as in Restart.
func (t *Tree) Terminate(ctx context.Context, path string) error {
	if path == root {
		t.terminate.Do(func() { close(t.terminated) })
		return nil
	}
	sup, id := t.split(path)
	return refusal(ctx, path, otp.TerminateChild(ctx, sup, id))
}

// StartChild is OTP's restart_child: it starts what Terminate has stopped.
// Errors as in Restart.
func (t *Tree) StartChild(ctx context.Context, path string) error {
	if path == root {
		return refusal(ctx, path, otp.ErrRunning)
	}
	sup, id := t.split(path)
	_, err := otp.RestartChild(ctx, sup, id)
	return refusal(ctx, path, err)
}

// split splits a path into the supervisor, whose name is its path, and the child's id.
func (t *Tree) split(path string) (sup otp.Ref, id string) {
	i := strings.LastIndexByte(path, '/')
	return t.sys.Ref(path[:max(i, 0)]), path[i+1:]
}

// refusal turns a supervisor's error into one for operators.
func refusal(ctx context.Context, path string, err error) error {
	var down *otp.DownError
	is := func(target error) bool { return errors.Is(err, target) }
	say := func(code store.Code, format string, args ...any) error {
		return store.Wrap(code, path+" "+fmt.Sprintf(format, args...), err)
	}
	switch {
	case err == nil:
		return nil
	case is(otp.ErrTimeout), ctx.Err() != nil && is(context.Cause(ctx)):
		return say(store.Timeout, "was not done in time; its supervisor goes on with it")
	case is(otp.ErrNotFound):
		return store.Wrap(store.NotFound, "No such process", err)
	case is(otp.ErrRunning):
		return say(store.Conflict, "is running")
	case is(otp.ErrRestarting):
		return say(store.Conflict, "is being restarted already")
	case is(otp.ErrNotRunning):
		return say(store.Conflict, "is terminated: start it")
	case is(otp.ErrTemporary), is(otp.ErrSimpleOneForOne):
		return say(store.Conflict, "is temporary: nobody starts it again")
	case is(otp.ErrNoProc):
		return say(store.Conflict, "has no running supervisor")
	case errors.As(err, &down):
		return say(store.Unavailable, "lost its supervisor: %v", down.Reason)
	default:
		return say(store.Unavailable, "did not start: %v", err)
	}
}

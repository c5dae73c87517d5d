package runner

import (
	"context"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// guardScript reads the id of the group to watch, then waits for a second line.
// If the pipe ends without one, the worker is dead, or could not start the command: the
// group is killed, and so are the other processes of the user in the first argument, by
// the program in $0. The directories of secrets in the second and the third argument are
// removed, and the rest of the arguments, the clean-up command, is run. It ignores the
// signals that a terminal sends to everybody.
const guardScript = `trap '' HUP INT TERM QUIT
read -r group && read -r word && exit 0
[ -n "$group" ] && kill -KILL "-$group" 2>/dev/null
[ -n "$1" ] && "$0" ` + helperName + ` "$1"
[ -n "$2" ] && rm -rf -- "$2"
[ -n "$3" ] && rm -rf -- "$3"
shift 3
[ $# -gt 0 ] && exec "$@"
exit 0`

// guard is a small process that outlives a worker killed with SIGKILL, and ends
// what that worker was running. Without it the grandchildren of a dead worker
// would go on unnoticed, next to a second run of the same build elsewhere.
type guard struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
	plan Plan
	held bool
}

func newGuard(ctx context.Context, plan Plan) (*guard, error) {
	program, uid := "takt-guard", ""
	if plan.owner != nil {
		var err error
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
		uid = plan.owner.id()
	}
	args := slices.Concat([]string{"-c", guardScript, program, uid, plan.certs, plan.secrets}, plan.Cleanup)
	g := &guard{
		cmd:  exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", args...),
		plan: plan,
	}
	g.cmd.Env, g.cmd.Dir = plan.Env, "/"
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := g.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	g.pipe = pipe
	return g, g.cmd.Start()
}

// hold names the group to watch.
func (g *guard) hold(group int) {
	g.held = true
	_, _ = io.WriteString(g.pipe, strconv.Itoa(group)+"\n")
}

// cleanupTime bounds the clean-up command.
const cleanupTime = 30 * time.Second

// release dismisses the guard after the group is gone, and cleans up what was
// outside of the group.
func (g *guard) release(ctx context.Context) {
	if g.held {
		_, _ = io.WriteString(g.pipe, "done\n")
	}
	_ = g.pipe.Close()
	_ = g.cmd.Wait()
	g.plan.cleanUp(ctx)
}

// cleanUp runs the clean-up command, if there is one, also after ctx has ended.
func (p Plan) cleanUp(ctx context.Context) {
	if len(p.Cleanup) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.Cleanup[0], p.Cleanup[1:]...)
	cmd.Env = p.Env
	_ = cmd.Run() // there may be nothing to remove
}

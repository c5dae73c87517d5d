package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"takt/cmd/internal/mask"
	"takt/store/backoff"
)

// Owner is a user that builds' commands run as, one build at a time. Nothing else may run
// as it: all of its processes are killed before and after each build.
type Owner struct {
	Name, Home string
	Credential *syscall.Credential

	// secrets are those of its last build, which the names of left-over processes may have. Only
	// the goroutine of its slot uses them.
	secrets *mask.Set
}

// FindOwner looks up a user by name or number. A number without an entry is accepted: its
// group has the same number, and its home directory is /.
func FindOwner(name string) (*Owner, error) {
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.LookupId(name)
	}
	if number, bad := strconv.ParseUint(name, 10, 32); err != nil && bad == nil && number < math.MaxUint32 { // which stands for no user
		if g, err := user.LookupGroupId(name); err == nil { // it may have rights, such as shadow's
			return nil, fmt.Errorf("user %s has no entry, and the group of that number is %s", name, g.Name)
		}
		u, err = &user.User{Uid: name, Gid: name, Username: name, HomeDir: "/"}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("no user %q", name)
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	switch {
	case err1 != nil || err2 != nil:
		return nil, fmt.Errorf("user %q has no numeric ids", name)
	case uid == 0:
		return nil, fmt.Errorf("user %q is root", name)
	case os.Geteuid() != 0:
		return nil, fmt.Errorf("only root can run commands as user %q", name)
	}
	return &Owner{Name: u.Username, Home: u.HomeDir, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

func (o *Owner) id() string { return strconv.Itoa(int(o.Credential.Uid)) }

// lockPath is where workers of this machine lock the user: each would end the other's
// builds.
func (o *Owner) lockPath() string { return "/var/run/takt-user-" + o.id() + ".lock" }

// env is what a login would set.
func (o *Owner) env() []string {
	if o == nil {
		return nil
	}
	return []string{"HOME=" + o.Home, "USER=" + o.Name, "LOGNAME=" + o.Name}
}

// claimOwners makes the owners this worker's alone until the function that it returns is
// called, and ends what a killed worker left of theirs. If none was killed, their
// processes belong to another program: then it fails and ends nothing.
func claimOwners(ctx context.Context, owners []*Owner, killed bool, limit time.Duration) (release func(), err error) {
	var locks []*os.File
	release = func() {
		for _, f := range locks {
			unlock(f)
		}
	}
	for _, o := range owners {
		f, err := lockFile(o.lockPath(), "user "+o.Name)
		if err != nil {
			release()
			return nil, err
		}
		locks = append(locks, f)
		left, err := o.processes(ctx)
		if err == nil && len(left) > 0 && !killed {
			err = fmt.Errorf("user %s has processes already (%s): builds need users that nothing else uses", o.Name, strings.Join(left, ", "))
		}
		if err == nil {
			err = o.endProcesses(ctx, limit)
		}
		if err != nil {
			release()
			return nil, err
		}
	}
	return release, nil
}

// endProcesses kills every process of the owner, also those that left their group, and
// returns once none is left. It fails if that takes longer than limit, as with a process in
// uninterruptible sleep.
func (o *Owner) endProcesses(ctx context.Context, limit time.Duration) error {
	if o == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	for {
		// Killing reaches all at once. Looking does not: a process that forks and ends
		// all the time can be missed, but once killed it forks no more.
		err := o.kill(ctx)
		left, unseen := o.processes(context.WithoutCancel(ctx))
		if err == nil && unseen == nil && len(left) == 0 {
			return nil
		}
		_ = backoff.Pause(ctx, 10*time.Millisecond)
		if ctx.Err() != nil {
			if len(left) > 0 {
				err = errors.New("still there: " + strings.Join(left, ", "))
			}
			return fmt.Errorf("ending the processes of user %s: %w", o.Name, errors.Join(err, unseen))
		}
	}
}

// helperName is the first argument of the process that kill starts.
const helperName = "end-processes-of-user"

// kill kills every process of the owner. It starts a process for that, because the kernel
// checks the user of the sender, and the worker has to stay root.
func (o *Owner) kill(ctx context.Context) error {
	path, err := self()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, helperName, o.id())
	cmd.Env, cmd.Dir = []string{}, "/"
	if said, err := cmd.CombinedOutput(); err != nil {
		return saying(err, said)
	}
	return nil
}

// Helper does the work of the process that a worker starts to end those of a user, if args
// are that one's, and reports whether they are. A program with workers calls it first.
func Helper(args []string) (code int, ran bool) {
	if len(args) != 3 || args[1] != helperName {
		return 0, false
	}
	uid, err := strconv.ParseUint(args[2], 10, 32)
	if err == nil && (uid == 0 || uid == math.MaxUint32) {
		err = errors.New("not one whose processes can be ended")
	}
	if err == nil {
		err = killUser(int(uid))
	}
	if err != nil && !errors.Is(err, syscall.ESRCH) { // there may be none
		fmt.Fprintf(os.Stderr, "user %s: %s\n", args[2], err)
		return 1, true
	}
	return 0, true
}

// endProcesses ends those of a build's user, and records whether some are left.
func (w *Worker) endProcesses(ctx context.Context, o *Owner) error {
	err := o.endProcesses(ctx, w.cfg.KillGrace)
	if err != nil {
		err = withoutSecrets(err, o.secrets)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.stuck[o] = err
	} else {
		delete(w.stuck, o)
	}
	return err
}

// vacate releases a slot once no process of its user is left; until then the slot takes
// no build. ctx ends the wait.
func (w *Worker) vacate(ctx context.Context, slots chan<- *Owner, o *Owner) {
	for failures := 0; w.slotFault(o) != nil; failures++ {
		if failures == 0 {
			w.log.Error().Err(w.slotFault(o)).Msg("slot takes no builds until these processes are gone")
			w.Report()
		}
		_ = backoff.Pause(ctx, w.cfg.Backoff.Wait(failures))
		if ctx.Err() != nil {
			return
		}
		if w.endProcesses(ctx, o) == nil {
			w.log.Info().Str("user", o.Name).Msg("slot takes builds again")
			w.Report()
		}
	}
	slots <- o
}

// slotFault returns why the slot of a user takes no builds; nil if it does.
func (w *Worker) slotFault(o *Owner) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stuck[o]
}

// checkSlots is a check of the diagnostic report.
func (w *Worker) checkSlots(context.Context) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, err := range w.stuck {
		return "", fmt.Errorf("%d of %d slots take no builds: %w", len(w.stuck), w.cfg.Concurrency, err)
	}
	return "all slots take builds", nil
}

// open lets the owner traverse the directories above builds.
func (o *Owner) open(dirs ...string) error {
	for _, dir := range dirs {
		if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // others may pass, not look
			return err
		}
	}
	return nil
}

// give makes everything below dirs the owner's.
func (o *Owner) give(dirs ...string) error {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, int(o.Credential.Uid), int(o.Credential.Gid)) //nolint:gosec // nothing of the owner runs
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// take returns a directory to the worker, so that the owner can no longer change it.
func (o *Owner) take(dir string) error {
	if err := os.Lchown(dir, os.Geteuid(), os.Getegid()); err != nil {
		return err
	}
	return os.Chmod(dir, 0o700) //nolint:gosec // a directory
}

package forge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"takt/store/backoff"
)

// program is what is known of git, found out once.
type program struct {
	looked   bool
	git, lfs string // paths; "" if missing
}

// programs looks for git and git-lfs on the PATH of Environ, once.
func (g *GitHub) programs() program {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.program.looked {
		g.program = program{looked: true, git: g.lookPath("git"), lfs: g.lookPath("git-lfs")}
	}
	return g.program
}

func (g *GitHub) gitPath() string { return g.programs().git }

func (g *GitHub) lookPath(name string) string {
	for _, kv := range g.cfg.Environ {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			for _, dir := range filepath.SplitList(path) {
				if found, err := exec.LookPath(filepath.Join(dir, name)); err == nil && filepath.IsAbs(found) {
					return found
				}
			}
		}
	}
	return ""
}

// Copied is a repository that was copied.
type Copied struct {
	// Refs are what was pushed.
	Refs Refs
	// Warning is what the copy lacks; "" for nothing.
	Warning string
}

// Refs asks the forge for a repository's branches and tags.
func (a *Account) Refs(ctx context.Context, cloneURL string) (refs Refs, err error) {
	if err := a.g.checkClone(cloneURL); err != nil {
		return nil, err
	}
	err = a.persist(ctx, func() error {
		out, err := a.git(ctx, a.g.cfg.WorkDir, "ls-remote", "--heads", "--tags", "--", cloneURL)
		if err != nil {
			return a.explainGit("Reading the branches and tags", err)
		}
		refs, err = parseRefs(out)
		return err
	})
	return refs, err
}

// refspecs are what is pushed: everything that isCopied.
func refspecs() []string { return []string{"+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"} }

// Copy mirrors one repository and pushes its branches and tags into another,
// which is to be ours alone: what else it has of these is removed. It may be
// repeated. Nothing stays on disk, whatever happens.
func (a *Account) Copy(ctx context.Context, from, to string) (c Copied, err error) {
	for _, u := range []string{from, to} {
		if err := a.g.checkClone(u); err != nil {
			return c, err
		}
	}
	dir, err := os.MkdirTemp(a.g.cfg.WorkDir, "mirror-")
	if err != nil {
		return c, fmt.Errorf("making a directory for a mirror: %w", err)
	}
	defer func() { err = errors.Join(err, removeAll(dir)) }()
	mirror := filepath.Join(dir, "repo.git")
	if err := a.persist(ctx, func() error { return a.clone(ctx, from, dir, mirror) }); err != nil {
		return c, err
	}
	out, err := a.git(ctx, mirror, "for-each-ref", "--format=%(objectname) %(refname)")
	if err != nil {
		return c, a.explainGit("Reading the mirror", err)
	}
	if c.Refs, err = parseRefs(out); err != nil || len(c.Refs) == 0 {
		return c, err // an empty repository has nothing to push
	}
	err = a.persist(ctx, func() error {
		if c.Warning, err = a.copyLFS(ctx, mirror, to, c.Refs); err != nil {
			return err
		}
		return a.push(ctx, mirror, to)
	})
	return c, err
}

func (a *Account) clone(ctx context.Context, from, dir, mirror string) error {
	if err := removeAll(mirror); err != nil { // of the try before
		return err
	}
	if _, err := a.git(ctx, dir, "clone", "--mirror", "--quiet", "--template=", "--", from, mirror); err != nil {
		return a.explainGit("Cloning", err)
	}
	return nil
}

func (a *Account) push(ctx context.Context, mirror, to string) error {
	args := append([]string{"push", "--quiet", "--prune", "--no-verify", "--", to}, refspecs()...)
	_, err := a.git(ctx, mirror, args...)
	if err == nil {
		return nil
	}
	err = a.explainGit("Pushing", err)
	// It was made a moment ago: not every server of the forge may know of it.
	if e, ok := errors.AsType[*Error](err); ok && strings.Contains(strings.ToLower(e.Message), "not found") {
		e.passing = true
	}
	return err
}

// gitTries is how often a git command is run that the network has failed.
const gitTries = 4

// persist repeats f while it fails for a reason that may pass.
func (a *Account) persist(ctx context.Context, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		e, ok := errors.AsType[*Error](err)
		if !ok || !e.passing || try == gitTries {
			return err
		}
		pause := backoff.Backoff{Min: a.g.cfg.Backoff}.Wait(try - 1)
		a.notice(time.Now().Add(pause))
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// removeAll removes a directory of ours. git makes its objects read-only, which
// matters to nobody but the owner of the directory: root or not, we may.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("removing a mirror: %w", err)
	}
	return nil
}

// explainGit puts a failed git command into words for users.
func (a *Account) explainGit(doing string, err error) error {
	e, ok := errors.AsType[*gitError](err)
	switch {
	case !ok:
		return err
	case errors.Is(err, exec.ErrNotFound):
		return &Error{Message: "The git program is not installed where takt runs", Err: err}
	case errors.Is(err, errGitTooSlow):
		return &Error{Message: doing + " took longer than " + a.g.cfg.GitTimeout.String(), Err: err}
	}
	if _, exited := errors.AsType[*exec.ExitError](err); !exited {
		return err // it was ended from outside, or not started
	}
	return &Error{Message: doing + " failed: " + e.said, Err: err, passing: isPassing(e.said)}
}

// isPassing reports whether git failed for a reason of the network, of a server
// in trouble, or of somebody else who writes the same refs: the forge may still be
// at the push of a controller that was killed.
func isPassing(said string) bool {
	for _, word := range []string{
		"error: 500", "error: 502", "error: 503", "error: 504", "error: 429", "Could not resolve host", "Failed to connect",
		"Connection reset", "Connection refused", "Connection timed out", "Operation too slow", "Operation timed out",
		"the remote end hung up", "early EOF", "unexpected disconnect", "RPC failed", "Empty reply from server", "GnuTLS recv error",
		"SSL_ERROR_SYSCALL", "unable to rewind rpc post data", "cannot lock ref", "failed to update ref",
	} {
		if strings.Contains(said, word) {
			return true
		}
	}
	return false
}

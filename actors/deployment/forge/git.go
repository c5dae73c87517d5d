package forge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// lookPath finds a program on Environ's PATH. It returns "" if there is none.
func (g *GitHub) lookPath(name string) string {
	for _, kv := range g.cfg.Environ {
		path, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(path) {
			if found, err := exec.LookPath(filepath.Join(dir, name)); err == nil && filepath.IsAbs(found) {
				return found
			}
		}
	}
	return ""
}

// Copied is the result of a copy.
type Copied struct {
	// Refs are the pushed refs.
	Refs Refs
	// Warning is what the copy lacks, "" if it is complete.
	Warning string
}

// Copy mirrors one repository and pushes its branches and tags into another. The target
// must belong to takt alone, because other branches and tags there are removed. Copy may
// be repeated. It always removes its files.
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
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	mirror := filepath.Join(dir, "repo.git")
	if err := a.persist(ctx, func() error { return a.clone(ctx, from, dir, mirror) }); err != nil {
		return c, err
	}
	out, err := a.git(ctx, mirror, nil, "for-each-ref", "--format=%(objectname) %(refname)")
	if err != nil {
		return c, a.explainGit("Reading the mirror", err)
	}
	if c.Refs, err = parseRefs(out); err != nil || len(c.Refs) == 0 {
		return c, err // an empty repository has nothing to push
	}
	err = a.persist(ctx, func() error {
		if c.Warning, err = a.copyLFS(ctx, mirror, from, to, c.Refs); err != nil {
			return err
		}
		return a.push(ctx, mirror, to)
	})
	return c, err
}

func (a *Account) clone(ctx context.Context, from, dir, mirror string) error {
	if err := os.RemoveAll(mirror); err != nil { // from the try before
		return fmt.Errorf("removing a mirror: %w", err)
	}
	if _, err := a.git(ctx, dir, nil, "clone", "--mirror", "--quiet", "--template=", "--", from, mirror); err != nil {
		return a.explainGit("Cloning", err)
	}
	return nil
}

func (a *Account) push(ctx context.Context, mirror, to string) error {
	// Push all refs that isCopied accepts.
	_, err := a.git(ctx, mirror, nil, "push", "--quiet", "--prune", "--no-verify", "--", to, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
	if err == nil {
		return nil
	}
	err = a.explainGit("Pushing", err)
	// The repository was just created, so some servers of the forge may not know it yet.
	if e, ok := errors.AsType[*Error](err); ok && strings.Contains(strings.ToLower(e.Message), "not found") {
		e.passing = true
	}
	return err
}

// gitTries is how often a git command is tried when the network fails.
const gitTries = 4

// persist repeats f while it fails for a temporary reason.
func (a *Account) persist(ctx context.Context, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		e, ok := errors.AsType[*Error](err)
		if !ok || !e.passing || try == gitTries {
			return err
		}
		if err := a.backOff(ctx, try); err != nil {
			return err
		}
	}
}

// explainGit makes an error for users from a failed git command.
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
		return err // the command was ended from outside, or did not start
	}
	return &Error{Message: doing + " failed: " + e.said, Err: err, passing: isPassing(e.said)}
}

// isPassing reports whether git failed for a temporary reason: the network, a failing
// server, or another writer of the same refs. The forge may still process the push of a
// killed controller.
func isPassing(said string) bool {
	return slices.ContainsFunc([]string{
		"error: 500", "error: 502", "error: 503", "error: 504", "error: 429", "Could not resolve host", "Failed to connect",
		"Connection reset", "Connection refused", "Connection timed out", "Operation too slow", "Operation timed out",
		"the remote end hung up", "early EOF", "unexpected disconnect", "RPC failed", "Empty reply from server", "GnuTLS recv error",
		"SSL_ERROR_SYSCALL", "unable to rewind rpc post data", "cannot lock ref", "failed to update ref",
	}, func(word string) bool { return strings.Contains(said, word) })
}

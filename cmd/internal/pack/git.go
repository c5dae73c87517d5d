package pack

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"takt/cmd/internal/cli"
)

// errNotDirectory is the error for a path through a file.
const errNotDirectory = syscall.ENOTDIR

// Commit is what git knows of a source.
type Commit struct {
	ID     string // empty before the first commit
	Branch string // empty if none is checked out
	Remote string // the URL of its remote as configured, credentials included
	Dirty  bool   // files are not as in the commit; files that git doesn't know count too
}

// inRepository reports whether a directory is in the working tree of a repository. Whether git
// can read it is another question.
func inRepository(dir string) (bool, error) {
	if !hasGit(dir) && isFile(dir, "HEAD") && isDir(dir, "objects") && isDir(dir, "refs") {
		return false, cli.Usage("%s is a git repository without a working tree: check it out, or pack the repository itself with --all", dir)
	}
	for {
		if hasGit(dir) {
			return true, nil
		}
		above := filepath.Dir(dir)
		if above == dir {
			return false, nil
		}
		dir = above
	}
}

// hasGit reports whether a directory has a .git that git would not pass over, as it does an
// empty directory.
func hasGit(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, ".git"))
	if errors.Is(err, fs.ErrPermission) { // if it is dir that can't be searched, its files say so
		_, err = os.Lstat(filepath.Join(dir, ".git"))
		return err == nil
	}
	if err != nil {
		return !isGone(err)
	}
	return !info.IsDir() || isFile(dir, ".git/HEAD")
}

func isFile(dir, name string) bool {
	info, err := os.Lstat(filepath.Join(dir, name))
	return err == nil && !info.IsDir()
}

func isDir(dir, name string) bool {
	info, err := os.Stat(filepath.Join(dir, name))
	return err == nil && info.IsDir()
}

// git runs git so that it changes nothing, and no program that the repository names.
type git struct{ program string }

// environment is that of git: variables that move the repository or its index, as those of a
// hook do, are not in it.
func environment(all []string) (env []string) {
	kept := []string{"GIT_CONFIG_GLOBAL=", "GIT_CONFIG_SYSTEM=", "GIT_CONFIG_NOSYSTEM=", "GIT_CONFIG_COUNT=", "GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_", "GIT_EXEC_PATH="}
	for _, v := range all {
		keep := !strings.HasPrefix(v, "GIT_") && !strings.HasPrefix(v, "LC_ALL=")
		for _, prefix := range kept {
			keep = keep || strings.HasPrefix(v, prefix)
		}
		if keep {
			env = append(env, v)
		}
	}
	// git finds the repository that inRepository has found, and asks nobody for anything.
	return append(env, "LC_ALL=C", "GIT_OPTIONAL_LOCKS=0", "GIT_TERMINAL_PROMPT=0", "GIT_NO_LAZY_FETCH=1", "GIT_ALLOW_PROTOCOL=none", "GIT_DISCOVERY_ACROSS_FILESYSTEM=1")
}

// run returns what a git command prints.
func (g git) run(ctx context.Context, dir string, args ...string) ([]byte, error) {
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, cmp.Or(g.program, "git"), append([]string{"-c", "core.fsmonitor=false", "-c", "core.hooksPath=" + os.DevNull}, args...)...)
	cmd.Dir, cmd.Env = dir, environment(os.Environ())
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &said, time.Second
	err := cmd.Run()
	switch {
	case err == nil && strings.Contains(said.String(), "could not open directory"): // and passes over it
		return nil, fmt.Errorf("git in %s: %s", dir, strings.TrimSpace(said.String()))
	case err == nil:
		return out.Bytes(), nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return nil, cli.Usage("%s is in a git repository, but there is no git here to say which files belong to it: install git, or pack everything with --all", dir)
	}
	if text := strings.TrimSpace(said.String()); text != "" {
		err = fmt.Errorf("%s (--all packs everything, whatever git says)", strings.TrimPrefix(text, "fatal: "))
	}
	return out.Bytes(), fmt.Errorf("git in %s: %w", dir, err)
}

// commit returns what git knows of a directory, and nil if it knows nothing or can't say.
func (g git) commit(ctx context.Context, dir string) *Commit {
	if in, err := inRepository(dir); err != nil || !in {
		return nil
	}
	settings, err := g.settings(ctx, dir)
	if err != nil {
		return nil
	}
	c, _, err := g.status(ctx, dir, settings, "normal")
	if err != nil {
		return nil
	}
	return &c
}

// repository adds the files of the repository whose working tree dir, below the root, is in.
func (l *lister) repository(ctx context.Context, dir string) error {
	at := filepath.Join(l.root, dir)
	settings, err := l.git.settings(ctx, at)
	if err != nil {
		return err
	}
	work, both := errgroup.WithContext(ctx)
	var commit Commit
	var hidden []string
	if l.Commit != nil {
		untracked := "no" // which are listed below
		if l.ignore.bringBack() {
			untracked = "all"
		}
		work.Go(func() (err error) {
			commit, hidden, err = l.git.status(both, at, settings, untracked)
			return err
		})
	}
	var listed []byte
	work.Go(func() (err error) {
		listed, err = l.git.run(both, at, "ls-files", "-z", "-t", "--stage", "--cached", "--others", "--exclude-standard")
		return err
	})
	if err := work.Wait(); err != nil {
		return err
	}
	if l.Commit != nil {
		dirty := l.Commit.Dirty || commit.Dirty
		if dir == "" {
			*l.Commit = commit
		}
		l.Commit.Dirty = dirty
		for _, name := range hidden {
			l.hidden[path.Join(dir, name)] = true
		}
	}
	return l.files(ctx, dir, listed)
}

// files adds what git ls-files has listed: "? NAME", or "H MODE OBJECT STAGE\tNAME" of what is in the index.
func (l *lister) files(ctx context.Context, dir string, listed []byte) error {
	last := ""
	for record := range strings.SplitSeq(string(listed), "\x00") {
		if len(record) < 3 {
			continue
		}
		tag, name := record[0], record[2:]
		mode := ""
		if tag != '?' {
			mode, name, _ = strings.Cut(name, "\t")
		} else if l.Commit != nil {
			l.Commit.Dirty = true
		}
		name, nested := strings.CutSuffix(name, "/")
		if name == last { // each side of a conflict has a record
			continue
		}
		last = name
		if !fs.ValidPath(strings.ToValidUTF8(name, "?")) {
			return fmt.Errorf("git in %s lists %q, which is not in it", filepath.Join(l.root, dir), name)
		}
		if err := l.listed(ctx, path.Join(dir, name), tag == 'S', nested || strings.HasPrefix(mode, "160000")); err != nil {
			return err
		}
	}
	return nil
}

// listed adds a file that git names, or the files of a repository in this one.
func (l *lister) listed(ctx context.Context, name string, sparse, repository bool) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if l.leftOut(path.Dir(name)) {
		return nil
	}
	if p := l.ignore.last(name, repository); p != nil && !p.negated {
		return nil
	}
	there, err := l.isDir(path.Dir(name))
	if err != nil {
		return err
	}
	file := filepath.Join(l.root, name)
	info, err := os.Lstat(file)
	there = there && !isGone(err)
	switch {
	case !there && sparse:
		l.Missing++
	case repository && (!there || err == nil && info.IsDir() && !hasGit(file)):
		l.absent = append(l.absent, name)
	case !there:
	case repository && err == nil && info.IsDir():
		return l.repository(ctx, name)
	default:
		return l.add(name)
	}
	return nil
}

// isDir reports whether a directory of the source is one, and no link to elsewhere.
func (l *lister) isDir(dir string) (is bool, err error) {
	if is, known := l.dirs[dir]; known {
		return is, nil
	}
	if is, err = l.isDir(path.Dir(dir)); is {
		var info fs.FileInfo
		info, err = os.Lstat(filepath.Join(l.root, dir))
		is = err == nil && info.IsDir()
	}
	l.dirs[dir] = is
	if isGone(err) {
		err = nil
	}
	return is, err
}

// leftOut reports whether IgnoreFile leaves out a directory of the source.
func (l *lister) leftOut(dir string) bool {
	left, known := l.left[dir]
	if !known {
		p := l.ignore.last(dir, true)
		left = l.leftOut(path.Dir(dir)) || p != nil && !p.negated
		l.left[dir] = left
	}
	return left
}

// settings returns the settings of the repository that matter here.
func (g git) settings(ctx context.Context, dir string) (map[string]string, error) {
	out, err := g.run(ctx, dir, "config", "-z", "--get-regexp", `^(remote\..*\.url|branch\..*\.remote|lfs\.extension\..*|filter\..*\.(clean|process|required))$`)
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != 1) { // 1: there are none
		return nil, err
	}
	all := map[string]string{}
	for record := range strings.SplitSeq(string(out), "\x00") {
		if key, value, _ := strings.Cut(record, "\n"); key != "" {
			all[key] = value
		}
	}
	return all, nil
}

// status says what is checked out in dir, and whether it was changed. untracked is which files that git
// does not know count as changes: no, normal, or all; then it says too what is ignored.
func (g git) status(ctx context.Context, dir string, settings map[string]string, untracked string) (c Commit, hidden []string, err error) {
	args, err := withoutFilters(dir, settings)
	if err != nil {
		return c, nil, err
	}
	args = append(args, "status", "--porcelain=v2", "--branch", "-z", "--no-renames", "--no-ahead-behind", "--ignore-submodules=dirty", "--untracked-files="+untracked)
	prefix := ""
	if untracked == "all" {
		out, err := g.run(ctx, dir, "rev-parse", "--show-prefix")
		if err != nil {
			return c, nil, err
		}
		prefix = strings.TrimSuffix(string(out), "\n")
		args = append(args, "--ignored=matching")
	}
	out, err := g.run(ctx, dir, append(args, "--", ".")...)
	if err != nil {
		return c, nil, err
	}
	for record := range strings.SplitSeq(string(out), "\x00") {
		fact, header := strings.CutPrefix(record, "# branch.")
		name, value, _ := strings.Cut(fact, " ")
		switch {
		case header && name == "oid" && value != "(initial)":
			c.ID = value
		case header && name == "head" && value != "(detached)":
			c.Branch = value
		case record == "" || record[0] == '#':
		case record[0] != '!':
			c.Dirty = true
		default:
			if below, ok := strings.CutPrefix(record[2:], prefix); ok {
				hidden = append(hidden, below)
			}
		}
	}
	c.Remote = remoteOf(settings, c.Branch)
	return c, hidden, nil
}

// withoutFilters returns git's arguments that switch off filters, which compare a file with what was committed:
// they are programs that the repository names. Those of Git LFS stay.
func withoutFilters(dir string, settings map[string]string) (args []string, err error) {
	_, missing := exec.LookPath("git-lfs")
	lfs := missing == nil
	for key, usual := range map[string]string{"filter.lfs.clean": "git-lfs clean -- %f", "filter.lfs.process": "git-lfs filter-process"} {
		if value, set := settings[key]; set && value != usual {
			lfs = false
		}
	}
	for key := range settings {
		lfs = lfs && !strings.HasPrefix(key, "lfs.extension.") // programs that Git LFS runs
	}
	for key := range settings {
		if !strings.HasPrefix(key, "filter.") || lfs && strings.HasPrefix(key, "filter.lfs.") {
			continue
		}
		if strings.Contains(key, "=") { // -c can't set it
			return nil, cli.Usage("%s: the git setting %s has an equals sign in its name; rename it, or use --all", dir, strconv.Quote(key))
		}
		args = append(args, "-c", key+"=") // of required, it is false
	}
	return args, nil
}

// remoteOf returns the URL of a branch's remote, of origin, or of the only remote.
func remoteOf(settings map[string]string, branch string) string {
	if url := settings["remote."+settings["branch."+branch+".remote"]+".url"]; url != "" {
		return url
	}
	if url := settings["remote.origin.url"]; url != "" {
		return url
	}
	only := ""
	for key, url := range settings {
		if strings.HasPrefix(key, "remote.") && strings.HasSuffix(key, ".url") {
			if only != "" {
				return ""
			}
			only = url
		}
	}
	return only
}

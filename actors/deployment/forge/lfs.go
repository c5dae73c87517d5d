package forge

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
)

// lfsBatch is how many branches one command examines.
const lfsBatch = 200

// copyLFS copies the large files of a mirror, if it has any. It runs before the
// push, because the files must exist before the commits that name them. Without
// the git-lfs program it only returns a warning.
//
// Its settings override the repository's .lfsconfig, because that may name any
// server, even one inside takt's network.
func (a *Account) copyLFS(ctx context.Context, mirror, from, to string, refs Refs) (warning string, err error) {
	uses, err := a.usesLFS(ctx, mirror, refs)
	if err != nil || !uses {
		return "", err
	}
	if a.g.lookPath("git-lfs") == "" {
		return "Uses Git LFS, but git-lfs is not installed where takt runs: large files were not copied", nil
	}
	servers := []setting{{"lfs.url", lfsServer(from)}, {"lfs.pushurl", lfsServer(to)}}
	if _, err := a.git(ctx, mirror, servers, "lfs", "fetch", "--all", "origin"); err != nil {
		return "", a.explainGit("Fetching large files", err)
	}
	if _, err := a.git(ctx, mirror, servers, "lfs", "push", "--all", to); err != nil {
		return "", a.explainGit("Pushing large files", err)
	}
	return "", nil
}

// lfsServer returns the forge's LFS address of a repository.
func lfsServer(cloneURL string) string {
	return strings.TrimSuffix(strings.TrimSuffix(cloneURL, "/"), ".git") + ".git/info/lfs"
}

// usesLFS reports whether a .gitattributes at the tip of any branch uses LFS.
func (a *Account) usesLFS(ctx context.Context, mirror string, refs Refs) (bool, error) {
	var tips []string
	for name, id := range refs {
		if strings.HasPrefix(name, "refs/heads/") {
			tips = append(tips, id)
		}
	}
	slices.Sort(tips)
	for batch := range slices.Chunk(slices.Compact(tips), lfsBatch) {
		args := append([]string{"grep", "--quiet", "-F", "filter=lfs"}, batch...)
		_, err := a.git(ctx, mirror, nil, append(args, "--", ":(glob)**/.gitattributes")...)
		if err == nil {
			return true, nil
		}
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
			return false, a.explainGit("Looking for large files", err)
		}
	}
	return false, nil
}

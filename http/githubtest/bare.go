package githubtest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// makeBare makes a bare repository. If template is not "", it copies the content of the
// repository there. It does not start git, because a process for each repository is slow.
func makeBare(dir, branch, template string) error {
	if template != "" {
		if err := os.CopyFS(dir, os.DirFS(template)); err != nil {
			return err
		}
	}
	for _, d := range []string{"objects/info", "objects/pack", "refs/heads", "refs/tags"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	const config = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n[http]\n\treceivepack = true\n"
	if err := os.WriteFile(filepath.Join(dir, "config"), []byte(config), 0o600); err != nil {
		return err
	}
	return setHead(dir, branch)
}

func setHead(dir, branch string) error {
	return os.WriteFile(filepath.Join(dir, "HEAD"), []byte("ref: refs/heads/"+branch+"\n"), 0o600)
}

// readRefs asks git for the branches and tags of a bare repository.
func readRefs(dir string) (map[string]string, error) {
	out, err := git(dir, "", "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags")
	refs := map[string]string{}
	for line := range strings.Lines(out) {
		id, ref, _ := strings.Cut(strings.TrimSpace(line), " ")
		refs[ref] = id
	}
	return refs, err
}

// spool copies the body of r to a file, so that its length is known.
func spool(r *http.Request, dir string) (io.Closer, error) {
	if r.ContentLength >= 0 {
		return r.Body, nil
	}
	f, err := os.CreateTemp(dir, "body-")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(f.Name()) // the open file stays readable
	n, err := io.Copy(f, r.Body)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	r.Body, r.ContentLength, r.TransferEncoding = f, n, nil
	return f, nil
}

// git runs a short command on the bare repository dir and returns its output.
func git(dir, input string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"--git-dir=."}, args...)...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(input)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("git %s in %s: %w: %s", args[0], dir, err, exit.Stderr)
	}
	return string(out), err
}

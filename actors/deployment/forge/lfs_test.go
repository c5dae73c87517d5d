package forge_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/actors/deployment/forge"
	"takt/http/githubtest"
	"takt/store/storetest/needs"
)

func hasLFS() bool {
	_, err := exec.LookPath("git-lfs")
	return err == nil
}

// lfsTemplate makes a repository that names a large file. The git-lfs program is
// not needed for that: a pointer is a small text.
func lfsTemplate(t *testing.T) (template, oid string, content []byte) {
	t.Helper()
	needs.Git(t)
	content = []byte("not so large after all\n")
	sum := sha256.Sum256(content)
	oid = hex.EncodeToString(sum[:])
	dir := t.TempDir()
	work := filepath.Join(dir, "work")
	require.NoError(t, os.MkdirAll(filepath.Join(work, "deep"), 0o750))
	pointer := fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", oid, len(content))
	require.NoError(t, os.WriteFile(filepath.Join(work, "deep", ".gitattributes"), []byte("*.bin filter=lfs diff=lfs merge=lfs -text\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(work, "deep", "a.bin"), []byte(pointer), 0o600))
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", "."},
		{"-c", "filter.lfs.clean=cat", "-c", "filter.lfs.process=", "-c", "filter.lfs.required=false", "add", "."},
		{"-c", "user.name=Sample", "-c", "user.email=sample@example.org", "commit", "-q", "-m", "large"},
		{"clone", "-q", "--bare", ".", "../template.git"},
	} {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = work
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	return filepath.Join(dir, "template.git"), oid, content
}

// A repository names a server inside our network in its .lfsconfig: git-lfs is told
// of the forge's own, whose word stands before that file.
func TestLargeFilesComeFromTheForgeWhateverARepositorySays(t *testing.T) {
	t.Parallel()
	bin, said := t.TempDir(), filepath.Join(t.TempDir(), "said")
	script := "#!/bin/sh\necho $1 $(git config lfs.url) $(git config lfs.pushurl) >>" + said + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "git-lfs"), []byte(script), 0o700))
	b := setup(t, func(c *forge.Config) { c.Environ = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH")) })
	large, _, _ := lfsTemplate(t)
	must(b.forge.Add(githubtest.Repo{Org: "from", Name: "large"}, large))(t)
	must(b.account.Copy(t.Context(), b.url("from", "large"), b.target("large").URL))(t)
	servers := b.url("from", "large") + "/info/lfs " + b.url("to", "large") + "/info/lfs\n"
	text := must(os.ReadFile(said))(t)
	require.Equal(t, "fetch "+servers+"push "+servers, string(text))
}

// Whoever answers for the forge can't send git on to another address.
func TestGitFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(inside.Close)
	b := setup(t)
	b.forge.Fill(t, "r", 1, b.template)
	b.forge.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, inside.URL+r.URL.RequestURI(), http.StatusFound)
		return true
	})
	_, err := b.account.Refs(t.Context(), b.url("from", "r-000"))
	require.Error(t, err)
	_, err = b.account.Copy(t.Context(), b.url("from", "r-000"), b.url("to", "r-000"))
	require.Error(t, err)
	require.Zero(t, asked.Load())
}

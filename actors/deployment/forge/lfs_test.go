package forge_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func hasLFS() bool {
	_, err := exec.LookPath("git-lfs")
	return err == nil
}

// lfsTemplate makes a repository that names a large file. The git-lfs program is
// not needed for that: a pointer is a small text.
func lfsTemplate(t *testing.T) (template, oid string, content []byte) {
	t.Helper()
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

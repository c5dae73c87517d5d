package runner

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// hides is the variable that makes a test hide its own process.
const hides = "TAKT_TEST_HIDES"

func TestHideClosesTheMemory(t *testing.T) {
	t.Parallel()
	if os.Getenv(hides) != "" {
		require.NoError(t, Hide("secret"))
		require.Zero(t, must(unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0))(t))
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestHideClosesTheMemory$")
	cmd.Env = append(os.Environ(), hides+"=yes")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

package tied_test

import (
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store/storetest/tied"
)

// helper marks a process as the parent in the test below.
const helper = "TAKT_TIED_PARENT"

// A child ends with a test binary that is killed, and with one that its time limit ends.
func TestAChildEndsWithItsParent(t *testing.T) {
	t.Parallel()
	if os.Getenv(helper) != "" {
		child := exec.CommandContext(t.Context(), "sleep", "600")
		child.Stdout = os.Stdout // the test waits for its end, as go test does
		_, err := tied.Start(child)
		require.NoError(t, err)
		_, _ = os.Stdout.WriteString("begun")
		<-t.Context().Done() // until it is ended
	}
	for _, limit := range []string{"10m", "1s"} {
		parent := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAChildEndsWithItsParent$", "-test.timeout="+limit)
		parent.Env = append(os.Environ(), helper+"=1")
		out, in, err := os.Pipe()
		require.NoError(t, err)
		parent.Stdout = in
		require.NoError(t, parent.Start())
		require.NoError(t, in.Close())
		begun := make([]byte, len("begun"))
		_, err = io.ReadFull(out, begun)
		require.NoError(t, err)
		require.Equal(t, "begun", string(begun))
		if limit == "10m" {
			require.NoError(t, parent.Process.Kill())
		}
		require.Error(t, parent.Wait())
		require.NoError(t, out.SetReadDeadline(time.Now().Add(20*time.Second)))
		_, err = io.Copy(io.Discard, out)
		require.NoError(t, err, "the child still holds standard output")
		require.NoError(t, out.Close())
	}
}

// A child that ends before its parent gives its status, and its shell ends with it.
func TestAChildThatEnds(t *testing.T) {
	t.Parallel()
	child := exec.CommandContext(t.Context(), "sh", "-c", "exit 3")
	wait, err := tied.Start(child)
	require.NoError(t, err)
	var status *exec.ExitError
	require.ErrorAs(t, wait(), &status)
	require.Equal(t, 3, status.ExitCode())
}

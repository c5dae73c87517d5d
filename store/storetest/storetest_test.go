package storetest_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store/postgres"
	"takt/store/storetest"
	"takt/store/storetest/needs"
)

func TestMain(m *testing.M) { storetest.Main(m) }

func TestDatabasesAreSeparate(t *testing.T) {
	t.Parallel()
	one, two := storetest.Open(t), storetest.Open(t)
	build := storetest.Build(t, one)
	worker := storetest.Worker(t, one)
	_, err := postgres.NewBuilds(one, postgres.BuildsConfig{}).Find(t.Context(), build.ID)
	require.NoError(t, err)
	_, err = postgres.NewWorkers(one).Show(t.Context(), worker.ID)
	require.NoError(t, err)
	_, err = postgres.NewBuilds(two, postgres.BuildsConfig{}).Find(t.Context(), build.ID)
	require.Error(t, err)
}

// helper marks a process as the victim of the test below.
const helper = "TAKT_STORETEST_VICTIM"

// A test binary that is killed leaves neither a server nor files behind.
func TestAKilledTestBinaryLeavesNothing(t *testing.T) {
	t.Parallel()
	needs.Postgres(t)
	if os.Getenv(helper) != "" {
		db := storetest.New(t)
		_, _ = os.Stdout.WriteString("directory " + db.Config.Host + "\n")
		<-t.Context().Done() // until killed
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAKilledTestBinaryLeavesNothing$")
	cmd.Env = append(os.Environ(), helper+"=1", "TAKT_TEST_DATABASE_URL=")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	dir := ""
	for dir == "" && lines.Scan() {
		if after, ok := strings.CutPrefix(lines.Text(), "directory "); ok {
			dir = after
		}
	}
	require.DirExists(t, dir)
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool { _, err := os.Stat(dir); return errors.Is(err, os.ErrNotExist) }, 20*time.Second, 20*time.Millisecond)
}

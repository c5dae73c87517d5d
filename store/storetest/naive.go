package storetest

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store/storetest/pgbin"
)

var naiveRate = regexp.MustCompile(`tps = ([0-9.]+)`)

// Naive returns how many polls per second pgbench serves when each poll is a
// transaction. It uses a database of its own on the server of [Durable]. Benchmarks
// compare takt with this figure of the same run. kind is "assigned" or "idle".
func Naive(tb testing.TB, kind string, clients, polls int) float64 {
	tb.Helper()
	db := Durable(tb)
	_, here, _, ok := runtime.Caller(0)
	require.True(tb, ok)
	scripts := filepath.Join(filepath.Dir(here), "..", "postgres", "testdata", "bench")
	pending := 0
	if kind == "assigned" {
		pending = max(100_000, polls+clients)
	}
	program(tb, "psql", "-X", "-q", "-v", "workers="+strconv.Itoa(clients), "-v", "pending="+strconv.Itoa(pending),
		"-f", filepath.Join(scripts, "setup.sql"), "-d", db.Config.ConnString())
	out := program(tb, "pgbench", "-n", "-M", "prepared", "-c", strconv.Itoa(clients), "-j", "2",
		"-t", strconv.Itoa(max(1, polls/clients)), "-f", filepath.Join(scripts, kind+".sql"), db.Config.ConnString())
	found := naiveRate.FindStringSubmatch(out)
	require.Len(tb, found, 2, out)
	rate, err := strconv.ParseFloat(found[1], 64)
	require.NoError(tb, err)
	return rate
}

// program runs one of PostgreSQL's own programs.
func program(tb testing.TB, name string, args ...string) string {
	tb.Helper()
	dir, err := pgbin.Dir()
	require.NoError(tb, err)
	out, err := exec.CommandContext(tb.Context(), filepath.Join(dir, name), args...).CombinedOutput()
	require.NoError(tb, err, "%s: %s", name, out)
	return string(out)
}

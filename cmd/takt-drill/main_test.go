package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/buildtest"
	"takt/cmd/internal/cli"
	"takt/cmd/internal/process"
	"takt/http/client"
	"takt/store"
	"takt/store/storetest/needs"
)

func TestMain(m *testing.M) { buildtest.Main(m) }

func TestDrillFindsThatPromisesAreKept(t *testing.T) {
	t.Parallel()
	requireKept(t, "20s")
}

func TestDrillOfFailovers(t *testing.T) {
	t.Parallel()
	needs.Linux(t)
	r := requireKept(t, "8s", "--failover")
	require.Positive(t, r.LongestTakeover)
	require.Positive(t, r.Webhooks)
	require.Positive(t, r.Deployments)
}

// requireKept makes a drill of this length. TAKT_DRILL makes it longer: make drill.
func requireKept(t *testing.T, length string, more ...string) (r report) {
	t.Helper()
	if v := os.Getenv("TAKT_DRILL"); v != "" {
		length = v
	}
	var out, errs bytes.Buffer
	code := cli.Execute(t.Context(), newRoot(), append([]string{
		"--takt", buildtest.Build(t), "--s3", needs.S3(t), "--duration", length, "--json",
	}, more...), &out, &errs)
	t.Log(out.String(), errs.String())
	require.Zero(t, code)
	require.NoError(t, json.Unmarshal(out.Bytes(), &r))
	require.Empty(t, r.Broken)
	require.Positive(t, r.Accepted)
	require.Equal(t, r.Accepted, r.Completed)
	require.NotEmpty(t, r.Faults)
	return r
}

func TestDrillTellsWhatWasLost(t *testing.T) {
	t.Parallel()
	cfg := config{takt: buildtest.Build(t), s3: needs.S3(t), controllers: 1, length: 2 * time.Second, seed: 7}
	cancelled := make(chan string, 1)
	var out, errs bytes.Buffer
	err := perform(t.Context(), cfg, cli.Output{Out: &out, Err: &errs}, func(ctx context.Context, d *drill) {
		for ctx.Err() == nil { // somebody cancels the drill's first build
			builds, _ := d.site.client.List(ctx, client.Filter{Status: string(store.Pending), Limit: 1})
			if len(builds) > 0 {
				if _, err := d.site.client.Cancel(ctx, builds[0].ID, ""); err == nil {
					cancelled <- builds[0].ID
					return
				}
			}
			process.Pause(ctx, 20*time.Millisecond)
		}
	})
	require.ErrorIs(t, err, process.ErrBroken, errs.String())
	require.Contains(t, out.String(), "2 s with seed 7")
	require.Contains(t, out.String(), <-cancelled+": ended failed", "as cancelled ones are shown")
}

func TestDrillSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"takt itself is needed":      {"--takt", t.TempDir() + "/none"},
		"starting the S3 server":     {"--takt", buildtest.Build(t), "--s3", t.TempDir() + "/none"},
		"must be more than 0":        {"--duration", "0s"},
		"unknown command \"nobody\"": {"nobody"},
	} {
		var out bytes.Buffer
		require.NotZero(t, cli.Execute(t.Context(), newRoot(), args, &out, &out))
		require.Contains(t, out.String(), want)
	}
}

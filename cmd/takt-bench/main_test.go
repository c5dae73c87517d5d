package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/cmd/internal/buildtest"
	"takt/cmd/internal/cli"
	"takt/cmd/internal/controllertest"
	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
	"takt/http/client"
	"takt/store/storetest/needs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench runs takt-bench and returns its exit code and its table.
func bench(t *testing.T, args ...string) (code int, table string) {
	t.Helper()
	var out bytes.Buffer
	code = cli.Execute(t.Context(), newRoot(), args, &out, t.Output())
	return code, out.String()
}

// TestBenchTakesItsFigures runs the benchmarks briefly: what they measure is not
// judged here, but their own checks are (nothing lost, nothing twice).
func TestBenchTakesItsFigures(t *testing.T) {
	t.Parallel()
	needs.Postgres(t)
	needs.Files(t, 4096)
	figures, duration := []string{"A2", "D1"}, "100ms"
	if os.Getenv("TAKT_TEST_LONG") != "" {
		figures, duration = append(figures, "A3", "A6", "A7", "A8", "A12", "A12b", "A13", "C2", "E2"), "1s"
	}
	takt := buildtest.Build(t)
	for _, figure := range figures {
		t.Run(figure, func(t *testing.T) {
			t.Parallel()
			code, table := bench(t, "--takt", takt, "--rounds", "1", "--duration", duration, "--scripts", "../../store/postgres/testdata/bench", "--only", figure)
			require.Zero(t, code, table)
			require.Contains(t, table, "\n"+figure+" ")
			require.NotContains(t, table, "not taken")
		})
	}
}

// What can't be taken is a row with its reason, and the others go on.
func TestFiguresThatCannotBeTaken(t *testing.T) {
	t.Parallel()
	code, table := bench(t, "--takt", "/bin/false", "--rounds", "1", "--duration", "1s", "--only", "E2,C1")
	require.Zero(t, code, table)
	for _, name := range []string{"E2", "C1"} {
		require.Regexp(t, "\n"+name+" +not taken: \\S+ ended while waiting for \\S+ to be healthy: exit status 1", table)
	}
	code, table = bench(t, "scale", "costs", "history", "--takt", "/bin/false")
	require.Zero(t, code, table)
	for _, what := range []string{"costs 100", "costs 1000", "history"} {
		require.Contains(t, table, "| "+what+" | not taken: ")
	}
}

// A broken promise fails the run, whatever else can't be taken.
func TestBrokenPromiseFailsTheRun(t *testing.T) {
	t.Parallel()
	r := &run{config: config{out: t.Output(), progress: t.Output()}}
	r.missing("A6", errors.New("too slow"))
	require.Empty(t, r.broken)
	twice := must.Try(func() {
		database("").checkHandedOutOnce(t.Context(), []*poller{{id: "one", jobs: []string{"a", "b"}}, {id: "two", jobs: []string{"b"}}})
	})
	r.missing("A6", errors.Join(errors.New("too slow"), fmt.Errorf("checking: %w", twice)))
	require.Len(t, r.broken, 1)
	require.ErrorContains(t, r.broken[0], "measuring A6: too slow\nchecking: a promise was broken: build b was handed out twice")
}

// Tokens expire while a database is filled, so they are renewed before a load; a worker
// keeps its id then, and what it holds.
func TestPollersRenewTheirTokens(t *testing.T) {
	t.Parallel()
	double := controllertest.Start(t)
	api, err := client.New(client.Config{BaseURL: double.URL, APIKey: controllertest.APIKey})
	require.NoError(t, err)
	c := &controller{Controller: &process.Controller{Client: api, APIKey: controllertest.APIKey}}
	pollers := newPollers(c.APIKey, 3)
	polls := func() (errs []error) {
		for _, p := range pollers {
			_, err := api.Poll(t.Context(), client.Poll{Token: p.token})
			errs = append(errs, err)
		}
		return errs
	}
	require.Equal(t, 3, c.registerOld(t.Context(), pollers))
	double.Expire()
	require.Error(t, errors.Join(polls()...))
	require.Zero(t, c.registerOld(t.Context(), pollers), "tokens are young")
	for _, p := range pollers {
		p.at = p.at.Add(-renewAfter)
	}
	require.Equal(t, 3, c.registerOld(t.Context(), pollers))
	require.NoError(t, errors.Join(polls()...))
	require.Len(t, double.Workers(), 3)
}

// Polls are parked although their tokens expire before.
func TestExpiredPollsAreParkedAgain(t *testing.T) {
	t.Parallel()
	double := controllertest.Start(t)
	c := &controller{Controller: &process.Controller{Address: strings.TrimPrefix(double.URL, "http://"), APIKey: controllertest.APIKey}}
	var err error
	c.Client, err = client.New(client.Config{BaseURL: double.URL, APIKey: controllertest.APIKey})
	require.NoError(t, err)
	p := &parking{controller: c}
	worker := newPollers(c.APIKey, 1)[0]
	require.NoError(t, c.register(t.Context(), worker))
	double.Expire()
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	send, err := ownConnection(ctx, c)
	require.NoError(t, err)
	go func() {
		p.fail(ctx, p.keep(ctx, send, worker, nil))
		ended <- p.failure()
	}()
	double.Await(t, "the poll is parked", func() bool { return double.Polls() == 1 && p.again.Load() == 1 })
	cancel(errors.New("it was seen"))
	require.NoError(t, <-ended)
	require.Equal(t, 2, double.Workers()[0].Registrations)
}

// What is taken for docs/scale.md can be taken again.
func TestScaleIsMeasured(t *testing.T) {
	t.Parallel()
	needs.Asked(t, "TAKT_TEST_LONG", "make test-long")
	needs.Postgres(t)
	code, table := bench(t,
		"scale", "costs", "connections", "streams", "history", "backups", "--takt", buildtest.Build(t), "--duration", "1s", "--watch", "1s",
		"--workers", "100", "--connections", "500", "--streams", "640", "--builds", "20000", "--files", "200",
	)
	require.Zero(t, code, table)
	for _, row := range []string{"| webhook | 64 |", "| connections | 500 | 500 parked |", "| streams | 640 | 640 parked |", "| history of | 20000 |", "| restore | 20000 | 200 of 64 KiB |", " builds | takt |"} {
		require.Contains(t, table, row)
	}
	require.NotContains(t, table, "not taken")
}

// make bench-peers measures what docs say of other queues. A server that is not there is a row
// with its reason.
func TestPeersAreCompared(t *testing.T) {
	t.Parallel()
	needs.Asked(t, "TAKT_TEST_LONG", "make test-long")
	needs.Postgres(t)
	code, table := bench(t, "peers", "--takt", buildtest.Build(t), "--tools", t.TempDir(), "--duration", "500ms", "--rounds", "1", "--clients", "8")
	require.Zero(t, code, table)
	for _, row := range []string{"takt, two requests | 8 | [1-9]", "River | 8 | [1-9]", "beanstalkd | 8 | not taken: ", "Redis streams | 8 | not taken: ", "NATS JetStream | 8 | not taken: "} {
		require.Regexp(t, strings.ReplaceAll(row, "|", `\|`), table)
	}
}

func TestWrongUseOfTheBench(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"e2e"}, {"--rounds", "0"}, {"--duration", "0s"}, {"--frobnicate"}, {"scale"}, {"scale", "nothing"}, {"peers", "--rounds", "0"}, {"peers", "nothing"}} {
		var out bytes.Buffer
		require.Equal(t, cli.ExitUsage, cli.Execute(t.Context(), newRoot(), args, &out, &out), out.String())
	}
}

package database

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"takt/migrations"
	"takt/store/metrics"
	"takt/store/tracing"
)

// Each statement is counted under its name, also in a batch, and a failed one as an
// error; what has no name shares one, so that no text of a client makes a new one.
func TestStatementsAreMeasuredByName(t *testing.T) {
	t.Parallel()
	m := metrics.New()
	b := startPool(t, PoolConfig{Source: serve(t, config(made(t))).pg.ConnConfig, Migrate: migrations.Up, Metrics: m})
	pool := b.sink.current()
	exec := func(sql string) error { _, err := pool.Exec(t.Context(), sql); return err }
	require.NoError(t, exec("/* list_things */ SELECT 1"))
	require.Error(t, exec("/* list_things */ SELECT 1/0"))
	require.NoError(t, exec("-- name: JobGet :one\nSELECT 1"))
	require.NoError(t, exec("SELECT 'anything'"))
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue("/* in_batch */ SELECT @n::int", pgx.NamedArgs{"n": 1})
		batch.Queue("/* in_batch */ SELECT 2")
		return tx.SendBatch(t.Context(), batch).Close()
	}))
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(context.Canceled)
	conn := must(pool.Acquire(t.Context()))(t)
	_, err := conn.Exec(gone, "/* given_up */ SELECT 1")
	conn.Release()
	require.ErrorIs(t, err, context.Canceled)

	for name, want := range map[string][2]uint64{
		"list_things": {2, 1}, "in_batch": {2, 0}, "river": {1, 0}, "begin": {1, 0}, "commit": {1, 0}, "given_up": {1, 0},
	} {
		require.Equal(t, want[0], observations(t, m.Statements.WithLabelValues(name)), name)
		require.Equal(t, want[1], uint64(counted(t, m.StatementErrors.WithLabelValues(name))), name)
	}
	for _, name := range []string{"migration", "other"} {
		require.NotZero(t, observations(t, m.Statements.WithLabelValues(name)), name)
	}
	require.NotZero(t, observations(t, m.ConnectionWait.WithLabelValues()))
	for _, name := range labels(t, m.Statements) {
		require.Regexp(t, `^[a-z_]+$`, name)
	}
}

func observations(t *testing.T, o prometheus.Observer) uint64 {
	t.Helper()
	return written(t, o.(prometheus.Metric)).GetHistogram().GetSampleCount()
}

func counted(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	return written(t, c).GetCounter().GetValue()
}

func written(t *testing.T, m prometheus.Metric) *dto.Metric {
	t.Helper()
	var out dto.Metric
	require.NoError(t, m.Write(&out))
	return &out
}

// labels returns the values of all labels of c's metrics.
func labels(t *testing.T, c prometheus.Collector) (values []string) {
	t.Helper()
	ch := make(chan prometheus.Metric, 1000)
	c.Collect(ch)
	close(ch)
	for m := range ch {
		for _, l := range written(t, m).GetLabel() {
			values = append(values, l.GetValue())
		}
	}
	return values
}

// The span of a statement has its name and its SQLSTATE, and neither its text nor values.
// Outside of a trace a statement has none.
func TestSpansOfStatementsHoldNoValues(t *testing.T) { //nolint:paralleltest // a process has one tracer
	b := startPool(t, PoolConfig{Source: serve(t, config(made(t))).pg.ConnConfig})
	pool := b.sink.current()
	kept := tracetest.NewSpanRecorder()
	tracing.Use(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(kept)))
	defer tracing.Use(nil)
	ctx, request := tracing.Start(t.Context(), trace.SpanKindServer, "request")
	must(pool.Exec(ctx, "/* list_things */ SELECT 's3cret', $1::text", "s3cret"))(t)
	_, err := pool.Exec(ctx, "/* bad_things */ SELECT 's3cret'::int")
	require.Error(t, err)
	batch := &pgx.Batch{}
	batch.Queue("/* in_batch */ SELECT $1::text", "s3cret")
	require.NoError(t, pool.SendBatch(ctx, batch).Close())
	request.End()
	must(pool.Exec(t.Context(), "/* in_background */ SELECT 1"))(t)

	said := map[string]map[string]string{}
	for _, s := range kept.Ended() {
		require.True(t, s.Parent().IsValid() || s.Name() == "request", "%s is a trace of its own", s.Name())
		if s.Parent().SpanID() != request.SpanContext().SpanID() {
			continue // of another test
		}
		said[s.Name()] = map[string]string{}
		require.Empty(t, s.Status().Description)
		for _, a := range s.Attributes() {
			require.NotContains(t, a.Value.String(), "s3cret")
			said[s.Name()][string(a.Key)] = a.Value.String()
		}
	}
	plain := func(name string) map[string]string {
		return map[string]string{"db.system.name": "postgresql", "db.query.summary": name}
	}
	bad := plain("bad_things")
	bad["db.response.status_code"], bad["error.type"] = "22P02", "*pgconn.PgError"
	require.Equal(t, map[string]map[string]string{"list_things": plain("list_things"), "in_batch": plain("in_batch"), "bad_things": bad}, said)
}

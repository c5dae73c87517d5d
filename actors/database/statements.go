package database

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"takt/store/metrics"
	"takt/store/tracing"
)

// The names of statements that don't begin with one.
const (
	otherStatement     = "other"
	migrationStatement = "migration"
	riverStatement     = "river"
)

// tracer observes every statement of the connections that have it. It is pgx's
// QueryTracer, BatchTracer and AcquireTracer.
type tracer struct {
	*metrics.Metrics
	all string // the name of every statement; "" names each by its text
}

// The context keys of the statement that runs, and of when the wait for a connection began.
type (
	statementKey struct{}
	waitKey      struct{}
)

type statement struct {
	name  string
	begun time.Time
}

// TraceQueryStart implements pgx.QueryTracer.
func (t *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, statementKey{}, statement{t.name(data.SQL), time.Now()})
}

// TraceQueryEnd implements pgx.QueryTracer.
func (t *tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if s, ok := ctx.Value(statementKey{}).(statement); ok {
		t.ended(ctx, s, data.Err)
	}
}

// TraceBatchStart implements pgx.BatchTracer.
func (t *tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (t *tracer) TraceBatchQuery(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	t.ended(ctx, statement{t.name(data.SQL), data.ReadStartTime}, data.Err)
}

// TraceBatchEnd implements pgx.BatchTracer.
func (t *tracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// TraceAcquireStart implements pgxpool.AcquireTracer.
func (t *tracer) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	return context.WithValue(ctx, waitKey{}, time.Now())
}

// TraceAcquireEnd implements pgxpool.AcquireTracer.
func (t *tracer) TraceAcquireEnd(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireEndData) {
	if begun, ok := ctx.Value(waitKey{}).(time.Time); ok {
		metrics.Observe(ctx, t.ConnectionWait.WithLabelValues(), time.Since(begun))
	}
}

// ended observes a statement that has ended, with the context of its caller. If the caller
// cancelled, that does not count as an error of the statement.
func (t *tracer) ended(ctx context.Context, s statement, err error) {
	metrics.Observe(ctx, t.Statements.WithLabelValues(s.name), time.Since(s.begun))
	if err != nil && !errors.Is(err, context.Canceled) {
		t.StatementErrors.WithLabelValues(s.name).Inc()
	}
	if tracing.On() && trace.SpanContextFromContext(ctx).IsValid() { // else it would start a new trace
		record(ctx, s, err)
	}
}

// record makes a statement's span. It has the name of the statement, but never its text or
// values.
func record(ctx context.Context, s statement, err error) {
	_, span := tracing.Start(ctx, trace.SpanKindClient, s.name, trace.WithTimestamp(s.begun),
		trace.WithAttributes(semconv.DBSystemNamePostgreSQL, semconv.DBQuerySummary(s.name)))
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		span.SetAttributes(semconv.DBResponseStatusCode(refused.Code))
	}
	tracing.End(span, err)
}

// name returns the name of a statement: takt's constants begin with it in a comment,
// River's with another comment, and pgx sends a few of its own.
func (t *tracer) name(sql string) string {
	if t.all != "" {
		return t.all
	}
	if rest, ok := strings.CutPrefix(sql, "/* "); ok {
		if name, _, ok := strings.Cut(rest, " */"); ok {
			return name
		}
	}
	switch word, _, _ := strings.Cut(sql, " "); {
	case word == "begin", word == "commit", word == "rollback":
		return word
	case strings.HasPrefix(sql, "-- name: "):
		return riverStatement
	}
	return otherStatement
}

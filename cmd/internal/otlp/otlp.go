package otlp

import (
	"context"
	"errors"
	"net/url"
	"os"

	"github.com/rs/zerolog"

	"takt/actors/telemetry"
	"takt/cmd/internal/cli"
	"takt/store/metrics"
)

// Variable is the standard name of --otlp in the environment.
const Variable = "OTEL_EXPORTER_OTLP_ENDPOINT"

// Check checks the address of a collector. It may hold no password, because the
// address is shown; OTEL_EXPORTER_OTLP_HEADERS is for that.
func Check(at string) error {
	u, err := url.Parse(at)
	if at != "" && (err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Scheme != "http" && u.Scheme != "https") {
		return errors.New("must be an http or https URL without a password")
	}
	return nil
}

// Open sends spans to the collector at an address; "" makes no spans (nil).
func Open(ctx context.Context, at, service string, m *metrics.Metrics, log zerolog.Logger) (*telemetry.Traces, error) {
	if at == "" {
		return nil, nil // none are asked for, which is no error
	}
	if os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "" {
		at = "" // the SDK reads it, because it is more exact
	}
	return telemetry.OpenTraces(ctx, telemetry.TracesConfig{Endpoint: at, Service: service, Version: cli.Version(), Metrics: m, Logger: log})
}

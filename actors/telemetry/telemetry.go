package telemetry

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rs/zerolog"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store/metrics"
)

const (
	// backlog is how many events may wait for the process.
	backlog = 1024
	// kept is how many events Recent returns at most.
	kept = 500
)

// Telemetry is the handle. It is made before the tree, because the tree reports events
// from the start.
type Telemetry struct {
	registry *prometheus.Registry
	logger   zerolog.Logger
	bus      pubsub.Bus
	events   chan otp.Event
	counted  *prometheus.CounterVec
	restarts *prometheus.CounterVec
	dropped  prometheus.Counter

	mu     sync.Mutex
	recent []SupervisorEvent // the newest, oldest first; guarded by mu
}

// New returns a handle with a registry of its own, which already has the
// collectors of the Go runtime and of the process.
func New(logger zerolog.Logger, bus pubsub.Bus) *Telemetry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	set := &metrics.Set{}
	registry.MustRegister(set)
	return &Telemetry{
		registry: registry,
		logger:   logger,
		bus:      bus,
		events:   make(chan otp.Event, backlog),
		counted:  set.Counter("takt_supervisor_events_total"),
		restarts: set.Counter("takt_supervisor_restarts_total"),
		dropped:  set.Counter("takt_supervisor_events_dropped_total").WithLabelValues(),
	}
}

// Gatherer returns the metrics.
func (t *Telemetry) Gatherer() prometheus.Gatherer { return t.registry }

// Register adds a subsystem's collectors. It panics if two have the same name, because
// that is a defect of the program and is found at its start.
func (t *Telemetry) Register(c ...prometheus.Collector) { t.registry.MustRegister(c...) }

// Part returns the first three ids of a path in the tree: deeper ones may be those of
// deployments or portals, whose number is unbounded.
func Part(path string) string {
	ids := strings.SplitN(path, "/", 4)
	return strings.Join(ids[:min(len(ids), 3)], "/")
}

// Hook is an otp.Options.OnEvent: it counts an event and queues it. It
// never blocks.
func (t *Telemetry) Hook(e otp.Event) {
	t.counted.WithLabelValues(e.Kind.String()).Inc()
	if e.Kind == otp.EventRestarting {
		t.restarts.WithLabelValues(Part(e.Path)).Inc()
	}
	e.Proc = nil // an event that waits must not keep a dead process
	select {
	case t.events <- e:
	default:
		t.dropped.Inc()
	}
}

// Spec is the process that reports the events, in the log and on the bus.
func (t *Telemetry) Spec() otp.ChildSpec {
	return otp.ChildSpec{ID: "telemetry", Task: t.run}
}

// run reports events until ctx ends, and then those that are queued. Those include the ends
// of the other children, because the tree stops telemetry last.
func (t *Telemetry) run(ctx context.Context) error {
	for {
		select {
		case e := <-t.events:
			t.report(e)
		case <-ctx.Done():
			for len(t.events) > 0 {
				t.report(<-t.events)
			}
			return nil
		}
	}
}

// report makes one line and one supervisor:event of e.
func (t *Telemetry) report(e otp.Event) {
	out := describe(e)
	line := t.logger.WithLevel(level(e)).Str("event", out.Event).Str("path", out.Path)
	if out.Reason != "" {
		line.Str("reason", out.Reason)
	}
	if out.Detail != "" {
		line.Str("detail", out.Detail)
	}
	if out.Restarts > 0 {
		line.Int("restarts", out.Restarts)
	}
	stack := e.Stack
	if crash, ok := errors.AsType[*otp.PanicError](e.Reason); ok && e.Kind == otp.EventExit {
		stack = crash.Stack
	}
	if len(stack) > 0 {
		line.Bytes("stack", stack)
	}
	line.Msg("supervision")
	t.keep(out)
	t.bus.Publish(pubsub.SupervisorEvent, out)
}

func (t *Telemetry) keep(e SupervisorEvent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recent = append(t.recent, e)
	if len(t.recent) > kept {
		t.recent = slices.Delete(t.recent, 0, 1)
	}
}

// Recent returns the newest events, oldest first.
func (t *Telemetry) Recent() []SupervisorEvent {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.recent)
}

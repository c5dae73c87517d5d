package actors

import (
	"strconv"

	"github.com/rs/zerolog"

	"takt/actors/pubsub"
	"takt/actors/queue"
	"takt/store"
	"takt/store/metrics"
	"takt/store/tracing"
)

// lifecycle records the steps of builds and workers on the controller where they happen:
// one line in the log at info, and the metrics.
type lifecycle struct {
	log zerolog.Logger
	*metrics.Metrics
}

// observe is a subscriber of the bus.
func (l lifecycle) observe(e pubsub.Event) {
	switch d := e.Data.(type) {
	case queue.Assigned:
		if d.Attempt == 1 { // the metric is about the first assignment
			metrics.ObserveIn(tracing.BuildID(d.BuildID), l.Waited.WithLabelValues(string(d.Platform), strconv.Itoa(d.Priority)), d.Waited)
		}
		l.logStep(d.BuildID, d.WorkerID, store.Step{What: store.StepAssigned, Attempt: d.Attempt, Took: d.Waited}).
			Str("platform", string(d.Platform)).Msg("build assigned")
	case store.Uploaded:
		l.logStep(d.BuildID, d.WorkerID, d.Step).Msg("result uploaded")
	case store.BuildUpdate:
		l.build(d)
	case store.WorkerUpdate:
		if d.Step.What != "" {
			l.WorkerSteps.WithLabelValues(d.Step.What).Inc()
			l.logStep("", d.WorkerID, d.Step).Msg("worker " + d.Step.What)
		}
	}
}

func (l lifecycle) build(u store.BuildUpdate) {
	switch u.Step.What {
	case "":
		return
	case store.StepSubmitted:
		l.Submitted.WithLabelValues(string(u.Platform)).Inc()
	case store.StepLost:
		l.AttemptsLost.WithLabelValues(u.Step.Lost).Inc()
		if u.State == store.Failed {
			l.Ended.WithLabelValues(string(u.Platform), string(u.State)).Inc()
		}
	case store.StepEnded:
		l.Ended.WithLabelValues(string(u.Platform), string(u.State)).Inc()
		if u.Step.Took > 0 {
			metrics.ObserveIn(tracing.BuildID(u.BuildID), l.Built.WithLabelValues(string(u.Platform), string(u.State)), u.Step.Took)
		}
	}
	line := l.logStep(u.BuildID, u.WorkerID, u.Step).Str("state", string(u.State))
	if u.Platform != "" {
		line.Str("platform", string(u.Platform))
	}
	line.Msg("build " + u.Step.What)
}

// logStep begins a log line with the known fields of a step.
func (l lifecycle) logStep(build, worker string, s store.Step) *zerolog.Event {
	line := l.log.Info() //nolint:zerologlint // the caller sends it
	if worker == "" {
		worker = s.WorkerID
	}
	if build != "" {
		s.TraceID = tracing.BuildID(build)
	}
	for _, field := range [...][2]string{{"build", build}, {"worker", worker}, {"reason", s.Lost}, {"trace_id", s.TraceID}} {
		if field[1] != "" {
			line.Str(field[0], field[1])
		}
	}
	if s.Attempt > 0 {
		line.Int("attempt", s.Attempt)
	}
	if s.Took > 0 {
		line.Dur("took", s.Took)
	}
	if s.Bytes > 0 {
		line.Int64("bytes", s.Bytes)
	}
	return line
}

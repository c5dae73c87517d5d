package http

import (
	"slices"

	"golang.org/x/sync/singleflight"

	"takt/http/api"
	"takt/http/edge"
)

// routes lists every route of this server.
func (s *Server) routes(d Deps, cfg Config) []edge.Route {
	sh, forms := s.Server, newUploads(s.Config, d.Files)
	audit := s.audit
	builds := newBuilds(sh, audit, cfg, d)
	submissions := &submissions{sh, cfg, builds, d.Builds, d.Queue, forms, d.Secrets}
	tails := newTails(sh, builds, s.logs, cfg)
	bound := &bindings{store: d.Workers}
	polls := newPolls(sh, cfg, d.Queue, d.Tokens, bound, s.parked)
	holders := &holders{sh, cfg, d.Builds, s.logs, d.Queue, d.Tokens, d.Publish, forms, polls, d.Secrets}
	workers := newWorkers(sh, audit, cfg, d, bound)
	diagnostics := &diagnostics{sh, d.Workers, d.Files, d.Queue, d.Publish}
	throttle := &throttle{sh, cfg, audit, d.Throttle, d.ThrottleStore, d.OAuth}
	events := &events{sh, s.ring}
	figures := &figures{sh, d.Builds, d.Forecast, edge.NewCache[*api.Stats](statsAge)}
	health := &health{sh, new(singleflight.Group), d.Builds, d.Queue, d.Files, d.Ready, d.VacuumHeldBack, d.Metrics, cfg}
	deployments := &deployments{sh, audit, d.Deployments, d.DeploymentStore, s.changed}
	timeouts := &timeouts{sh, audit, d.Heartbeat}
	heijunka := &heijunka{sh, audit, d.Heijunka}
	queues := &queues{sh, audit, d.ThrottleStore, d.Throttle}
	keys := &keys{sh, audit, d.Keys}
	secrets := &secrets{sh, audit, d.Secrets}
	notices := &notices{sh, audit, d.Notices}
	problems := &problems{sh, audit, d.Attention}
	debug := &debugHandler{sh, d.Debug}
	s.Acts = Acts{
		CancelBuild:           builds.cancel,
		RetryBuild:            submissions.retry,
		RetryBuilds:           submissions.retrySeveral,
		RequeueBuild:          builds.requeue,
		PatchBuild:            builds.patch,
		DrainWorker:           workers.drain,
		ResumeWorker:          workers.resume,
		DeleteWorker:          workers.delete,
		CreateKey:             keys.create,
		RevokeKey:             keys.revoke,
		AcknowledgeProblem:    problems.acknowledge,
		RecallAcknowledgement: problems.recall,
		RedriveNotices:        notices.redrive,
		ChangeHeijunkaLimits:  heijunka.limits,
		ScalePool:             heijunka.scale,
		SurgeHeijunka:         heijunka.surge,
		RebalanceHeijunka:     heijunka.rebalance,
		ChangeTimeouts:        timeouts.change,
		PauseQueue:            queues.pause,
		ResumeQueue:           queues.resume,
		RedriveQueue:          queues.redrive,
		SetRate:               throttle.steerRate,
		CancelDeployment:      deployments.steer("cancel", Deployments.Cancel),
		PauseDeployment:       deployments.steer("pause", Deployments.Pause),
		ResumeDeployment:      deployments.steer("resume", Deployments.Resume),
		RetryDeployment:       deployments.retry,
	}
	return slices.Concat(
		builds.routes(), submissions.routes(), tails.routes(), holders.routes(), polls.routes(), workers.routes(), diagnostics.routes(),
		deployments.routes(), throttle.routes(), queues.routes(), events.routes(), figures.routes(), health.routes(),
		s.tree.routes(), timeouts.routes(), heijunka.routes(), audit.routes(), debug.routes(), keys.routes(), notices.routes(), secrets.routes(), problems.routes(), []edge.Route{keys.enrolling()},
	)
}

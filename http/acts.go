package http

import (
	"context"

	"takt/http/api"
)

// act carries out an order, as the handler of its endpoint does. ctx should have a caller, see
// [edge.Server.WithCaller].
type act[In, Out any] func(ctx context.Context, in In) (Out, error)

// Acts are the handlers that pages call, too. Concurrent use is safe.
type Acts struct {
	CancelBuild           act[api.CancelBuildIn, api.Cancelled]
	RetryBuild            act[api.RetryBuildIn, api.Retried]
	RetryBuilds           act[api.RetryBuildsIn, api.SeveralChanged]
	RequeueBuild          act[api.RequeueBuildIn, api.BuildItem]
	PatchBuild            act[api.PatchBuildIn, api.BuildItem]
	DrainWorker           act[api.WorkerOrder, api.Worker]
	ResumeWorker          act[api.WorkerOrder, api.Worker]
	DeleteWorker          act[api.DeleteWorkerIn, api.Unregistered]
	CreateKey             act[api.CreateKeyIn, api.MadeKey]
	RevokeKey             act[api.RevokeKeyIn, api.None]
	AcknowledgeProblem    act[api.Acknowledge, api.Attention]
	RecallAcknowledgement act[api.Recall, api.Attention]
	RedriveNotices        act[api.RedriveNoticesIn, api.RedrivenNotices]
	ChangeHeijunkaLimits  act[api.HeijunkaLimits, api.Heijunka]
	ScalePool             act[api.ScalePoolIn, api.Heijunka]
	SurgeHeijunka         act[api.HeijunkaSurge, api.Heijunka]
	RebalanceHeijunka     act[api.RebalanceHeijunkaIn, api.HeijunkaRebalance]
	ChangeTimeouts        act[api.HeartbeatSettings, api.HeartbeatSettings]
	PauseQueue            act[api.QueueOrderIn, api.ThrottleQueue]
	ResumeQueue           act[api.QueueOrderIn, api.ThrottleQueue]
	RedriveQueue          act[api.QueueOrderIn, api.Redriven]
	SetRate               act[api.SetRateIn, api.ThrottleConfig]
	CancelDeployment      act[api.DeploymentOrder, api.Deployment]
	PauseDeployment       act[api.DeploymentOrder, api.Deployment]
	ResumeDeployment      act[api.DeploymentOrder, api.Deployment]
	RetryDeployment       act[api.RetryDeploymentIn, api.DeploymentRetried]
}

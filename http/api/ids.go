package api

import (
	"strconv"

	"takt/store"
)

// BuildID is a build's id in a path.
type BuildID string

// Kind implements [Identifier].
func (BuildID) Kind() string { return "build" }

// ReadParam implements [Param]. An impossible id is NotFound.
func (id *BuildID) ReadParam(_, sent string) error {
	*id = BuildID(sent)
	return validID(sent, "Build not found")
}

// WorkerID is a worker's id in a path.
type WorkerID string

// Kind implements [Identifier].
func (WorkerID) Kind() string { return "worker" }

// ReadParam implements [Param]. An impossible id is NotFound.
func (id *WorkerID) ReadParam(_, sent string) error {
	*id = WorkerID(sent)
	return validID(sent, "Worker not found")
}

// DeploymentID is a deployment's id in a path.
type DeploymentID string

// Kind implements [Identifier].
func (DeploymentID) Kind() string { return "deployment" }

// ReadParam implements [Param]. An impossible id is NotFound.
func (id *DeploymentID) ReadParam(_, sent string) error {
	*id = DeploymentID(sent)
	return validID(sent, "Deployment not found")
}

func validID(sent, notFound string) error {
	if !store.ValidID(sent) {
		return store.NewError(store.NotFound, notFound)
	}
	return nil
}

// HubSpotID is the number of a portal or of an action.
type HubSpotID int64

// ReadParam implements [Param].
func (id *HubSpotID) ReadParam(name, sent string) error {
	n, err := strconv.ParseInt(sent, 10, 64)
	if err != nil || n <= 0 {
		return invalid(name + " must be a positive integer")
	}
	*id = HubSpotID(n)
	return nil
}

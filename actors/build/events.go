package build

import "takt/store"

// QueueUpdated is the data of queue:updated, published at most ten times a
// second.
type QueueUpdated struct {
	Pending        int `json:"pending"`
	PendingIOS     int `json:"pending_ios"`
	PendingAndroid int `json:"pending_android"`
	Parked         int `json:"parked"`
}

// Assigned is the data of build:assigned.
type Assigned struct {
	BuildID  string         `json:"build_id"`
	WorkerID string         `json:"worker_id"`
	Platform store.Platform `json:"platform"`
	Attempt  int            `json:"attempt"`
}

// Updated is the data of build:updated, as far as this package knows it.
type Updated struct {
	BuildID  string           `json:"build_id"`
	Platform store.Platform   `json:"platform"`
	State    store.BuildState `json:"state"`
}

// WorkerUpdated is the data of worker:updated, as far as this package knows it.
type WorkerUpdated struct {
	WorkerID string             `json:"worker_id"`
	Status   store.WorkerStatus `json:"status"`
}

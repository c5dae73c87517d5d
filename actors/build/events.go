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

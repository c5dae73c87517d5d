package store

// The topics of what follows.
const (
	TopicBuildUpdated  = "build:updated"
	TopicWorkerUpdated = "worker:updated"
)

// BuildUpdate is the data of TopicBuildUpdated: a build has this state
// now. Like every event it is a hint; whoever acts on it reads the build.
type BuildUpdate struct {
	BuildID  string     `json:"build_id"`
	State    BuildState `json:"state"`
	Platform Platform   `json:"platform,omitempty"`
	// WorkerID is the holder or the last one; "" if there is none, or if the
	// publisher does not know.
	WorkerID string `json:"worker_id,omitempty"`
}

// WorkerUpdate is the data of TopicWorkerUpdated.
type WorkerUpdate struct {
	WorkerID string       `json:"worker_id"`
	Status   WorkerStatus `json:"status"`
	// Draining workers get no builds.
	Draining bool `json:"draining,omitempty"`
	// Deleted is true for a worker that exists no more.
	Deleted bool `json:"deleted,omitempty"`
}

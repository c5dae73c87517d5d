package api

import "takt/store"

// FollowEventsIn is the input of FollowEvents.
type FollowEventsIn struct {
	// Topics are the only ones sent, separated by commas.
	Topics string `query:"topics"`
	// LastEventID is the last event that the client has.
	LastEventID string `header:"Last-Event-ID"`
}

// FollowEvents is GET /api/events.
var FollowEvents = declare[FollowEventsIn, None](Route{
	ID: "followEvents", Method: "GET", Path: "/api/events",
	Tag: "events", Access: APIKey, Class: Query, Errors: []int{400},
	Says: "A stream of server-sent events without end.", Media: []string{eventStream},
	Sends:   []any{Named("QueueUpdated"), JobAvailable{}, Named("BuildAssigned"), store.BuildUpdate{}, store.WorkerUpdate{}, Named("SupervisorEvent")},
	Summary: "Follow what happens",
	Text:    "Events are `queue:updated`, `job:available`, `build:assigned`, `build:updated`, `worker:updated` and `supervisor:event`; their data are the schemas `QueueUpdated`, `JobAvailable`, `BuildAssigned`, `BuildUpdated`, `WorkerUpdated` and `SupervisorEvent`. They are hints: read what you act on. Each controller tells its own and remembers 10 000. A client that has missed some gets one event `reset` and then what happens from there on.",
})

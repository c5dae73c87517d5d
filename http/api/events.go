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
var FollowEvents = declare[FollowEventsIn, None](events, APIKey, scopeRead, Query, "GET /api/events", Route{
	ID: "followEvents", Errors: []int{400}, Media: []string{eventStream}, Summary: "Follow events",
	Says: "A stream of server-sent events without end.", Sends: []any{Named("QueueUpdated"), JobAvailable{}, Named("BuildAssigned"), store.BuildUpdate{}, store.WorkerUpdate{}, Named("SupervisorEvent")},
	Text: "Events are `queue:updated`, `job:available`, `build:assigned`, `build:updated`, `worker:updated` and `supervisor:event`; their data are the schemas `QueueUpdated`, `JobAvailable`, `BuildAssigned`, `BuildUpdated`, `WorkerUpdated` and `SupervisorEvent`. They are hints: read what you act on. Each controller sends its own events and remembers 10 000. A client that has missed some gets one event `reset`, whose data is `{}`, and then what happens from there on.",
})

package metrics

import "slices"

// Kind is what a metric is.
type Kind string

// The kinds.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Metric is a row of the table. Buckets are those of a histogram.
type Metric struct {
	Name    string
	Kind    Kind
	Help    string
	Labels  []string
	Buckets []float64
}

// Group is metrics that belong together.
type Group struct {
	Title   string
	Metrics []Metric
}

// Find returns the metric of a name.
func Find(name string) (Metric, bool) {
	for _, g := range table {
		if i := slices.IndexFunc(g.Metrics, func(m Metric) bool { return m.Name == name }); i >= 0 {
			return g.Metrics[i], true
		}
	}
	return Metric{}, false
}

// Table returns takt's metrics: what is registered, documented and shown on boards.
func Table() []Group { return table }

var (
	// Buckets of durations in seconds, of batches of polls, and of actions.
	short    = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5}
	long     = []float64{.1, .5, 1, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200}
	requests = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	calls    = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	polls    = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256}
	actions  = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500}

	platform = []string{"platform"}
	reason   = []string{"reason"}
	process  = []string{"process"}
	pool     = []string{"pool"}
)

// table has every metric of takt's own, with what an operator has to know of it.
var table = []Group{
	{"Builds", []Metric{
		{"takt_builds_submitted_total", Counter, "Builds submitted to this controller, by platform.", platform, nil},
		{"takt_build_wait_seconds", Histogram, "Time from a build's submission to its first assignment, by platform and priority.", []string{"platform", "priority"}, long},
		{"takt_build_duration_seconds", Histogram, "Time from a build's assignment to its end, by platform and result.", []string{"platform", "result"}, long},
		{"takt_builds_ended_total", Counter, "Builds that ended, by platform and result.", []string{"platform", "result"}, nil},
		{"takt_build_attempts_lost_total", Counter, "Attempts that ended without a result, by reason: the worker was silent, restarted without the build, unregistered, was deleted or could not run the build (command, engine, disk), an operator requeued it, or its exit code was one after which the build is tried again (exit).", reason, nil},
		{"takt_build_cancel_seconds", Histogram, "Time from cancelling a running build to telling its worker to stop.", nil, long},
	}},
	{"Workers", []Metric{
		{"takt_workers", Gauge, "Registered workers by state, counted at most a minute ago.", []string{"state"}, nil},
		{"takt_worker_steps_total", Counter, "Changes of workers: registered, offline, drained, resumed, gone, quarantined, suspected.", []string{"step"}, nil},
		{"takt_worker_tokens_rotated_total", Counter, "Worker tokens that replaced an older one.", nil, nil},
		{"takt_worker_tokens_refused_total", Counter, "Requests refused because of their worker token.", nil, nil},
		{"takt_worker_duplicates_refused_total", Counter, "Requests refused because another process uses the worker's id.", nil, nil},
	}},
	{"Queue", []Metric{
		{"takt_queue_classes", Gauge, "Different combinations of platform and requirements among the pending builds, as last counted.", nil, nil},
		{"takt_queue_pending_builds", Gauge, "Pending builds, as last counted; absent if that was more than 5 s ago.", platform, nil},
		{"takt_queue_limit", Gauge, "The queue limit: submits are refused while more builds than this are pending.", nil, nil},
		{"takt_queue_unmatched_builds", Gauge, "Pending builds with requirements that no known worker meets, as last counted; absent if that was more than 5 s ago.", nil, nil},
		{"takt_queue_full", Gauge, "1 while submits are refused: all of them (full), or those of builds that no known worker can take (unmatched).", reason, nil},
		{"takt_queue_parked_polls", Gauge, "Polls waiting for a build.", nil, nil},
		{"takt_queue_waiting_polls", Gauge, "Polls waiting for an assignment transaction.", nil, nil},
		{"takt_queue_batched_polls", Gauge, "Polls in an assignment transaction.", nil, nil},
		{"takt_queue_sessions", Gauge, "Worker sessions that this controller keeps in memory.", nil, nil},
		{"takt_queue_idle_polls_total", Counter, "Polls answered or parked without the database.", nil, nil},
		{"takt_queue_transactions_total", Counter, "Assignment transactions.", nil, nil},
		{"takt_queue_polls_total", Counter, "Polls served by an assignment transaction.", nil, nil},
		{"takt_queue_assigned_total", Counter, "Builds assigned to a worker.", nil, nil},
		{"takt_queue_redelivered_total", Counter, "Assignments repeated because the reply may have been lost.", nil, nil},
		{"takt_queue_failed_polls_total", Counter, "Polls that ended with an error.", nil, nil},
		{"takt_queue_woken_total", Counter, "Parked polls woken for a new build.", nil, nil},
		{"takt_queue_batch_polls", Histogram, "Polls per assignment transaction.", nil, polls},
		{"takt_queue_transaction_duration_seconds", Histogram, "Duration of assignment transactions.", nil, short},
		{"takt_invariant_violations", Gauge, "Database rows that break an invariant, as of the last check; takt audit check lists them.", []string{"invariant"}, nil},
	}},
	{"Storage", []Metric{
		{"takt_storage_duration_seconds", Histogram, "Time to make a file durable (write) or to open it (read), without time spent on the client, by kind.", []string{"operation", "kind"}, short},
		{"takt_storage_bytes_total", Counter, "Bytes of files written or opened, by kind.", []string{"operation", "kind"}, nil},
		{"takt_storage_rounds_total", Counter, "Storage clean-ups by the janitor.", nil, nil},
		{"takt_storage_temporary_removed_total", Counter, "Temporary files and unfinished uploads removed.", nil, nil},
		{"takt_storage_orphans_removed_total", Counter, "Files and objects removed because no database row named them.", nil, nil},
		{"takt_storage_remove_failures_total", Counter, "Files and objects that could not be removed.", nil, nil},
		{"takt_storage_expired_sources_total", Counter, "Sources removed by --retain.", nil, nil},
		{"takt_storage_expired_certs_total", Counter, "Certificates removed by --retain.", nil, nil},
		{"takt_storage_expired_results_total", Counter, "Results removed by --retain.", nil, nil},
		{"takt_storage_expired_logs_total", Counter, "Builds whose logs were removed by --retain.", nil, nil},
		{"takt_storage_expired_diagnostics_total", Counter, "Diagnostic reports removed by --retain.", nil, nil},
		{"takt_storage_copies_owed", Gauge, "Files not yet copied to S3.", nil, nil},
		{"takt_storage_copies_total", Counter, "Files copied to S3 after their upload.", nil, nil},
		{"takt_storage_copy_failures_total", Counter, "Files that could not be copied although S3 was available.", nil, nil},
	}},
	{"HTTP", []Metric{
		{"takt_http_requests_total", Counter, "Requests answered, by route and class of status.", []string{"method", "route", "status"}, nil},
		{"takt_http_request_duration_seconds", Histogram, "Time from a request's header to the end of its handler.", []string{"method", "route"}, requests},
		{"takt_http_requests_running", Gauge, "Requests in progress, parked polls included, by domain.", []string{"domain"}, nil},
		{"takt_http_polls_parked", Gauge, "Polls waiting for a transaction or a build, without a place.", nil, nil},
		{"takt_http_streams", Gauge, "Open streams of server-sent events.", nil, nil},
		{"takt_http_bodies_drained_total", Counter, "Refused request bodies read to their end.", nil, nil},
		{"takt_http_connections_refused_total", Counter, "Connections closed because too many were open.", nil, nil},
		{"takt_http_wrong_keys_total", Counter, "Requests with a wrong API key or admin key.", nil, nil},
		{"takt_http_missing_scopes_total", Counter, "Requests whose key lacks the scope for them.", nil, nil},
		{"takt_keys", Gauge, "Valid keys with names, unused enrolment tokens included.", nil, nil},
		{"takt_http_tls_not_after_seconds", Gauge, "When the TLS certificate in use expires, in seconds since 1970.", nil, nil},
	}},
	{"Limits", []Metric{
		{"takt_limit_held", Gauge, "Units of a limit that are held, by rule: places of pools, connections of streams, bodies that are read.", []string{"rule"}, nil},
		{"takt_limit_waiting", Gauge, "Requests waiting for a unit of a limit, by rule.", []string{"rule"}, nil},
		{"takt_limit_refused_total", Counter, "Requests refused by a limit, by rule.", []string{"rule"}, nil},
	}},
	{"Load levelling", []Metric{
		{"takt_heijunka_load", Gauge, "Requests currently admitted.", nil, nil},
		{"takt_heijunka_soft_limit", Gauge, "Load at which it becomes critical.", nil, nil},
		{"takt_heijunka_hard_limit", Gauge, "Maximum number of admitted requests.", nil, nil},
		{"takt_heijunka_headroom", Gauge, "Further requests that would be admitted, by class; workers' requests have priority.", []string{"class"}, nil},
		{"takt_heijunka_level", Gauge, "Level of the load: 0 normal, 1 alert, 2 critical.", nil, nil},
		{"takt_heijunka_drain_rate", Gauge, "Admitted requests ending per second.", nil, nil},
		{"takt_heijunka_accepted_total", Counter, "Requests admitted.", nil, nil},
		{"takt_heijunka_rejected_total", Counter, "Requests rejected, by rule.", []string{"rule"}, nil},
		{"takt_heijunka_wait_seconds", Histogram, "Time admitted requests waited for a place, by pool.", pool, short},
		{"takt_heijunka_balance_coefficient", Gauge, "Balance of the pools: 1 if all are equally used, down to 0.", nil, nil},
		{"takt_heijunka_rebalanced_total", Counter, "Places moved between pools.", nil, nil},
		{"takt_heijunka_spilled_total", Counter, "Requests that used another pool because their domain's was busy.", []string{"domain"}, nil},
		{"takt_heijunka_burst_demand", Gauge, "Requests per place in the last sample.", nil, nil},
		{"takt_heijunka_burst_baseline", Gauge, "Mean of the last minute's samples of takt_heijunka_burst_demand.", nil, nil},
		{"takt_heijunka_surge_active", Gauge, "1 during a surge.", nil, nil},
		{"takt_heijunka_surges_total", Counter, "Surges started.", nil, nil},
		{"takt_heijunka_surge_workers_total", Counter, "Places added by surges.", nil, nil},
		{"takt_heijunka_surge_cost_total", Counter, "Cost of the surges, as the settings of bursts reckon it.", nil, nil},
		{"takt_heijunka_pool_workers", Gauge, "Places of the pool.", pool, nil},
		{"takt_heijunka_pool_available", Gauge, "Free places.", pool, nil},
		{"takt_heijunka_pool_busy", Gauge, "Places in use. Ends with the next release: use takt_limit_held.", pool, nil},
		{"takt_heijunka_pool_waiting", Gauge, "Requests waiting for a place. Ends with the next release: use takt_limit_waiting.", pool, nil},
		{"takt_heijunka_pool_utilisation", Gauge, "Share of places in use.", pool, nil},
		{"takt_heijunka_pool_latency_seconds", Gauge, "Mean time a request held a place, over the last minute.", pool, nil},
		{"takt_heijunka_pool_error_rate", Gauge, "Share of requests that failed, over the last minute.", pool, nil},
		{"takt_heijunka_pool_processed_total", Counter, "Requests that have finished.", pool, nil},
		{"takt_heijunka_pool_failed_total", Counter, "Requests that have failed.", pool, nil},
		{"takt_heijunka_pool_crashed_workers_total", Counter, "Requests that crashed.", pool, nil},
		{"takt_heijunka_pool_overdue", Gauge, "Requests running longer than their route allows.", pool, nil},
		{"takt_heijunka_pool_overran_total", Counter, "Requests that ran longer than their route allows.", pool, nil},
		{"takt_heijunka_pool_scalings_total", Counter, "Changes of the pool's size by scaling.", pool, nil},
	}},
	{"Supervision tree", []Metric{
		{"takt_build_info", Gauge, "1, with the version and commit of this controller, and the version of Go, as labels.", []string{"version", "commit", "go"}, nil},
		{"takt_ready", Gauge, "1 while the controller serves and its database is reachable and migrated.", nil, nil},
		{"takt_processes", Gauge, "Running processes of a part of the tree, supervisors included.", process, nil},
		{"takt_leaked_processes", Gauge, "Abandoned actors and goroutines still running.", nil, nil},
		{"takt_process_messages_total", Counter, "Messages the process has handled since it started.", process, nil},
		{"takt_process_busy_seconds_total", Counter, "Time the process has spent on messages since it started.", process, nil},
		{"takt_process_mailbox_messages", Gauge, "Messages waiting in the process's mailbox.", process, nil},
		{"takt_supervisor_events_total", Counter, "Supervision events by kind.", []string{"kind"}, nil},
		{"takt_supervisor_restarts_total", Counter, "Restarts of supervised children, by part of the tree.", process, nil},
		{"takt_supervisor_events_dropped_total", Counter, "Supervision events dropped because they came faster than they could be reported.", nil, nil},
		{"takt_trace_spans_sent_total", Counter, "Trace spans accepted by the collector.", nil, nil},
		{"takt_trace_spans_dropped_total", Counter, "Trace spans lost, by reason: full (too many waited for the collector) or refused (by it).", reason, nil},
	}},
	{"Database", []Metric{
		{"takt_database_statement_duration_seconds", Histogram, "Time from sending an SQL statement to the end of its result, by the statement's name.", []string{"statement"}, short},
		{"takt_database_statement_errors_total", Counter, "SQL statements that failed, by the statement's name.", []string{"statement"}, nil},
		{"takt_database_connection_wait_seconds", Histogram, "Time calls waited for a database connection.", nil, short},
		{"takt_pool_connections", Gauge, "Connections to PostgreSQL.", nil, nil},
		{"takt_pool_busy_connections", Gauge, "Connections to PostgreSQL in use.", nil, nil},
		{"takt_vacuum_held_back_seconds", Gauge, "How long an old snapshot has held back vacuum while the database was written to; 0 below a minute.", nil, nil},
	}},
	{"Throttle", []Metric{
		{"takt_throttle_actions_received_total", Counter, "Actions committed and acknowledged: new ones and repeats.", []string{"what"}, nil},
		{"takt_throttle_actions_refused_total", Counter, "Actions refused, by reason.", reason, nil},
		{"takt_throttle_actions_finished_total", Counter, "Actions that ended, by outcome.", []string{"how"}, nil},
		{"takt_throttle_actions_buffered", Gauge, "Actions waiting for their transaction.", nil, nil},
		{"takt_throttle_actions_waiting", Gauge, "Actions waiting to be completed, as last counted.", nil, nil},
		{"takt_throttle_oldest_action_seconds", Gauge, "Age of the oldest waiting action, as last counted.", nil, nil},
		{"takt_throttle_flush_actions", Histogram, "Actions per transaction.", nil, actions},
		{"takt_throttle_call_actions", Histogram, "Actions per completion call to HubSpot.", nil, actions},
		{"takt_throttle_call_duration_seconds", Histogram, "Duration of completion calls, by the meaning of HubSpot's reply.", []string{"answer"}, calls},
		{"takt_throttle_action_failures_total", Counter, "Failed attempts to complete an action.", nil, nil},
		{"takt_throttle_actions_held_total", Counter, "Actions held back because they failed several times in a row.", nil, nil},
		{"takt_throttle_token_refreshes_total", Counter, "Tokens refreshed at HubSpot, by outcome.", []string{"outcome"}, nil},
		{"takt_throttle_portals", Gauge, "Portals served by this controller.", nil, nil},
		{"takt_throttle_portals_refused_total", Counter, "Portals not served because too many were active.", nil, nil},
		{"takt_throttle_jobs_restored_total", Counter, "Queues found with actions but no job. Should stay 0.", nil, nil},
	}},
	{"Notices", []Metric{
		{"takt_notices_total", Counter, "Attempts to send a notice, by outcome: delivered, failed (to be tried again), dead.", []string{"outcome"}, nil},
		{"takt_notices_waiting", Gauge, "Notices that are not delivered yet.", nil, nil},
		{"takt_notices_dead", Gauge, "Notices that were given up and can be redriven.", nil, nil},
		{"takt_notices_oldest_seconds", Gauge, "Age of the oldest notice that is not delivered yet.", nil, nil},
	}},
	{"Deployments", []Metric{
		{"takt_deployments_active", Gauge, "Deployments running on this controller.", nil, nil},
		{"takt_deployments_copying_repositories", Gauge, "Repositories being copied.", nil, nil},
		{"takt_deployments_done_total", Counter, "Repositories copied and verified.", nil, nil},
		{"takt_deployments_failed_total", Counter, "Repositories that could not be copied.", nil, nil},
		{"takt_deployments_skipped_total", Counter, "Repositories that needed no copying.", nil, nil},
	}},
	{"Machine", []Metric{
		{"takt_host_cpu_seconds_total", Counter, "Processor time of the machine, by mode, summed over its processors.", []string{"mode"}, nil},
		{"takt_host_memory_bytes", Gauge, "Memory of the machine.", nil, nil},
		{"takt_host_memory_available_bytes", Gauge, "Memory of the machine available to programs.", nil, nil},
		{"takt_host_disk_read_bytes_total", Counter, "Bytes read from the machine's disks.", nil, nil},
		{"takt_host_disk_written_bytes_total", Counter, "Bytes written to the machine's disks.", nil, nil},
		{"takt_host_disk_free_bytes", Gauge, "Free space on the disk that holds the files of builds.", nil, nil},
		{"takt_host_disk_bytes", Gauge, "Size of the disk that holds the files of builds.", nil, nil},
	}},
}

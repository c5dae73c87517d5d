package api

import (
	"encoding/json"
	"math"

	"takt/store"
)

// ActiveBuild is one element of ActiveBuilds.
type ActiveBuild struct {
	ID       string `json:"id"`
	Status   string `json:"status"`
	Platform string `json:"platform"`
	WorkerID string `json:"worker_id"`
	// StartedAt is a whole number, because published menus refuse anything else.
	StartedAt Millis `json:"started_at"`
}

// NewActiveBuild converts a build that a worker holds.
func NewActiveBuild(b store.Build) ActiveBuild {
	return ActiveBuild{
		ID: b.ID, Status: b.State.Wire(), Platform: string(b.Platform), WorkerID: b.WorkerID, StartedAt: millis(b.StartedAt),
	}
}

// ActiveBuilds answers GET /api/builds/active, newest first.
type ActiveBuilds struct {
	Builds []ActiveBuild `json:"builds"`
}

// Statistics answers GET /api/builds/statistics with the number of builds in each
// state.
type Statistics struct {
	Total     int64 `json:"total"`
	Pending   int64 `json:"pending"`
	Assigned  int64 `json:"assigned"`
	Building  int64 `json:"building"`
	Completed int64 `json:"completed"`
	Failed    int64 `json:"failed"`
	Cancelled int64 `json:"cancelled"`
}

// NewStatistics converts the totals of all builds.
func NewStatistics(t store.Totals) Statistics {
	r := Statistics{
		Pending: int64(t.Pending), Assigned: int64(t.Assigned), Building: int64(t.Building),
		Completed: t.Completed, Failed: t.Failed, Cancelled: t.Cancelled,
	}
	r.Total = r.Pending + r.Assigned + r.Building + r.Completed + r.Failed + r.Cancelled
	return r
}

// Retried answers POST /api/builds/:id/retry: a new build with the files of the
// old one.
type Retried struct {
	ID              string `json:"id"`
	Status          string `json:"status"`
	SubmittedAt     Millis `json:"submitted_at"`
	AccessToken     string `json:"access_token"`
	OriginalBuildID string `json:"original_build_id"`
}

// SecureCerts answers GET /api/builds/:id/certs-secure. Files are standard
// base64 without line breaks; no member is ever null.
type SecureCerts struct {
	P12         []byte `json:"p12"`
	P12Password string `json:"p12Password"`
	// KeychainPassword is generated anew for every reply.
	KeychainPassword     string   `json:"keychainPassword"`
	ProvisioningProfiles [][]byte `json:"provisioningProfiles"`
}

// Telemetry is the body of POST /api/builds/:id/telemetry.
type Telemetry struct {
	// Type is monitor_started, heartbeat or cpu_snapshot.
	Type      string `json:"type"`
	Timestamp string `json:"timestamp"` // ISO 8601
	// Data depends on Type.
	Data json.RawMessage `json:"data"`
}

// TelemetryHeartbeat is the data of a heartbeat. The data of a cpu_snapshot is
// Metrics itself; that of monitor_started is an empty object.
type TelemetryHeartbeat struct {
	HeartbeatCount *float64 `json:"heartbeat_count,omitempty"`
	Stage          string   `json:"stage,omitempty"`
	Metrics        *Metrics `json:"metrics,omitempty"`
	UptimeSeconds  *float64 `json:"uptime_seconds,omitempty"`
}

// Metrics are figures of a worker's machine.
type Metrics struct {
	CPUPercent  *float64 `json:"cpu_percent,omitempty"` // 100 per core
	MemoryMB    *float64 `json:"memory_mb,omitempty"`
	DiskPercent *float64 `json:"disk_percent,omitempty"`
	Processes   *float64 `json:"processes,omitempty"`
}

// Stats answers GET /api/stats and /public/stats.
type Stats struct {
	NodesOnline      int   `json:"nodesOnline"`
	BuildsQueued     int   `json:"buildsQueued"`
	ActiveBuilds     int   `json:"activeBuilds"`
	BuildsToday      int64 `json:"buildsToday"` // completed since midnight UTC
	TotalBuilds      int64 `json:"totalBuilds"` // completed and failed
	TotalBuildTimeMS int64 `json:"totalBuildTimeMs"`
	// TotalCPUCycles is the mean processor load, as a fraction of one core, times the
	// total seconds of all builds.
	TotalCPUCycles int64 `json:"totalCpuCycles"`
}

// NewStats returns the figures that need no key.
func NewStats(t store.Totals) Stats {
	return Stats{
		NodesOnline: t.WorkersOnline, BuildsQueued: t.Pending, ActiveBuilds: t.Assigned + t.Building,
		BuildsToday: t.CompletedToday, TotalBuilds: t.Completed + t.Failed, TotalBuildTimeMS: t.BuildTime.Milliseconds(),
		TotalCPUCycles: int64(math.Round(t.CPUPercent / 100 * t.BuildTime.Seconds())),
	}
}

// BuildPatch is the body of PATCH /api/builds/:id.
type BuildPatch struct {
	// Priority is -10 to 10; higher is built first. Only a pending build can change
	// it.
	Priority *int `json:"priority"`
}

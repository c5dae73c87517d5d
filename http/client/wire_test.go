package client_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
)

// TestWireSamples reads each sample into its type and writes it again: no
// member is unknown, none is missing, none changes its form.
func TestWireSamples(t *testing.T) {
	t.Parallel()
	samples := map[string]any{
		"submitted":          &api.Submitted{},
		"build_status":       &api.BuildStatus{},
		"build_item":         &api.BuildItem{},
		"logs":               &api.Logs{},
		"posted_logs":        &api.PostedLogs{},
		"heartbeat":          &api.Heartbeat{},
		"heartbeat_reply":    &api.HeartbeatReply{},
		"cancelled":          &api.Cancelled{},
		"register":           &api.Register{},
		"registered":         &api.Registered{},
		"job":                &api.Job{},
		"poll_reply":         &api.PollReply{},
		"unregistered":       &api.Unregistered{},
		"poll_reply_several": &api.PollReply{},
		"uploaded":           &api.Uploaded{},
		"uploaded_next":      &api.Uploaded{},
		"health":             &api.Health{},
		"problem":            &api.Problem{},
		"tree_node":          &api.TreeNode{},
		"order":              &api.Order{},
		"plan":               &api.Plan{},
		"heartbeat_settings": &api.HeartbeatSettings{},
		"audit":              &api.Audit{},
		"deployment":         &api.Deployment{},
		"deployment_request": &api.DeploymentRequest{},
		"deployment_retry":   &api.DeploymentRetry{},

		"active_builds":       &api.ActiveBuilds{},
		"statistics":          &api.Statistics{},
		"retried":             &api.Retried{},
		"secure_certs":        &api.SecureCerts{},
		"telemetry":           &api.Telemetry{},
		"telemetry_heartbeat": &api.TelemetryHeartbeat{},
		"telemetry_reply":     &api.Status{},
		"stats":               &api.Stats{},
		"fail_build":          &api.FailBuild{},
		"beat_build":          &api.BeatBuild{},
		"beat_reply":          &api.BeatReply{},
		"worker_stats":        &api.WorkerStats{},
		"worker":              &api.Worker{},
		"worker_list":         &api.WorkerList{},
		"post_diagnostic":     &api.PostDiagnostic{},
		"posted_diagnostic":   &api.PostedDiagnostic{},
		"diagnostic_report":   &api.DiagnosticReport{},
		"diagnostic_reports":  &api.DiagnosticReports{},
	}
	for name, value := range samples {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw := must(os.ReadFile(filepath.Join("..", "..", "testdata", "wire", name+".json")))(t)
			dec := json.NewDecoder(bytes.NewReader(raw))
			dec.DisallowUnknownFields()
			require.NoError(t, dec.Decode(value))
			again := must(json.Marshal(value))(t)
			require.JSONEq(t, string(raw), string(again))
		})
	}
}

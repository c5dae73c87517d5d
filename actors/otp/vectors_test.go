package otp_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// vectorDir is where the golden traces are.
func vectorDir() string {
	if dir := os.Getenv("OTP_VECTORS"); dir != "" {
		return dir
	}
	return filepath.Join("testdata", "vectors")
}

// readScenario reads a file.
func readScenario(t *testing.T, file string) *scenario {
	t.Helper()
	text := must(os.ReadFile(file))(t)
	sc := must(parse(text))(t)
	require.Equal(t, strings.TrimSuffix(filepath.Base(file), ".json"), sc.Name)
	return sc
}

func vectorFiles(t *testing.T) []string {
	t.Helper()
	files := must(filepath.Glob(filepath.Join(vectorDir(), "*.json")))(t)
	require.NotEmpty(t, files, "no golden traces in %s", vectorDir())
	return files
}

// notFollowed are accidents of OTP 25 that this package does not repeat; see
// the package comment.
func notFollowed() []string {
	return []string{"quirk_dynamic_restart_ignored", "quirk_dynamic_terminate_while_restarting_count"}
}

// TestOTPVectors replays the traces that the real OTP supervisor has produced.
// In a bubble, so that time means nothing on a slow machine.
func TestOTPVectors(t *testing.T) {
	t.Parallel()
	for _, file := range vectorFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			t.Parallel()
			sc := readScenario(t, file)
			if slices.Contains(sc.Tags, "quirk") && slices.Contains(notFollowed(), sc.Name) {
				t.Skip("an accident of OTP 25 that is not followed")
			}
			synctest.Test(t, func(t *testing.T) {
				require.NoError(t, runScenario(t.Context(), sc), sc.Description)
			})
		})
	}
}

// TestOTPVectorsInRealTime replays a part of them by the wall clock, with the
// races that a bubble's clock might hide.
func TestOTPVectorsInRealTime(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"kill_supervisor_with_slow_child", "queued_crash_then_stop", "restarting_two_retries_queued",
		"one_for_all_crash_restarts_all", "rest_for_one_revives_terminated_later_sibling",
		"dynamic_stop_slow_and_hanging", "escalation_three_levels_to_root", "supervisor_timeout_kills_it",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc := readScenario(t, filepath.Join("testdata", "vectors", name+".json"))
			require.NoError(t, runScenario(t.Context(), sc), sc.Description)
		})
	}
}

// TestRunnerNoticesDifferences changes one thing in a trace at a time; a runner
// that does not see it proves nothing.
func TestRunnerNoticesDifferences(t *testing.T) {
	t.Parallel()
	text := func(s string) *string { return &s }
	for name, change := range map[string]func(*entry){
		"an event is missing":       func(e *entry) { e.Events = e.Events[1:] },
		"an event is one too many":  func(e *entry) { e.Events = append(e.Events, e.Events[0]) },
		"two events are swapped":    func(e *entry) { e.Events[0], e.Events[1] = e.Events[1], e.Events[0] },
		"another event":             func(e *entry) { e.Events[0].Ev = "init" },
		"another path":              func(e *entry) { e.Events[0].Path += "x" },
		"another instance":          func(e *entry) { e.Events[0].N++ },
		"another reason":            func(e *entry) { e.Events[0].Reason = text("bang") },
		"a reason too many":         func(e *entry) { e.Events[len(e.Events)-1].Reason = text("bang") },
		"an orphan's event":         func(e *entry) { e.Async = e.Events[:1] },
		"another result":            func(e *entry) { e.Result = json.RawMessage(`"{error,not_found}"`) },
		"a result of a during item": func(e *entry) { e.During = []json.RawMessage{json.RawMessage(`"ok"`)} },
		"another state":             func(e *entry) { e.After = json.RawMessage(`null`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc := readScenario(t, filepath.Join("testdata", "vectors", "one_for_all_crash_restarts_all.json"))
			crash := slices.IndexFunc(sc.Trace, func(e entry) bool { return e.Op == "crash" })
			change(&sc.Trace[crash])
			synctest.Test(t, func(t *testing.T) {
				require.Error(t, runScenario(t.Context(), sc))
			})
		})
	}
	file := must(os.ReadFile(filepath.Join("testdata", "vectors", "one_for_all_crash_restarts_all.json")))(t)
	for problem, change := range map[string][2]string{
		"the step is":   {`"op":"crash"`, `"op":"kill"`},
		"unknown op":    {`"which_children"`, `"explode"`},
		"unknown ev":    {`"ev":"exit"`, `"ev":"explosion"`},
		"unknown do":    {`"trap_exit":true`, `"terminate":{"do":"explode"}`},
		"unknown type":  {`"type":"worker"`, `"type":"bomb"`},
		"unknown field": {`"trap_exit"`, `"trap_mouse"`},
		"malformed":     {`"format": 1`, `"format": 2`},
	} {
		changed := bytes.ReplaceAll(file, []byte(change[0]), []byte(change[1]))
		require.NotEqual(t, file, changed, problem)
		_, err := parse(changed)
		require.ErrorContains(t, err, problem)
	}
}

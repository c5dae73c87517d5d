package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store/tracing/tracingtest"
)

// requireTraces checks that each build of the demo has one trace and that it is one tree:
// the submit, each wait, each attempt with its assignment, what the worker did, and the
// calls in which it did that; also of the attempt whose worker was killed.
func requireTraces(t *testing.T, spans []tracingtest.Span) {
	t.Helper()
	traces, killed := map[string][]tracingtest.Span{}, ""
	for _, s := range spans {
		traces[s.Trace] = append(traces[s.Trace], s)
	}
	for _, s := range spans {
		uploads := slices.ContainsFunc(traces[s.Trace], func(o tracingtest.Span) bool { return o.Parent == s.ID && o.Name == "POST /api/workers/upload" })
		if s.Name == "attempt" && s.Status.Code != 0 && !uploads { // else its exit code is one after which it is tried again
			killed = s.Attributes.Get("cicd.worker.id")
		}
	}
	builds, lost := 0, 0
	for _, trace := range traces {
		byID, byName, root := map[string]tracingtest.Span{}, map[string][]tracingtest.Span{}, tracingtest.Span{}
		for _, s := range trace {
			require.NotContains(t, byID, s.ID, "%s", s.Name)
			byID[s.ID] = s
			byName[s.Name] = append(byName[s.Name], s)
			if s.Parent == "" {
				require.Empty(t, s.Attributes.Get("db.query.summary"), "a statement of no request is no trace")
				require.Empty(t, root.ID, "a second root: %s and %s", root.Name, s.Name)
				root = s
			}
		}
		if root.Name != "BUILD "+string(platform) {
			continue
		}
		builds++
		for _, s := range trace {
			require.True(t, s.ID == root.ID || byID[s.Parent].ID != "", "%s of %s has no parent", s.Name, s.Service)
		}
		below := func(parent tracingtest.Span, name string) tracingtest.Span {
			for _, s := range byName[name] {
				if s.Parent == parent.ID {
					return s
				}
			}
			require.Failf(t, "a span is missing", "%s below %s of %v", name, parent.Name, byName)
			return tracingtest.Span{}
		}
		require.Equal(t, "success", root.Attributes.Get("cicd.pipeline.result"))
		submit := below(root, "submit")
		require.Len(t, submit.Links, 1, "the request")
		for _, name := range []string{"storage receive", "storage commit"} {
			below(submit, name)
		}
		attempts := byName["attempt"]
		require.Len(t, byName["wait"], len(attempts))
		for _, a := range attempts {
			require.Equal(t, root.ID, a.Parent)
			below(a, "assign")
			for _, wait := range byName["wait"] {
				if n := wait.Attributes.Get("cicd.pipeline.task.run.id"); n == a.Attributes.Get("cicd.pipeline.task.run.id") {
					require.LessOrEqual(t, wait.Begin, wait.End)
					require.Equal(t, n == "1", wait.Begin == root.Begin, "only the first wait begins with the submit")
				}
			}
			if a.Status.Code == 0 {
				for _, step := range []string{"download", "build", "upload"} {
					if a.Attributes.Get("cicd.worker.id") != killed { // else it may not have been sent
						require.Equal(t, "takt-worker", below(a, step).Service)
					}
				}
				below(below(a, "POST /api/workers/upload"), "storage commit")
				below(a, "GET /api/builds/:id/source")
				continue
			}
			lost++
			require.Len(t, attempts, 2)
			require.Equal(t, "error", a.Attributes.Get("cicd.pipeline.task.run.result"))
			for _, next := range attempts {
				if next.ID != a.ID {
					require.Len(t, next.Links, 1)
					require.Equal(t, a.ID, next.Links[0].Span)
					require.GreaterOrEqual(t, next.End, a.End)
				}
			}
		}
	}
	require.Equal(t, 12, builds)
	require.Equal(t, 2, lost, "the killed worker's attempt, and one that is tried again")
}

// requireBatches checks that an assignment transaction has a span that the polls and the
// builds that it served lead to.
func requireBatches(t *testing.T, spans []tracingtest.Span) {
	t.Helper()
	byID := map[string]tracingtest.Span{}
	for _, s := range spans {
		byID[s.ID] = s
	}
	batches, inserts, results := 0, 0, 0
	for _, s := range spans {
		switch s.Name {
		case "assign batch":
			batches++
			require.Contains(t, []string{"POST /api/workers/poll", "POST /api/workers/upload"}, byID[s.Parent].Name, "a result may ask for the next build")
		case "result batch":
			results++
			require.Equal(t, "POST /api/workers/upload", byID[s.Parent].Name)
		case "end_builds":
			require.Contains(t, []string{"POST /api/workers/upload", "result batch"}, byID[s.Parent].Name)
		case "submit batch":
			require.Equal(t, "submit", byID[s.Parent].Name)
		case "insert_builds": // alone, or with those of other submits
			inserts++
			require.Contains(t, []string{"submit", "submit batch"}, byID[s.Parent].Name)
		case "assign":
			if s.Attributes.Get("db.query.summary") == "" { // else it is the statement
				require.Len(t, s.Links, 1)
				require.Equal(t, "assign batch", byID[s.Links[0].Span].Name)
			}
		}
	}
	require.NotZero(t, batches)
	require.NotZero(t, inserts)
	require.NotZero(t, results)
}

// requireCompletions checks that the calls to HubSpot have spans.
func requireCompletions(t *testing.T, spans []tracingtest.Span) {
	t.Helper()
	require.True(t, slices.ContainsFunc(spans, func(s tracingtest.Span) bool {
		return s.Name == "POST" && strings.HasSuffix(s.Attributes.Get("url.full"), "/callbacks/complete") && s.Attributes.Get("http.response.status_code") != ""
	}))
}

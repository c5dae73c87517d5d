package command_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
)

// replies answers the requests of a path, one after another with these bodies, and returns their
// queries.
func (d *terminal) replies(line string, bodies ...string) *[]string {
	queries := &[]string{}
	d.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method+" "+r.URL.Path != line {
			return false
		}
		*queries = append(*queries, r.URL.Query().Encode())
		fmt.Fprint(w, bodies[min(len(*queries), len(bodies))-1])
		return true
	})
	return queries
}

func TestCancelByLabel(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	asked := d.replies("POST /api/builds/cancel", `{"builds":[{"id":"a"},{"id":"b","code":"conflict","error":"in use"}],"more":true}`, `{"builds":[{"id":"c"}],"more":false}`)
	code, out, errs := d.takt(t.Context(), "cancel", "--label", "pr=7", "-l", "app=shop", "--platform", "ios", "--reason", "closed")
	require.Equal(t, cli.ExitFailure, code)
	require.Equal(t, "a cancelled\nb not changed: in use\nc cancelled\n", out)
	require.Contains(t, errs, "1 of 3 builds were not changed")
	require.Equal(t, slices.Repeat([]string{"label=pr%3D7&label=app%3Dshop&platform=ios&reason=closed"}, 2), *asked)

	d.replies("POST /api/builds/cancel", `{"builds":[{"id":"a","error":"x"}],"more":true}`)
	d.fails(t, 1, "1 of 1 builds", "cancel", "-l", "pr=7") // and does not go on for ever
	asked = d.replies("POST /api/builds/cancel", `{"builds":[],"more":false}`)
	require.JSONEq(t, `{"builds":[]}`, d.ok(t, "cancel", "-l", "pr=7", "--status", "pending", "--json"))
	require.Equal(t, []string{"label=pr%3D7&state=pending"}, *asked)

	w := d.worker(t, "Linux")
	asked = d.replies("POST /api/builds/retry", `{"builds":[{"id":"a","retry":{"id":"b"}}],"more":false}`)
	require.Equal(t, "a retried as b\n", d.ok(t, "retry", "--suspect", "Linux"))
	require.Equal(t, []string{"state=failed&suspect=" + w}, *asked)

	for text, args := range map[string][]string{
		"give a build's id, or --label":    {"cancel", "build-1", "-l", "pr=7"},
		`"pr" must be name=value`:          {"cancel", "-l", "pr"},
		`"pr" is there twice`:              {"retry", "-l", "pr=7", "-l", "pr=8"},
		"--status needs --label":           {"cancel", "build-1", "--status", "pending"},
		"is not one of failed, cancelled":  {"retry", "-l", "pr=7", "--status", "pending"},
		"takt cancel needs an argument":    {"cancel"},
		"give a build's id, or --label fo": {"retry", "build-1", "--suspect", "Linux"},
		"--wait is for one build":          {"retry", "-l", "pr=7", "--wait"},
		"--env is for one build":           {"retry", "-l", "pr=7", "--env", "A=1"},
		"names are 1 to 63 of letters":     {"list", "-l", "p r=7"},
	} {
		d.fails(t, cli.ExitUsage, text, args...)
	}
}

func TestRetryByLabel(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	asked := d.replies("POST /api/builds/retry", `{"builds":[{"id":"a","retry":{"id":"b","access_token":"precious"}}],"more":false}`)
	out := d.ok(t, "retry", "--label", "release=2.4", "--status", "cancelled", "--yes")
	require.Equal(t, "a retried as b\n", out)
	require.Equal(t, []string{"label=release%3D2.4&state=cancelled"}, *asked)
	require.NotContains(t, d.ok(t, "retry", "-l", "release=2.4", "--json"), "precious")
	require.Equal(t, "label=release%3D2.4&state=failed", (*asked)[1])

	kept, err := os.ReadFile(filepath.Join(d.dir, "takt", "tokens", "b"))
	require.NoError(t, err, "as of a build that was submitted here")
	require.Contains(t, string(kept), "precious")
}

// What the controller did not select must not look like what it selected.
func TestFiltersThatTheControllerIgnoresFail(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	d.Submit("ios", nil, nil)
	d.fails(t, 1, "the controller does not know label: it is older than this program", "list", "--label", "pr=7")
	d.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Takt-Ignored", "future, label")
		fmt.Fprint(w, `[]`)
		return true
	})
	for _, list := range [][]string{{"list", "-l", "pr=7"}, {"list"}, {"deployments"}, {"audit"}} {
		d.fails(t, 1, "the controller does not know future, label", list...)
	}
}

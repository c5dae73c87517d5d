package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/process"
	"takt/http/client"
	"takt/store"
)

// operator is somebody at a terminal with the keys of c.
func operator(c *process.Controller) *terminal {
	return &terminal{env: map[string]string{"TAKT_URL": c.URL, "TAKT_API_KEY": c.APIKey, "TAKT_ADMIN_KEY": c.AdminKey}}
}

// staging starts a controller that is fit for drills.
func staging(t *testing.T) *process.Controller {
	t.Helper()
	return newSite(t).controller("takt", "TAKT_ALLOW_DRILL=true", "TAKT_BUILD_TIMEOUT=5s", "TAKT_WORKER_TIMEOUT=5s")
}

// TAKT_DRILL makes the drill longer: make drill.
func TestDrillFindsThatPromisesAreKept(t *testing.T) {
	t.Parallel()
	length := 20 * time.Second
	if v := os.Getenv("TAKT_DRILL"); v != "" {
		var err error
		length, err = time.ParseDuration(v)
		require.NoError(t, err)
	}
	code, out, errs := operator(staging(t)).takt(t.Context(), "drill", "--duration", length.String(), "--json")
	t.Log(out, errs[max(0, len(errs)-4000):])
	require.Zero(t, code)
	var r drillReport
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Empty(t, r.Broken)
	require.Positive(t, r.Accepted)
	require.Equal(t, r.Accepted, r.Completed)
	require.NotEmpty(t, r.Faults)
}

func TestDrillTellsWhatWasLost(t *testing.T) {
	t.Parallel()
	c := staging(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancelled := make(chan string, 1)
	go func() { // somebody cancels the drill's first build
		defer close(cancelled)
		for ctx.Err() == nil {
			builds, _ := c.Client.List(ctx, client.Filter{Status: string(store.Pending), Limit: 1})
			if len(builds) > 0 {
				if _, err := c.Client.Cancel(ctx, builds[0].ID); err == nil {
					cancelled <- builds[0].ID
					return
				}
			}
			pause(ctx, tick)
		}
	}()
	code, out, errs := operator(c).takt(t.Context(), "drill", "--duration", "2s", "--seed", "7")
	cancel(nil)
	require.Equal(t, 1, code, errs)
	require.Contains(t, out, "2 s with seed 7")
	require.Contains(t, out, <-cancelled+": ended failed", "as cancelled ones are shown")
	require.Contains(t, errs, "did not keep every promise")
}

func TestDrillNeedsAControllerOfItsOwnThatAllowsIt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller("takt")
	code, _, errs := operator(c).takt(t.Context(), "drill", "--duration", "1s")
	require.Equal(t, 4, code)
	require.Contains(t, errs, "takt serve --allow-drill")

	busy := staging(t)
	register(t, busy, 1)
	code, _, errs = operator(busy).takt(t.Context(), "drill", "--duration", "1s")
	require.Equal(t, 1, code)
	require.Contains(t, errs, "1 workers and 0 builds")
}

func TestLedgerNotesBrokenPromises(t *testing.T) {
	t.Parallel()
	worker := func(id string) *drillWorker { return &drillWorker{id: id, kill: func(error) {}} }
	for name, tt := range map[string]struct {
		do   func(l *ledger, a, b *drillWorker)
		want string
	}{
		"one holder after the other": {func(l *ledger, a, b *drillWorker) {
			l.join(a)
			require.True(t, l.take("x", a))
			require.True(t, l.kill(0))
			require.True(t, l.take("x", b))
			l.deliver(b)
			require.False(t, l.take("x", a), "a is dead")
		}, ""},
		"a repeat for the same worker": {func(l *ledger, a, _ *drillWorker) {
			l.take("x", a)
			l.take("x", a)
		}, ""},
		"two holders":   {func(l *ledger, a, b *drillWorker) { l.take("x", a); l.take("x", b) }, "x was given to b while a held it"},
		"after its end": {func(l *ledger, a, b *drillWorker) { l.take("x", a); l.deliver(a); l.take("x", b) }, "after its result was taken"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var l ledger
			tt.do(&l, worker("a"), worker("b"))
			require.Contains(t, strings.Join(l.broken, "\n"), tt.want)
			require.Equal(t, tt.want == "", len(l.broken) == 0, l.broken)
		})
	}
}

func TestDrillKillsNoBuildThreeTimes(t *testing.T) {
	t.Parallel()
	var l ledger
	for i := range 3 {
		w := &drillWorker{id: "w", kill: func(error) {}}
		l.join(w)
		l.take("x", w)
		require.Equal(t, i < drillKills, l.kill(0))
	}
}

// answers is a controller in the same process.
type answers func(r *http.Request) (status int, body string)

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body := a(r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)),
		ContentLength: int64(len(body)), Request: r,
	}, nil
}

func TestDrillWaitsForTheEndOfBuildsAndNotForTheirNumber(t *testing.T) {
	t.Parallel()
	const result, builds = "bytes", 40 // at 2 s each, 8 at once
	for name, tt := range map[string]struct {
		answer func(r *http.Request) (int, string)
		done   int
		broken []string
	}{
		"many builds": {func(r *http.Request) (int, string) {
			pause(r.Context(), time.Second)
			if path.Base(r.URL.Path) == "status" {
				return 200, `{"status":"completed"}`
			}
			return 200, result
		}, builds, nil},
		"builds that do not end": {
			func(*http.Request) (int, string) { return 200, `{"status":"building"}` },
			0, slices.Repeat([]string{"not ended 5s after the last fault"}, builds),
		},
		"a controller that does not answer": {
			func(r *http.Request) (int, string) { <-r.Context().Done(); return 0, "" },
			0,
			[]string{"no answer for 10s"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, err := client.New(client.Config{BaseURL: "http://takt.test", HTTPClient: &http.Client{Transport: answers(tt.answer)}})
				require.NoError(t, err)
				d := newDrill(&session{client: c, Output: cli.Output{Err: io.Discard}}, 1)
				d.patience = 5 * time.Second
				for i := range builds {
					d.seen.accept(strconv.Itoa(i), sha256.Sum256([]byte(result)))
				}
				begun := time.Now()
				d.verify(t.Context())
				r := d.seen.report(1, 0)
				require.Equal(t, tt.done, r.Completed)
				require.Len(t, r.Broken, len(tt.broken))
				for i, want := range tt.broken {
					require.Contains(t, r.Broken[i], want)
				}
				require.LessOrEqual(t, time.Since(begun), 10*time.Second)
			})
		})
	}
}

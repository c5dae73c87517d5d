package main

import (
	"crypto/sha256"
	"io"
	"net/http"
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
)

func TestLedgerNotesBrokenPromises(t *testing.T) {
	t.Parallel()
	const twice = "x was given to b while a held it"
	for name, tt := range map[string]struct {
		do   func(l *ledger, a, b *worker)
		want string
	}{
		"one holder after the other": {func(l *ledger, a, b *worker) {
			l.join(a)
			require.True(t, l.assign("x", a, time.Now()))
			require.True(t, l.kill(0))
			require.True(t, l.assign("x", b, time.Now()))
			l.deliver(b)
			require.False(t, l.assign("x", a, time.Now()), "a is dead")
		}, ""},
		"a repeat for the same worker": {func(l *ledger, a, _ *worker) {
			l.assign("x", a, time.Now())
			l.assign("x", a, time.Now())
		}, ""},
		"two holders": {func(l *ledger, a, b *worker) {
			l.assign("x", a, time.Now())
			l.assign("x", b, time.Now())
		}, twice},
		"a silent holder": {func(l *ledger, a, b *worker) {
			l.assign("x", a, time.Now().Add(-time.Minute))
			l.assign("x", b, time.Now())
			l.revoked("x", a)
		}, ""},
		"a holder that beats": {func(l *ledger, a, b *worker) {
			l.assign("x", a, time.Now().Add(-time.Minute))
			l.heartbeat(a, time.Now())
			l.assign("x", b, time.Now())
		}, twice},
		"taken from a worker that was heard": {func(l *ledger, a, _ *worker) {
			l.assign("x", a, time.Now())
			l.revoked("x", a)
		}, "x was taken from a, which was alive"},
		"after its end": {func(l *ledger, a, b *worker) {
			l.assign("x", a, time.Now())
			l.deliver(a)
			l.assign("x", b, time.Now())
		}, "after its result was taken"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLedger()
			l.timeout = time.Minute
			tt.do(l, &worker{id: "a", kill: func(error) {}}, &worker{id: "b", kill: func(error) {}})
			require.Contains(t, strings.Join(l.result.Broken, "\n"), tt.want)
			require.Equal(t, tt.want == "", len(l.result.Broken) == 0, l.result.Broken)
		})
	}
}

func TestSourcesArePackedAndUnpacked(t *testing.T) {
	t.Parallel()
	data, err := unpack(pack([]byte("bytes")))
	require.NoError(t, err)
	require.Equal(t, "bytes", string(data))
}

// stubTransport is a controller in the same process.
type stubTransport func(r *http.Request) (status int, body string)

func (a stubTransport) RoundTrip(r *http.Request) (*http.Response, error) {
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
		broken string
	}{
		"many builds": {func(r *http.Request) (int, string) {
			process.Pause(r.Context(), time.Second)
			if path.Base(r.URL.Path) == "status" {
				return 200, `{"status":"completed"}`
			}
			return 200, result
		}, builds, ""},
		"other bytes": {func(r *http.Request) (int, string) {
			if path.Base(r.URL.Path) == "status" {
				return 200, `{"status":"completed"}`
			}
			return 200, "others"
		}, 0, "its result is not the one that was built: 6 bytes"},
		"builds that do not end": {
			func(*http.Request) (int, string) { return 200, `{"status":"building"}` },
			0, "not ended 5s after the last fault",
		},
		"a controller that does not answer": {
			func(r *http.Request) (int, string) { <-r.Context().Done(); return 0, "" },
			0, "no answer for 10s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, err := client.New(client.Config{BaseURL: "http://takt.test", HTTPClient: &http.Client{Transport: stubTransport(tt.answer)}})
				require.NoError(t, err)
				d := newDrill(cli.Output{Err: io.Discard}, &site{client: c}, 1)
				d.recovery = 5 * time.Second
				for i := range builds {
					d.ledger.accept(strconv.Itoa(i), sha256.Sum256([]byte(result)))
				}
				begun := time.Now()
				d.verify(t.Context())
				r := d.ledger.report()
				require.Equal(t, tt.done, r.Completed)
				require.Equal(t, tt.broken != "", slices.ContainsFunc(r.Broken, func(s string) bool { return strings.Contains(s, tt.broken) }), r.Broken)
				require.LessOrEqual(t, time.Since(begun), 10*time.Second)
			})
		})
	}
}

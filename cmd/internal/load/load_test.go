package load_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/cmd/internal/load"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counter sends n requests and checks that each reply is its own.
type counter struct {
	name    string
	n, sent int
	got     int
}

func (c *counter) Next(buf []byte) []byte {
	if c.sent == c.n {
		return nil
	}
	c.sent++
	return fmt.Appendf(buf, "GET /%s/%d HTTP/1.1\r\nHost: x\r\n\r\n", c.name, c.sent)
}

func (c *counter) Got(status int, body []byte) error {
	c.got++
	if want := fmt.Sprintf("/%s/%d", c.name, c.sent); status != http.StatusOK || !strings.HasPrefix(string(body), want) {
		return fmt.Errorf("status %d, body %.20q, want %q", status, body, want)
	}
	return nil
}

// echo answers with the path and enough behind it to need several reads.
func echo(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := r.URL.Path + strings.Repeat(".", 100_000)
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func TestRunGivesEachClientItsOwnReplies(t *testing.T) {
	t.Parallel()
	clients := make([]load.Client, 8)
	for i := range clients {
		clients[i] = &counter{name: fmt.Sprint("client", i), n: 50}
	}
	res, err := load.Run(t.Context(), echo(t), time.Minute, clients)
	require.NoError(t, err)
	require.Equal(t, 400, res.Requests)
	require.Len(t, res.Latencies, 400)
	require.GreaterOrEqual(t, res.Quantile(1), res.Quantile(.5))
	for _, c := range clients {
		require.Equal(t, 50, c.(*counter).got)
	}
}

type silent struct{ counter }

func (*silent) Got(status int, body []byte) error {
	if status != http.StatusNoContent || len(body) > 0 {
		return fmt.Errorf("status %d, body %q", status, body)
	}
	return nil
}

func TestRepliesWithoutABodyAreUnderstood(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	t.Cleanup(srv.Close)
	res, err := load.Run(t.Context(), strings.TrimPrefix(srv.URL, "http://"), time.Minute, []load.Client{&silent{counter{name: "s", n: 20}}})
	require.NoError(t, err)
	require.Equal(t, 20, res.Requests)
}

func TestRunEndsWhenTheTimeIsUp(t *testing.T) {
	t.Parallel()
	c := &counter{name: "endless", n: 1 << 40}
	res, err := load.Run(t.Context(), echo(t), 50*time.Millisecond, []load.Client{c})
	require.NoError(t, err)
	require.Positive(t, res.Requests)
	require.Equal(t, c.sent, c.got, "no request is left without its reply")
}

type picky struct{ counter }

var errPicky = errors.New("not what I wanted")

func (*picky) Got(int, []byte) error { return errPicky }

func TestRunEndsWithAClientsError(t *testing.T) {
	t.Parallel()
	_, err := load.Run(t.Context(), echo(t), time.Minute, []load.Client{&picky{counter{name: "p", n: 9}}})
	require.ErrorIs(t, err, errPicky)
}

func TestOnlyThisMachineIsATarget(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"192.0.2.1:80", "example.com:80", "10.0.0.1:1", "nonsense"} {
		_, err := load.Run(t.Context(), addr, time.Second, []load.Client{&counter{n: 1}})
		require.Error(t, err, addr)
	}
}

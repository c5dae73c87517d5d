package cli_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

func reply(status int, code store.Code, message string) error {
	return &client.Error{Op: "GET /x", Status: status, RequestID: "r1", Err: store.NewError(code, message)}
}

func TestExit(t *testing.T) {
	t.Parallel()
	unreachable := func(address string, cause error) error {
		return &client.Error{Err: store.Wrap(store.Unavailable, "Controller not reachable", &url.Error{Op: "Get", URL: address, Err: cause})}
	}
	tests := []struct {
		name string
		err  error
		code int
		text string
	}{
		{"usage", cli.Usage("no %s", "flag"), 2, "no flag"},
		{"not found", reply(404, store.NotFound, "Build not found"), 3, "Build not found"},
		{"no admin key", reply(401, store.Unauthorized, "Missing X-Admin-Key header"), 4, "Missing X-Admin-Key header (set TAKT_ADMIN_KEY; takt serve keeps it in the data directory, in admin-key)"},
		{"no key", reply(401, store.Unauthorized, "Missing X-API-Key header"), 4, "Missing X-API-Key header (set TAKT_API_KEY; takt serve keeps it in the data directory, in api-key)"},
		{"wrong key", reply(403, store.InvalidAPIKey, "Invalid API key"), 4, "Invalid API key (check TAKT_API_KEY)"},
		{"queue full", reply(503, store.QueueFull, "Build queue full, try again later"), 5, "Build queue full, try again later (request r1)"},
		{"no controller", unreachable("http://127.0.0.1:1/x", syscall.ECONNREFUSED), 5, "http://127.0.0.1:1 does not answer. Is takt serve running? TAKT_URL or --url sets the address"},
		{"no host", unreachable("http://h/x", &net.DNSError{Name: "h", IsNotFound: true}), 5, "There is no host h; TAKT_URL or --url sets the address"},
		{"no TLS", unreachable("https://h/x", http.ErrSchemeMismatch), 5, "https://h answers in plain HTTP: write http://, or name the port that speaks TLS; TAKT_URL or --url sets the address"},
		{"cut", unreachable("http://h/x", io.ErrUnexpectedEOF), 5, "http://h does not answer (unexpected EOF). Is takt serve running? TAKT_URL or --url sets the address"},
		{"interrupted", cli.InterruptedError{Err: unreachable("http://h/x", io.EOF)}, 130, "interrupted"},
		{"build failed", cli.BuildFailedError{ID: "b1", State: "failed", Reason: "boom"}, 6, "build b1 failed: boom"},
		{"build cancelled", fmt.Errorf("waiting: %w", cli.BuildFailedError{ID: "b1", State: "cancelled"}), 6, "waiting: build b1 cancelled"},
		{"a refusal of our own", store.NewError(store.InvalidArgument, "no id"), 2, "no id"},
		{"anything else", errors.New("disk on fire"), 1, "disk on fire"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.code, cli.ExitCode(tt.err))
			require.Equal(t, tt.text, cli.Message(tt.err))
		})
	}
	require.Zero(t, cli.ExitCode(nil))
}

func TestPrintTree(t *testing.T) {
	t.Parallel()
	at := api.Millis(time.Date(2025, 11, 24, 16, 0, 0, 0, time.UTC).UnixMilli())
	var out bytes.Buffer
	cli.PrintTree(&out, api.TreeNode{
		ID: "takt", Status: "running", Strategy: "one_for_one", UptimeMS: 90_061_000, ChildCount: 3, Children: []api.TreeNode{
			{ID: "database", Status: "running", Strategy: "rest_for_one", UptimeMS: 61_000, Children: []api.TreeNode{
				{ID: "pool", Status: "suspended", Detail: "connection refused", Restarts: 2, LastExit: "panic: \x1b[31mboom", LastExitAt: &at, UptimeMS: 499, Mailbox: 1, Type: "worker", Messages: 4, BusyMS: 1},
			}},
			{ID: "jobs", Status: "terminated", LastExit: "shutdown", Terminated: &api.Termination{By: "admin@10.0.0.1", At: at, Reason: "it leaks"}},
			{ID: "request_sup", Status: "running", UptimeMS: 3_600_000, ChildCount: 12, Leaked: 1},
		},
	})
	require.Equal(t, strings.TrimPrefix(`
takt             running (1 terminated, 1 suspended below), one_for_one, up 1d 1h
|-- database     running (1 suspended below), rest_for_one, up 1m 1s
|   `+"`"+`-- pool     suspended (connection refused), up 0s, 2 restarts, 1 message waits, 4 handled, 250 µs each, last exit panic: `+"\uFFFD"+`[31mboom at 2025-11-24T16:00:00Z
|-- jobs         terminated by admin@10.0.0.1 at 2025-11-24T16:00:00Z: it leaks
`+"`"+`-- request_sup  running, up 1h, 12 children, 1 leaked
`, "\n"), out.String())
}

func TestTokens(t *testing.T) {
	t.Parallel()
	now := time.Now()
	tokens := cli.Tokens{Dir: filepath.Join(t.TempDir(), "deep", "tokens")}
	none, err := tokens.Find("http://a", "b1")
	require.NoError(t, err)
	require.Empty(t, none)

	require.NoError(t, tokens.Keep("http://a", "b1", "secret", now))
	got, err := tokens.Find("http://a", "b1")
	require.NoError(t, err)
	require.Equal(t, "secret", got)
	got, err = tokens.Find("http://evil", "b1")
	require.NoError(t, err)
	require.Empty(t, got, "no other controller is shown it")

	info, err := os.Stat(filepath.Join(tokens.Dir, "b1"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
	info, err = os.Stat(tokens.Dir)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), info.Mode().Perm())

	require.Error(t, tokens.Keep("http://a", "../b", "secret", now))
	require.NoError(t, tokens.Keep("http://a", "b2", "secret", now.Add(31*24*time.Hour)))
	got, err = tokens.Find("http://a", "b1")
	require.NoError(t, err)
	require.Empty(t, got, "old ones are forgotten")

	require.NoError(t, os.WriteFile(filepath.Join(tokens.Dir, "b3"), []byte("rubbish"), 0o600))
	_, err = tokens.Find("http://a", "b3")
	require.Error(t, err)
}

func TestProgressIsForTerminals(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	bar := cli.NewBar(&out, "uploading", false)
	require.Nil(t, bar.Progress())
	bar.Done()
	require.Empty(t, out.String())
}

func TestPlain(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a\tb\nc\uFFFD[2Jé\uFFFD", store.Lines("a\tb\nc\x1b[2Jé\u009b"))
}

package cli_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/http/api"
)

// terminal opens a pseudo terminal. shown ends it and returns what was written to it.
func terminal(t *testing.T) (tty *os.File, shown func() string) {
	t.Helper()
	ours, tty, err := pty.Open()
	require.NoError(t, err)
	require.NoError(t, pty.Setsize(tty, &pty.Winsize{Rows: 24, Cols: 80}))
	var out bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = out.ReadFrom(ours) // ends with an error when the other side is closed
	}()
	return tty, func() string {
		_ = tty.Close()
		<-done
		_ = ours.Close()
		return out.String()
	}
}

func TestBarOfAResumedTransfer(t *testing.T) {
	t.Parallel()
	tty, shown := terminal(t)
	bar := cli.NewBar(tty, "downloading", false)
	const total = 4_000_000_000
	progress := bar.Progress()
	progress(total-1000, total)          // what an earlier run has fetched
	<-time.After(600 * time.Millisecond) // a bar shows no speed before
	progress(total-900, total)
	cli.Output{Err: tty}.Note("takt: try again")
	bar.Done()
	text := shown()
	require.Contains(t, text, "downloading   99% [=================== ]  4.0 GB of 4.0 GB")
	require.Regexp(t, ` [0-9]+ B/s`, text, "what was moved since")
	require.NotContains(t, text, "GB/s")
	require.Contains(t, text, "\r\x1b[Ktakt: try again", "the bar makes room")
	for line := range strings.SplitSeq(text, "\r\x1b[K") {
		require.LessOrEqual(t, len(line), 80, "it does not wrap")
	}
}

func TestColoursAreForTerminals(t *testing.T) { //nolint:paralleltest // whether there are colours is the process's
	defer cli.NoColours(false)
	rows := [][]string{{"BUILD", "STATE"}, {"b1", "failed"}}
	for _, none := range []bool{false, true} {
		cli.NoColours(none)
		tty, shown := terminal(t)
		cli.Table(tty, rows)
		require.Equal(t, !none, strings.Contains(shown(), "\x1b[31mfailed\x1b[0m"))
	}
	var pipe bytes.Buffer
	cli.Table(&pipe, rows)
	require.Equal(t, "BUILD  STATE\nb1     failed\n", pipe.String())
}

// evil is what a stranger may call himself.
const evil = "a\nb1\tidle\u202e\u009b2J\x1b[2J\u2028"

func TestNobodyForgesARow(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	cli.Table(&out, [][]string{{"NAME"}, {evil}})
	require.Equal(t, "NAME\na\uFFFDb1\uFFFDidle\uFFFD\uFFFD2J\uFFFD[2J\uFFFD\n", out.String())

	out.Reset()
	cli.LogStyle{}.Line(&out, api.LogEntry{Level: "info", Message: "one\n12:00:00 error: forged\u202e"})
	require.Contains(t, out.String(), " one\n         12:00:00 error: forged\uFFFD\n")

	out.Reset()
	require.NoError(t, cli.EncodeJSON(&out, map[string]string{"name": evil + "\x7f"}))
	require.Equal(t, `{"name":"a\nb1\tidle\u202e\u009b2J\u001b[2J\u2028\u007f"}`+"\n", out.String()) //nolint:testifylint // how it is written matters

	out.Reset()
	text := `{"built_at":1700000000000`
	require.NoError(t, cli.EncodeJSON(&out, []any{map[string]any{"a": text, "built_at": 1700000000000}, map[string]any{"timestamp": 17000000000001}}))
	require.JSONEq(t, `[{"a":"{\"built_at\":1700000000000","built_at":"2023-11-14T22:13:20.000Z"},{"timestamp":17000000000001}]`, out.String())

	out.Reset()
	_, err := cli.JSONLog{Writer: &out}.Write([]byte("{\"a\":\"\u202e\u0085\"}\n"))
	require.NoError(t, err)
	require.Equal(t, `{"a":"\u202e\u0085"}`+"\n", out.String()) //nolint:testifylint // how it is written matters
}

func TestLogsKeepTheirColoursOnATerminal(t *testing.T) {
	t.Parallel()
	entry := api.LogEntry{Level: "warn", Message: "\x1b[38;5;2mok\x1b[0m \x1b[2Jgone\x1b]0;title\x07 \x1b"}
	tty, shown := terminal(t)
	cli.LogStyle{Raw: true}.Line(tty, entry)
	require.Equal(t, "\x1b[38;5;2mok\x1b[0m gone \x1b[0m\r\n", shown())
	var pipe bytes.Buffer
	cli.LogStyle{Raw: true}.Line(&pipe, entry)
	cli.LogStyle{}.Line(&pipe, entry)
	cli.LogStyle{Timestamps: true}.Line(&pipe, entry)
	require.Regexp(t, `^ok gone \n\d\d:\d\d:\d\d warn: ok gone \n\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.000\S+ warn: ok gone \n$`, pipe.String())
}

func TestConfirmAsksWhoCanAnswer(t *testing.T) {
	t.Parallel()
	for answer, sure := range map[string]bool{"y\n": true, "YES\n": true, "\n": false, "no\n": false} {
		keyboard, tty, err := pty.Open()
		require.NoError(t, err)
		_, err = keyboard.WriteString(answer)
		require.NoError(t, err)
		var shown bytes.Buffer
		err = cli.Output{Err: &shown}.Confirm(tty, "Remove \x1b[2J?")
		require.Equal(t, sure, err == nil, answer)
		require.Equal(t, "Remove \uFFFD[2J? [y/N] ", shown.String())
		require.NoError(t, errors.Join(tty.Close(), keyboard.Close()))
	}
	require.NoError(t, cli.Output{}.Confirm(strings.NewReader("n"), "a script is not asked"))
}

func TestOneFormatOfTimes(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	require.Equal(t, at.Local().Format(time.RFC3339), cli.Time(at))
	require.Equal(t, cli.Time(at), cli.TimeText("2026-01-02T03:04:05.678Z"))
	require.Equal(t, "-", cli.Time(time.Time{}))
}
